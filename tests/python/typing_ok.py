"""Uses of the types, as in programs. Only mypy and pyright read this file."""

from __future__ import annotations

import asyncio
import threading

import zklock
import zklock.aio
from zklock.testing import Op, Session, StandaloneServer


def program(password: bytes) -> int | None:
    with zklock.Client(
        "h:1",
        session_timeout=5,
        auth=[("digest", password), ("digest", "a:b"), ("digest", lambda: b"a:b")],
        wait_for_kazoo=True,
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
    job: zklock.SemaphoreMutex = client.semaphore_mutex("/job", timeout=1.5)
    multi: zklock.MultiLock = client.multi({read, job}, timeout=2)
    client.multi(["/a", job, "/b"])
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
    client.revoke(rw.queue()[0])
    client.revoke(semaphore.participants()[0].node_path)
    waiting: list[zklock.Waiting] = [*semaphore.waiting(), *rw.read.waiting()]
    print([(one.waits_for.name, one.node_path, one.ahead, one.count, one.left) for one in waiting])
    is_holder: bool = client.fence_check("/pool", leases.fencing_token)
    print(is_holder)
    client.shared_count_set("/size", client.shared_count_get("/size") + 1)
    metrics: zklock.Metrics = client.metrics()
    waits: zklock.Histogram = metrics.waits
    print(
        metrics.acquires_ok, metrics.state.name, waits.sum / max(1, waits.count), [bound for bound, _ in waits.buckets]
    )
    text: str = client.prometheus() + client.prometheus({"app": "a"})
    print(text)
    return [leases.fencing_token, semaphore.acquire().fencing_token]


def hear(event: zklock.Event) -> str:
    """Type checkers know that no other types of events exist."""
    if isinstance(event, zklock.ClientEvent):
        state: zklock.ClientState = event.state
        return state.value
    return f"{event.path} {event.state.value} {event.token} {event.fencing_pass}"


def nightly(lock: zklock.LockLike) -> int:
    """A function for any lock, and for an object that replaces a lock in tests."""
    with lock.hold(timeout=5.0) as hold:
        stops: bool = hold.wait_lost(0) or hold.is_lost
        print(stops, hold.remaining, hold.state.value)
        return hold.token


def watch(client: zklock.Client, lock: zklock.Lock, leases: zklock.Leases) -> None:
    hold: zklock.Hold = lock.hold(timeout=5.0)
    stopped = threading.Event()

    def lost(event: zklock.LockEvent) -> None:
        print(event.path, event.token)
        stopped.set()

    def lost_lock(event: zklock.LockEvent[zklock.Lock]) -> None:
        lock: zklock.Lock | None = event.lock
        print(lock)

    def lost_of_task(event: zklock.LockEvent[zklock.aio.Lock]) -> None:
        print(event.lock)

    lock.on_lost(lost_lock).stop()
    leases.on_lost(lost_lock).stop()
    lock.on_lost(lost_of_task)  # type: ignore[arg-type]
    listeners: list[zklock.Listener] = [
        client.on_event(hear),
        client.on_event(lambda event: print(event.state.value)),
        lock.on_lost(lost),
        lock.on_event(lambda event: print(event.token)),
        leases.on_lost(lost),
    ]
    for listener in listeners:
        listener.stop()
    is_lost: bool = hold.wait_lost(timeout=1.0) or lock.wait_lost() or leases.wait_lost(0)
    token: int = lock.fencing_token
    state: zklock.LockState = lock.state_in_process
    print(is_lost, token, state.value, lock.remaining, hold.lock, hold.path, hold.fencing_pass, hold.is_held)
    nightly(lock)
    nightly(client.multi(["/a", lock, client.rwlock("/b").read]))
    if isinstance(lock, zklock.LockLike):
        hold.release()


def code(error: zklock.Error) -> int:
    status: zklock.Status = error.status
    if isinstance(error, zklock.PermissionDenied):
        denied: PermissionError = error
        print(denied)
    return status.value


def wrong(client: zklock.Client) -> None:
    client.mutex("/a", 1)  # type: ignore[call-arg]
    client.mutex("/a").acquire(1)  # type: ignore[call-arg]
    client.semaphore("/a", 1).acquire(1, 2)  # type: ignore[call-arg]
    client.multi(["/a", 1])  # type: ignore[list-item]
    nightly(client.rwlock("/rw"))  # type: ignore[arg-type]
    client.mutex("/a").on_lost(code)  # type: ignore[arg-type]
    if client.state == client.mutex("/a").state:  # type: ignore[comparison-overlap]
        print("the two states never compare equal")
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
    listener: zklock.Listener = client.on_event(on_event)
    listener.stop()

    def on_lost(event: zklock.LockEvent) -> None:
        print(event.lock, event.token)

    def lost_lock(event: zklock.LockEvent[zklock.aio.Lock]) -> None:
        lock: zklock.aio.Lock | None = event.lock
        print(lock)

    def lost_of_thread(event: zklock.LockEvent[zklock.Lock]) -> None:
        print(event.lock)

    lock.on_lost(on_lost).stop()
    lock.on_lost(lost_lock).stop()
    lock.on_lost(lost_of_thread)  # type: ignore[arg-type]
    lock.on_event(print)
    async with lock.hold(timeout=5.0) as hold:
        inner: zklock.aio.Hold = hold
        about: tuple[int, int, float, bool, bool, zklock.LockState, str] = (
            inner.token,
            inner.fencing_pass,
            inner.remaining,
            inner.is_held,
            inner.is_lost,
            inner.state,
            inner.path,
        )
        print(about, await inner.wait_lost(0.5))
        await inner.release()
    watcher: asyncio.Task[bool] = asyncio.create_task(lock.wait_lost(timeout=1))
    async for event in client.events():
        if isinstance(event, zklock.LockEvent):
            print(event.lock, event.token, event.fencing_pass)
        elif event.state is zklock.ClientState.CLOSED:
            watcher.cancel()
    got: bool = await lock.acquire(timeout=0)
    got = await asyncio.wait_for(lock.acquire(), 5)
    task: asyncio.Task[bool] = asyncio.create_task(lock.acquire())
    queue: list[zklock.Participant] = await lock.participants()
    async with lock as held, held.while_held():
        left: float = held.remaining
        is_lost: bool = await held.wait_lost()
    await asyncio.gather(lock.release(), task)
    rw: zklock.aio.RwLock = client.rwlock("/rw")
    every: list[zklock.aio.Lock] = [rw.read, rw.write, client.semaphore_mutex("/job")]
    multi: zklock.aio.MultiLock = client.multi([*every, "/b"], timeout=2, in_order=True)
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
    await client.shared_count_set("/size", await client.shared_count_get("/size") + 1)
    is_holder: bool = await client.fence_check("/a", 1)
    waiting: list[zklock.Waiting] = [*lock.waiting(), *pool.waiting()]
    await client.close()
    print(got, left, is_lost, is_holder, waiting)
    return lock.fencing_token


class StandIn:
    """An object that replaces a lock in a program's tests."""

    is_held = True
    fencing_token = 7
    token = 7
    state = zklock.LockState.HELD
    remaining = 1.0
    is_lost = False

    def cancel(self) -> None:
        pass

    async def acquire(self, *, timeout: float | None = None) -> bool:
        return timeout is None

    def hold(self, *, timeout: float | None = None) -> StandIn:
        return self

    async def wait_lost(self, timeout: float | None = None) -> bool:
        return timeout is None

    async def release(self) -> None:
        pass

    async def __aenter__(self) -> StandIn:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        pass


async def any_lock(lock: zklock.aio.LockLike) -> int:
    async with lock.hold(timeout=5.0) as hold:
        inner: zklock.aio.HoldLike = hold
        print(await inner.wait_lost(0.1), inner.is_lost)
    async with lock:
        print(lock.is_held)
    if await lock.acquire(timeout=0):
        await lock.release()
    return inner.token


async def any_locks(client: zklock.aio.Client) -> list[int]:
    rw = client.rwlock("/rw")
    every: list[zklock.aio.LockLike] = [client.mutex("/a"), client.semaphore_mutex("/b"), rw.read, rw.write]
    return [await any_lock(lock) for lock in [*every, client.multi(["/a", "/b"]), StandIn()]]


async def wrong_tasks(client: zklock.aio.Client, blocking: zklock.Client) -> None:
    client.semaphore("/pool")  # type: ignore[call-overload]
    client.multi([blocking.mutex("/a")])  # type: ignore[list-item]
    await any_lock(blocking.mutex("/a"))  # type: ignore[arg-type]
    client.mutex("/a").set_revocable(1)  # type: ignore[arg-type]
    client.mutex("/a", 5.0)  # type: ignore[call-arg]
    await client.mutex("/a").acquire(1)  # type: ignore[call-arg]
    client.mutex("/a").hold(1)  # type: ignore[call-arg]
    client.semaphore("/pool", 3).acquire(1, 5.0)  # type: ignore[call-arg]


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
