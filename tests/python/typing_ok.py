"""Read by mypy alone: how programs use the types."""

from __future__ import annotations

import zklock
from zklock.testing import Op, Session, StandaloneServer


def program(password: bytes) -> int | None:
    with zklock.Client("h:1", session_timeout=5, auth=[("digest", password), ("digest", "a:b")]) as client:
        state: zklock.ClientState = client.state
        lock: zklock.Mutex = client.mutex("/a", timeout=1.5, data=b"x")
        got: bool = lock.acquire(timeout=0)
        queue: list[zklock.Participant] = lock.participants()
        with lock as held:
            left: float = held.remaining
        try:
            lock.release()
        except zklock.LockTimeout as error:
            number: int = error.status
            return number
        print(state.name, got, left, [(one.node_path, one.holds, one.data) for one in queue])
        return lock.fencing_token
    return None


def test(server: StandaloneServer, client: zklock.Client) -> list[int]:
    server.expire()
    server.cut(client)
    server.freeze(client.session_id)
    server.thaw(session=client)
    server.delay(0.5, client)
    server.lose_reply(Op.CREATE2, client)
    with StandaloneServer("127.0.0.1:0") as other:
        address: str = other.address
        sessions: list[Session] = other.sessions()
    print(address, [session.timeout for session in sessions if session.is_connected])
    return [session.id for session in sessions]
