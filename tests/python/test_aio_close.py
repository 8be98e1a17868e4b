"""Ends of clients, loops and programs with zklock.aio: nothing hangs, nothing remains, mistakes are reported."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import zklock
from conftest import SLACK, Inspector, Loops, Program, Waiter, until, uvloops, wait_until
from server import ZooKeeper
from zklock import ClientState, LockState
from zklock.aio import Client
from zklock.testing import StandaloneServer


@pytest.mark.filterwarnings("ignore:task .* ended while it holds:ResourceWarning")
def test_closing(loops: Loops, server: ZooKeeper, path: str, inspector: Inspector) -> None:
    async def main() -> None:
        client = Client(server.address)
        assert (client.state, client.session_id) == (ClientState.CONNECTING, 0)
        assert await client.connect() is client
        assert await client.connect() is client
        async with client as same:
            assert same is client
            assert (client.state, client.session_id) == (ClientState.CONNECTED, client.session_id)
            lock, pool = client.mutex(path), client.semaphore(f"{path}-pool", 1)
            await lock.acquire()
            leases = await pool.acquire()
            async with Client(server.address) as other:
                blocked = [other.mutex(path).acquire(), other.semaphore(f"{path}-pool", 1).acquire()]
                waiting = [asyncio.ensure_future(one) for one in blocked]
                watch = asyncio.ensure_future(lock.wait_lost())
                await asyncio.sleep(0.05)
                await asyncio.gather(client.close(), client.close())
                with pytest.raises(zklock.ClientClosed):
                    await watch
                # The locks of the closed client are free at once.
                assert (await asyncio.gather(*waiting))[0]
                second = [other.mutex(f"{path}-x"), other.mutex(f"{path}-x")]
                await second[0].acquire()
                waiter = asyncio.ensure_future(second[1].acquire(timeout=60))
                await asyncio.sleep(0.05)
            with pytest.raises((zklock.ClientClosed, zklock.Deadlock)):
                await waiter
        await client.close()
        assert (client.state, client.session_id) == (ClientState.CLOSED, 0)
        for late in (
            lock.acquire,
            lock.release,
            lock.participants,
            leases.release,
            lambda: client.shared_count_get(path),
        ):
            with pytest.raises(zklock.ClientClosed):
                await late()
        for late in (
            lock.release_nowait,
            lock.cancel,
            lambda: lock.is_held,
            lambda: lock.state,
            lambda: client.mutex(path),
            lambda: lock.set_revocable(print),
            leases.release_nowait,
        ):
            with pytest.raises(zklock.ClientClosed):
                late()
        with pytest.raises(zklock.ClientClosed, match="make another client"):
            await client.connect()
        unused = Client(server.address)
        await unused.close()
        assert unused.state is ClientState.CLOSED
        with pytest.raises(zklock.ClientClosed):
            unused.mutex(path)

    loops.run(main())


def test_close_wakes_waiting_tasks(loops: Loops, server: ZooKeeper, path: str) -> None:
    async def main() -> None:
        async with Client(server.address) as holder, holder.mutex(path), holder.semaphore(f"{path}-pool", 1).acquire():
            client = await Client(server.address).connect()
            lock = client.mutex(path)
            waits = [
                lock.acquire(),
                lock.__aenter__(),
                client.semaphore(f"{path}-pool", 1).acquire(),
                client.multi([lock, client.semaphore_mutex(f"{path}-b")]).acquire(),
            ]
            tasks = [asyncio.ensure_future(wait) for wait in waits]
            await until(lambda: len(lock.waiting()) == 2)
            await client.close()
            for task in tasks:
                with pytest.raises(zklock.ClientClosed):
                    await task

    loops.run(main())


def test_closing_the_multi_locks_client_leaves_locks_of_other_clients(
    loops: Loops, server: ZooKeeper, path: str, inspector: Inspector
) -> None:
    """The member locks may belong to another client, and remain usable."""

    async def main() -> None:
        async with Client(server.address) as lives:
            locks = [lives.mutex(f"{path}-a"), lives.mutex(f"{path}-b")]
            closed = await Client(server.address).connect()
            lock, other = closed.multi(locks), closed.multi([lives.mutex(f"{path}-b"), closed.mutex(f"{path}-c")])
            await asyncio.wait_for(lock.acquire(), 60)
            assert closed._bridge is not None
            descriptor = closed._bridge.queue_for_call().fileno()
            await closed.close()
            assert len(await asyncio.wait_for(lock.participants(), 60)) == 2
            await asyncio.wait_for(lock.release(), 60)
            assert all(one.state is LockState.FREE for one in locks)
            assert inspector.nodes(f"{path}-a") == inspector.nodes(f"{path}-b") == []
            with pytest.raises(zklock.ClientClosed):
                await asyncio.wait_for(other.acquire(), 60)
            assert not asyncio.get_running_loop().remove_reader(descriptor), "the loop still watches it"

    loops.run(main())


def test_failing_close_of_a_client_in_a_closed_generator_is_logged(
    loops: Loops, server: ZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    class FailingClient(Client):
        async def close(self) -> None:
            await super().close()
            raise zklock.Exhausted("no thread is left")

    async def main() -> None:
        async def work() -> AsyncGenerator[None, None]:
            async with FailingClient(server.address):
                yield

        generator = work()
        await generator.__anext__()
        await generator.aclose()

    loops.run(main())
    # asyncio also logs the name of this test if a step of the loop takes long.
    records = [record for record in caplog.records if record.name.startswith("zklock")]
    (record,) = [record for record in records if "generator" in record.getMessage()]
    assert (record.name, record.levelname) == ("zklock.lock", "WARNING")
    event = "the end of a block failed when a generator was closed"
    assert record.zklock == {"event": event, "error": "no thread is left"}  # type: ignore[attr-defined]


def test_connecting(loops: Loops) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = f"127.0.0.1:{silent.getsockname()[1]}"
            started = time.monotonic()
            client = Client(address, connect_timeout=0.2)
            with pytest.raises(zklock.ConnectionLost):
                async with client:
                    pytest.fail("connected")
            assert 0.2 <= time.monotonic() - started < 5
            client = Client(address, connect_timeout=30)
            connecting = asyncio.ensure_future(client.connect())
            await asyncio.sleep(0.05)
            with pytest.raises(RuntimeError, match="another task is connecting this client"):
                await client.connect()
            await client.close()
            with pytest.raises(zklock.ClientClosed, match="closed while it connected"):
                await connecting

    loops.run(main())


@pytest.mark.filterwarnings("ignore:.*was not closed:ResourceWarning")
def test_a_loop_is_never_blocked(loops: Loops) -> None:
    """Neither a server that does not answer, nor the end of one of its clients, blocks the loop."""

    @asynccontextmanager
    async def is_never_blocked() -> AsyncIterator[None]:
        """Check that the loop always runs other tasks during the block. A thread and a task both count. On a busy
        machine both are slow, but a blocked loop stops only the task.
        """
        done, counted, gaps = threading.Event(), [0], []

        def count() -> None:
            while not done.wait(0.005):
                counted[0] += 1

        async def tick() -> None:
            while True:
                before = counted[0]
                try:
                    await asyncio.sleep(0.005)
                finally:
                    gaps.append(counted[0] - before)

        counting, task = Waiter(count), asyncio.ensure_future(tick())
        await asyncio.sleep(0)
        yield
        task.cancel()
        await asyncio.wait([task])
        done.set()
        counting.result()
        assert max(gaps) < 100, f"the thread counted to {max(gaps)} while the loop was blocked"

    async def main(server: StandaloneServer) -> None:
        client = await Client(server.address, session_timeout=4.5, on_event=lambda _: None).connect()
        dropped = await Client(server.address, session_timeout=4.5).connect()
        lock, pool, forgotten = client.mutex("/a"), client.semaphore("/pool", 1), dropped.mutex("/b")
        await lock.acquire()
        await forgotten.acquire()
        leases = await pool.acquire()
        server.freeze()
        async with is_never_blocked():
            # This call ends after one second.
            with pytest.raises(zklock.ConnectionLost):
                await client.mutex("/c").acquire(timeout=0)
        server.thaw()
        await until(lambda: client.state is ClientState.CONNECTED)
        server.freeze()
        async with is_never_blocked():
            asks = [
                lock.participants(),
                client.shared_count_get("/count"),
                client.shared_count_set("/count", 1),
                client.revoke("/x"),
                client.fence_check("/a", 1),
                client.mutex("/c").acquire(timeout=3),
                leases.release(),
                lock.release(),
                Client(server.address, connect_timeout=3).connect(),
            ]
            results = await asyncio.gather(*asks, return_exceptions=True)
            client.semaphore("/counted", count_path="/count", initial=1).cancel()
        assert all(isinstance(result, zklock.Error) for result in results), results
        async with is_never_blocked():
            del dropped, forgotten
            gc.collect()
            started = time.monotonic()
            await client.close()
            assert time.monotonic() - started < 2.5 + SLACK

    with StandaloneServer() as server:
        loops.run(main(server))


@pytest.mark.filterwarnings("ignore:.*was not closed:ResourceWarning")
def test_another_loop(loops: Loops, server: ZooKeeper, path: str) -> None:
    kept: dict[str, Any] = {}

    async def first() -> None:
        client = kept["client"] = await Client(server.address).connect()
        kept["lock"], kept["pool"] = client.mutex(path), client.semaphore(f"{path}-pool", 1)
        kept["leases"], kept["events"] = await kept["pool"].acquire(), client.events()

    async def second() -> None:
        client, lock = kept["client"], kept["lock"]
        for wrong in (
            lock.acquire,
            lock.release,
            lock.__aenter__,
            lock.participants,
            lock.wait_lost,
            lock.hold,
            lock.queue,
            lambda: kept["events"].__anext__(),
            kept["pool"].acquire,
            kept["pool"].participants,
            kept["leases"].release,
            client.connect,
            lambda: client.shared_count_get(path),
            lambda: client.shared_count_set(path, 1),
        ):
            with pytest.raises(RuntimeError, match="belongs to the event loop in which it connected"):
                await wrong()
        assert client.state is ClientState.CONNECTED
        assert not lock.is_held

    loops.run(first())
    loops.run(second())
    Waiter(lambda: Loops(asyncio.SelectorEventLoop).run(second())).result()
    kept.clear()
    gc.collect()


def test_a_loop_without_add_reader(server: ZooKeeper) -> None:
    class Loop(asyncio.SelectorEventLoop):
        def add_reader(self, *_: Any) -> None:
            raise NotImplementedError

    async def main() -> None:
        with pytest.raises(
            NotImplementedError, match=r"zklock.aio needs an event loop with add_reader\(\).*Loop has none"
        ):
            await Client(server.address).connect()

    before = server.sessions()
    Loops(Loop).run(main())
    wait_until(lambda: server.sessions() <= before)


@pytest.mark.filterwarnings("ignore:.*was not closed:ResourceWarning")
def test_closing_the_loop_with_pending_calls_deletes_their_nodes(
    server: ZooKeeper, path: str, inspector: Inspector
) -> None:
    for make in (asyncio.SelectorEventLoop, pytest.importorskip("uvloop").new_event_loop):
        loop = make()
        holder = zklock.Client(server.address)
        held = holder.mutex(path)
        held.acquire()
        client = loop.run_until_complete(Client(server.address).connect())
        task = loop.create_task(client.mutex(path).acquire())
        leases = loop.create_task(client.semaphore(f"{path}-pool", 1).acquire())
        loop.run_until_complete(until(lambda: len(inspector.nodes(path)) == 2))
        del client
        loop.close()
        held.release()
        holder.close()
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        del task, leases, loop
        gc.collect()
        wait_until(lambda: inspector.nodes(path) == [])


@pytest.mark.filterwarnings("ignore:.*was not closed:ResourceWarning")
@pytest.mark.parametrize("make", [asyncio.SelectorEventLoop, uvloops], ids=["asyncio", "uvloop"])
def test_while_held_block_that_ends_after_its_loop_releases_the_hold(
    server: ZooKeeper, path: str, inspector: Inspector, make: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    def run() -> None:
        loop = make()
        client = loop.run_until_complete(Client(server.address).connect())
        lock, pool = client.mutex(path), client.semaphore(f"{path}-pool", 1)
        entered = asyncio.Event()

        async def block() -> None:
            async with lock.hold() as hold, hold.while_held(), pool.acquire() as leases, leases.while_held():
                entered.set()
                await asyncio.sleep(3600)

        coroutine = block()
        task = loop.create_task(coroutine)
        loop.run_until_complete(until(entered.is_set))
        loop.close()
        coroutine.close()
        assert not lock.is_held_in_process
        wait_until(lambda: inspector.nodes(path) == [] and inspector.below(f"{path}-pool") == [])
        task._log_destroy_pending = False  # type: ignore[attr-defined]

    run()
    gc.collect()


@pytest.mark.filterwarnings("ignore:.*was not closed:ResourceWarning")
def test_a_client_that_is_forgotten(loops: Loops, server: ZooKeeper, path: str, inspector: Inspector) -> None:
    async def main() -> None:
        before = server.sessions()
        client = Client(server.address, on_event=lambda event: events.append(event) or client)  # noqa: F821
        events: list[zklock.Event] = []
        await client.connect()
        lock = client.mutex(path)
        lock.set_revocable(lambda node: lock.cancel())  # noqa: F821
        await lock.acquire()
        await until(lambda: len(events) == 2)
        events.clear()
        gone = weakref.ref(client)
        del client, lock
        gc.collect()
        assert gone() is None
        await until(lambda: server.sessions() <= before and inspector.nodes(path) == [])
        assert events == []

    loops.run(main())


def test_a_client_that_is_forgotten_on_another_thread(server: ZooKeeper, path: str) -> None:
    loops = Loops(asyncio.SelectorEventLoop)

    async def main() -> None:
        before = server.sessions()
        box = [await Client(server.address).connect()]

        def forget() -> None:
            with pytest.warns(ResourceWarning, match=f"{server.address}.* was not closed"):
                box.clear()
            gc.collect()  # the recorded warning refers to its source

        await asyncio.get_running_loop().run_in_executor(None, forget)
        await until(lambda: server.sessions() <= before)

    loops.run(main())
    assert loops.reports == []


PROGRAM = """
import asyncio, os, sys, warnings, zklock
warnings.simplefilter("ignore")
async def main():
    {body}
    print("ends", flush=True)
asyncio.run(main())
"""


@pytest.mark.parametrize(
    "body",
    [
        "async with zklock.aio.Client(sys.argv[1]) as client, client.mutex(sys.argv[2]): pass",
        # The interpreter closes the client. It does not wait for callbacks of a loop that no longer runs.
        "global c, l; c = zklock.aio.Client(sys.argv[1], on_event=print); await c.connect(); "
        "l = c.mutex(sys.argv[2]); await l.acquire()",
        "global c; c = zklock.aio.Client(sys.argv[1]); await c.connect(); asyncio.ensure_future(c.close())",
    ],
)
def test_programs_end(
    server: ZooKeeper, path: str, inspector: Inspector, program: Callable[..., Program], body: str
) -> None:
    ending = program(PROGRAM.format(body=body), server.address, path)
    assert "ends" in iter(ending.read_line, "")
    started = time.monotonic()
    assert ending.ends() == 0
    assert time.monotonic() - started < 0.9 + SLACK
    wait_until(lambda: inspector.nodes(path) == [])


FORKS = """
import asyncio, os, sys, zklock

async def in_child(client, lock, leases):
    for call in (
        lock.acquire, lock.release, lock.participants, leases.release, lambda: client.shared_count_get("/a"),
        lock.wait_lost, lock.queue, lock.hold, lambda: client.shared_count_set("/a", 1), client.connect,
    ):
        try:
            await call()
        except zklock.Forked:
            continue
        return 1
    for look in (
        lambda: lock.is_held, lambda: lock.state, lambda: client.state, lambda: client.mutex("/a"), lock.release_nowait,
        lambda: lock.set_revocable(print), lambda: client.semaphore("/a", 1), lock.while_held,
        client.events, lambda: client.on_event(print), lambda: lock.on_lost(print), lambda: leases.on_event(print),
    ):
        try:
            look()
        except zklock.Forked:
            continue
        return 2
    # Closing the client of the parent does nothing.
    if await client.close() or await client.__aexit__(None, None, None) or lock.path != sys.argv[2]:
        return 4
    try:
        client.mutex("/a")
    except zklock.Forked:
        pass
    else:
        return 5
    async with zklock.aio.Client(sys.argv[1]) as own:
        return 0 if not await own.mutex(sys.argv[2]).acquire(timeout=0) else 3

async def main():
    async with zklock.aio.Client(sys.argv[1]) as client:
        lock = client.mutex(sys.argv[2])
        leases = await client.semaphore(sys.argv[2] + "-pool", 1).acquire()
        async with lock:
            child = os.fork()
            if child == 0:
                asyncio._set_running_loop(None)
                code = 9
                try:
                    code = asyncio.new_event_loop().run_until_complete(in_child(client, lock, leases))
                finally:
                    os._exit(code)
            loop = asyncio.get_running_loop()
            _, status = await loop.run_in_executor(None, os.waitpid, child, 0)
            print(os.waitstatus_to_exitcode(status), lock.is_held, flush=True)
        async with lock:
            print("goes on", flush=True)

asyncio.run(main())
"""


def test_a_forked_child(server: ZooKeeper, path: str, program: Callable[..., Program]) -> None:
    forking = program(FORKS, server.address, path)
    assert forking.read_line() == "0 True"
    assert forking.read_line() == "goes on"
    assert forking.ends() == 0


INTERRUPTED = """
import asyncio, sys, zklock
async def main():
    async with zklock.aio.Client(sys.argv[1]) as client:
        print("waits", flush=True)
        async with client.mutex(sys.argv[2]):
            pass
try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c(server: ZooKeeper, path: str, inspector: Inspector, program: Callable[..., Program]) -> None:
    import signal

    with zklock.Client(server.address) as holder, holder.mutex(path):
        waiting = program(INTERRUPTED, server.address, path)
        assert waiting.read_line() == "waits"
        inspector.wait_for(path, 2)
        waiting.process.send_signal(signal.SIGINT)
        assert waiting.read_line() == "interrupted"
        assert waiting.ends() == 0
        inspector.wait_for(path, 1)


def test_loops_of_several_threads(server: ZooKeeper, path: str) -> None:
    """Each loop has its own client. Tasks of all loops exclude each other."""
    inside: list[int] = []
    crowds: list[int] = []

    async def work(number: int) -> None:
        async with Client(server.address) as client:
            lock = client.mutex(path)

            async def turn() -> None:
                for _ in range(5):
                    async with lock:
                        inside.append(number)
                        crowds.append(len(inside))
                        await asyncio.sleep(0)
                        inside.pop()

            await asyncio.gather(turn(), turn())

    threads = [Waiter(lambda number=number: Loops(asyncio.SelectorEventLoop).run(work(number))) for number in range(3)]
    for thread in threads:
        thread.result()
    assert crowds == [1] * 30


def test_no_descriptor_and_no_thread_is_left(loops: Loops, server: ZooKeeper, path: str) -> None:
    async def main() -> None:
        async with Client(server.address, on_event=lambda _: None) as client, client.mutex(path):
            pass

    async def several() -> None:
        for _ in range(10):
            client = await Client(server.address).connect()
            assert client._bridge is not None
            descriptor = client._bridge.queue_for_call().fileno()
            await client.close()
            assert not asyncio.get_running_loop().remove_reader(descriptor), "the loop still watches it"

    loops.run(several())
    loops.run(main())
    # The garbage of earlier tests must not disappear during the measurement.
    gc.collect()
    before, threads = descriptors(), threading.active_count()
    for _ in range(5):
        loops.run(main())
    gc.collect()
    assert descriptors() == before
    assert threading.active_count() == threads


def descriptors() -> int:
    from pathlib import Path

    return len(list(Path("/proc/self/fd").iterdir()))
