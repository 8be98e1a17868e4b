"""Read by mypy alone: how programs use the types."""

from __future__ import annotations

import zklock
from zklock.testing import Op, Session, StandaloneServer


def program(password: bytes) -> int | None:
    with zklock.Client(
        "h:1", session_timeout=5, auth=[("digest", password), ("digest", "a:b")], wait_for_kazoo=True
    ) as client:
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


def recipes(client: zklock.Client, other: zklock.Client) -> list[int]:
    rw: zklock.RwLock = client.rwlock("/rw", timeout=1, data=b"x")
    read: zklock.ReadLock = rw.read
    write: zklock.WriteLock = rw.write
    job: zklock.SemaphoreMutex = client.semaphore_mutex("/job", 1.5)
    multi: zklock.MultiLock = client.multi({read, job}, timeout=2)
    every: list[zklock.Lock] = [client.mutex("/a"), read, write, job, multi, client.multi(multi.locks)]
    for lock in every:
        lock.set_revocable(print)
        lock.set_revocable(lambda node: node.upper())
        lock.set_revocable(None)
        with lock as held:
            print(held.fencing_token, held.node_path, held.node_paths)
    semaphore: zklock.Semaphore = client.semaphore("/pool", 3)
    client.semaphore("/pool", max_leases=3).close()
    other.semaphore("/pool", count_path="/size", initial=3).cancel()
    with semaphore.acquire(2, timeout=1.0) as leases:
        held_leases: zklock.Leases = leases
        print(held_leases.is_held, leases.quantity, leases.state.name, leases.remaining, leases.node_paths)
    semaphore.set_data(None)
    semaphore.set_revocable(print)
    client.revoke(rw.participants()[0])
    client.revoke(semaphore.participants()[0].node_path)
    waiting: list[zklock.Waiting] = [*semaphore.waiting(), *rw.read.waiting()]
    print([(one.waits_for.name, one.node_path, one.ahead, one.count, one.left) for one in waiting])
    is_holder: bool = client.fence_check("/pool", leases.fencing_token)
    print(is_holder)
    client.set_count("/size", client.get_count("/size") + 1)
    return [leases.fencing_token, semaphore.acquire().fencing_token]


def wrong(client: zklock.Client) -> None:
    client.semaphore("/pool")  # type: ignore[call-overload]
    client.semaphore("/pool", 3, count_path="/size", initial=3)  # type: ignore[call-overload]
    client.semaphore("/pool", count_path="/size")  # type: ignore[call-overload]
    client.multi([client.rwlock("/rw")])  # type: ignore[list-item]
    client.mutex("/a").set_revocable(1)  # type: ignore[arg-type]


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
