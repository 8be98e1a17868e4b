"""Read by mypy and pyright alone: how programs use the types."""

from __future__ import annotations

import asyncio

import zklock
import zklock.aio
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
    metrics: zklock.Metrics = client.metrics()
    waits: zklock.Histogram = metrics.waits
    print(
        metrics.acquires_ok, metrics.state.name, waits.sum / max(1, waits.count), [bound for bound, _ in waits.buckets]
    )
    text: str = client.prometheus() + client.prometheus({"app": "a"})
    print(text)
    return [leases.fencing_token, semaphore.acquire().fencing_token]


def wrong(client: zklock.Client) -> None:
    client.semaphore("/pool")  # type: ignore[call-overload]
    client.semaphore("/pool", 3, count_path="/size", initial=3)  # type: ignore[call-overload]
    client.semaphore("/pool", count_path="/size")  # type: ignore[call-overload]
    client.multi([client.rwlock("/rw")])  # type: ignore[list-item]
    client.mutex("/a").set_revocable(1)  # type: ignore[arg-type]


async def tasks(client: zklock.aio.Client, other: zklock.aio.Client) -> int:
    async def on_event(event: zklock.Event) -> None:
        print(event)

    async with zklock.aio.Client("h:1", session_timeout=5, auth=[("digest", "a:b")], on_event=on_event) as own:
        same: zklock.aio.Client = await own.connect()
        print(same.state, same.session_id)
    lock: zklock.aio.Mutex = client.mutex("/a", timeout=1.5, data=b"x", local_handover=3)
    got: bool = await lock.acquire(timeout=0)
    got = await asyncio.wait_for(lock.acquire(), 5)
    task: asyncio.Task[bool] = asyncio.create_task(lock.acquire())
    queue: list[zklock.Participant] = await lock.participants()
    async with lock as held, held.while_held():
        left: float = held.remaining
        is_lost: bool = await held.lost()
    await asyncio.gather(lock.release(), task)
    rw: zklock.aio.RwLock = client.rwlock("/rw")
    every: list[zklock.aio.Lock] = [rw.read, rw.write, client.semaphore_mutex("/job")]
    multi: zklock.aio.MultiLock = client.multi(every, timeout=2, in_order=True)
    async with multi:
        print([one.fencing_token for one in multi.locks], multi.node_paths, multi.state.name)
    pool: zklock.aio.Semaphore = other.semaphore("/pool", max_leases=3)
    other.semaphore("/pool", count_path="/size", initial=3).cancel()
    async with pool.acquire(2, timeout=1.0) as leases:
        inside: zklock.aio.Leases = leases
        print(inside.quantity, inside.is_held, inside.fencing_token)
    more: zklock.aio.Leases = await pool.acquire()
    taken: asyncio.Task[zklock.aio.Leases] = asyncio.create_task(pool.acquire())
    await more.release()
    (await taken).release_nowait()
    lock.set_revocable(print)
    lock.set_revocable(None)
    await client.revoke(queue[0])
    await client.set_count("/size", await client.get_count("/size") + 1)
    is_holder: bool = await client.fence_check("/a", 1)
    waiting: list[zklock.Waiting] = [*lock.waiting(), *pool.waiting()]
    await client.close()
    print(got, left, is_lost, is_holder, waiting)
    return lock.fencing_token


def wrong_tasks(client: zklock.aio.Client, blocking: zklock.Client) -> None:
    client.semaphore("/pool")  # type: ignore[call-overload]
    client.multi([blocking.mutex("/a")])  # type: ignore[list-item]
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
