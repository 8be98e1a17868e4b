"""A cancelled task of zklock.aio ends at once and leaves no node and no hold, at whatever point it is cancelled."""

from __future__ import annotations

import asyncio
import functools
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest

import zklock
from conftest import Inspector, Loops, until
from server import ZooKeeper
from zklock.aio import Client, Leases, Lock
from zklock.testing import StandaloneServer

Step = Callable[[], Coroutine[Any, Any, Any]]


async def turns(count: int) -> None:
    """Let the loop run for some turns. Some of them wait for a moment, because a server's answer needs time."""
    for turn in range(count):
        await asyncio.sleep(0 if turn % 2 else 0.0002)


async def cancel_after(work: Coroutine[Any, Any, Any], count: int) -> bool:
    """Cancel the work after some turns. Return whether it was cancelled before it ended. It must end within one turn of
    the loop, without an answer from a server.
    """
    task = asyncio.ensure_future(work)
    await turns(count)
    if task.done():
        await task
        return False
    task.cancel()
    for _ in range(3):
        if task.done():
            break
        await asyncio.sleep(0)
    assert task.done(), "it waits for something"
    return task.cancelled()


class InterruptingQueue:
    """A completion queue. Ctrl-C interrupts the loop just after it has taken items from the queue."""

    def __init__(self, queue: Any) -> None:
        self.queue = queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self.queue, name)

    def take(self, *lists: list[Any]) -> None:
        self.queue.take(*lists)
        if any(lists):
            raise KeyboardInterrupt


def test_the_loop_can_run_again_after_ctrl_c(server: ZooKeeper, path: str) -> None:
    loop = asyncio.new_event_loop()
    client = loop.run_until_complete(Client(server.address).connect())
    bridge = client._bridge
    assert bridge is not None
    with zklock.Client(server.address) as other:
        held = other.mutex(path)
        held.acquire()
        acquiring = loop.create_task(client.mutex(path).acquire())
        # The loop runs this callback after the first step of the task. The answer cannot arrive before the task waits.
        loop.call_soon(held.release_nowait)
        bridge._queue = InterruptingQueue(bridge._queue)  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(acquiring)
    bridge._queue = bridge._queue.queue  # type: ignore[attr-defined]
    assert loop.run_until_complete(asyncio.wait_for(acquiring, 60))
    loop.run_until_complete(client.close())
    loop.close()


async def at_every_point(
    work: Callable[[], Coroutine[Any, Any, Any]],
    check: Callable[[], Awaitable[None]],
    undo: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Cancel the work after 0, 1, 2... turns until it ends by itself three times in a row. Call ``check`` each time.

    The steps grow, so that the time limit of the loop also suffices for a slow server.
    """
    ended = cancelled = count = 0
    while ended < 3:
        assert count < 1000, "it does not end"
        if await cancel_after(work(), count):
            ended, cancelled = 0, cancelled + 1
        else:
            ended += 1
            if undo is not None:
                await undo()
        await check()
        count += 1 + count // 20
        if ended == 3 and cancelled < 2:
            # The answers arrived too early: only the work of the first round was cancelled, before it began.
            ended, count = 0, 1


Make = Callable[[Client, str], Lock]
KINDS: dict[str, Make] = {
    "mutex": lambda client, path: client.mutex(path),
    "semaphore_mutex": lambda client, path: client.semaphore_mutex(path),
    "read": lambda client, path: client.rwlock(path).read,
    "write": lambda client, path: client.rwlock(path).write,
    "multi": lambda client, path: client.multi([client.mutex(f"{path}/a"), client.mutex(f"{path}/b")]),
    "in_order": lambda client, path: client.multi(
        [client.semaphore_mutex(f"{path}/c"), client.mutex(f"{path}/d")], in_order=True
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_acquire_of_a_free_lock(loops: Loops, server: ZooKeeper, path: str, inspector: Inspector, kind: str) -> None:
    async def main() -> None:
        async with Client(server.address) as client, Client(server.address) as other:
            lock, again = KINDS[kind](client, path), KINDS[kind](other, path)

            async def work() -> None:
                async with lock:
                    pass

            async def check() -> None:
                if kind == "in_order":
                    # The library's thread may be about to release what the cancelled task had just won.
                    await until(functools.partial(is_free, lock))
                assert is_free(lock)
                # The next task gets the lock as soon as the server has processed the cancellation.
                async with again:
                    assert again.is_held
                assert await lock.acquire(timeout=60)
                await lock.release()

            await at_every_point(work, check)
            await until(lambda: inspector.below(path) == [])

    loops.run(main(), seconds=50)


@pytest.mark.parametrize("kind", KINDS)
def test_acquire_of_a_lock_that_another_holds(
    loops: Loops, server: ZooKeeper, path: str, inspector: Inspector, kind: str
) -> None:
    async def main() -> None:
        async with Client(server.address) as client, Client(server.address) as holder:
            make = KINDS["write"] if kind == "read" else KINDS[kind]
            lock, held = KINDS[kind](client, path), make(holder, path)
            async with held:
                before = len(inspector.below(path))
                for count in (0, 1, 2, 3, 5, 8, 13, 21, 34, 55):
                    assert await cancel_after(lock.acquire(), count)
                    assert not lock.waiting()
                await until(lambda: len(inspector.below(path)) == before)
            assert await lock.acquire(timeout=60)
            await lock.release()

    loops.run(main())


def waits_for_a_node(lock: Lock) -> bool:
    return [one.waits_for for one in lock.waiting()] == [zklock.WaitsFor.NODE]


def is_free(lock: Lock) -> bool:
    return not lock.is_held_in_process


async def acquire(lock: Lock) -> bool:
    """Acquire the lock for the task that runs this coroutine."""
    return await lock.acquire()


def test_cancelled_acquire_during_handover_leaves_no_hold(
    loops: Loops, server: ZooKeeper, path: str, inspector: Inspector
) -> None:
    """Cancel the acquire around the moment in which it succeeds."""

    async def main() -> None:
        client = await Client(server.address).connect()
        async with Client(server.address) as holder:
            lock, held = client.mutex(path), holder.mutex(path)
            won = 0
            for count in range(60):
                await held.acquire()
                task = asyncio.ensure_future(acquire(lock))
                await until(functools.partial(waits_for_a_node, lock))
                held.release_nowait()
                await turns(count // 2)
                if count == 59:
                    await until(task.done)  # however slow the server is, one acquire succeeds
                task.cancel()
                await asyncio.wait([task])
                if not task.cancelled():
                    # The task had ended before the cancellation. Only the end of the client releases its hold.
                    won += 1
                    await client.close()
                    client = await Client(server.address).connect()
                    lock = client.mutex(path)
                else:
                    assert is_free(lock)
                del task
                gc.collect()  # tracebacks of cancelled tasks refer to the lock object
                assert await held.acquire(timeout=60)
                await held.release()
            assert 0 < won < 60
            await until(lambda: inspector.nodes(path) == [])
        await client.close()

    gc.freeze()  # otherwise, each collection would visit all objects of pytest
    try:
        with pytest.warns(ResourceWarning, match="ended while it holds"):
            loops.run(main())
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("kind", KINDS)
def test_release(loops: Loops, server: ZooKeeper, path: str, inspector: Inspector, kind: str) -> None:
    async def main() -> None:
        async with Client(server.address) as client:
            lock = KINDS[kind](client, path)

            async def work() -> None:
                await lock.acquire()
                try:
                    begun.set()
                finally:
                    await lock.release()

            for count in range(20):
                begun = asyncio.Event()
                task = asyncio.ensure_future(work())
                await begun.wait()
                await turns(count // 2)
                task.cancel()
                await asyncio.wait([task])
                assert not lock.is_held_in_process
                await until(lambda: inspector.below(path) == [])

    loops.run(main())


def test_leases(loops: Loops, server: ZooKeeper, path: str, inspector: Inspector) -> None:
    async def main() -> None:
        async with Client(server.address) as client:
            pool = client.semaphore(path, 2)
            got: list[Leases] = []

            async def work() -> None:
                async with pool.acquire(2):
                    pass

            async def keep() -> None:
                got.append(await pool.acquire(2))

            async def check() -> None:
                async with pool.acquire(2, timeout=60):
                    pass

            async def undo() -> None:
                while got:
                    await got.pop().release()

            await at_every_point(work, check)
            await at_every_point(keep, check, undo)
            counted = client.semaphore(f"{path}-counted", count_path=f"{path}-count", initial=2)

            async def work_counted() -> None:
                async with counted.acquire():
                    pass

            await at_every_point(work_counted, check)
            await until(lambda: len(inspector.below(path)) == 0 and len(inspector.below(f"{path}-counted")) == 0)

    loops.run(main(), seconds=50)


def test_connect(loops: Loops, server: ZooKeeper) -> None:
    async def main() -> None:
        before = server.sessions()

        async def work() -> None:
            async with Client(server.address):
                pass

        async def check() -> None:
            await until(lambda: server.sessions() <= before)

        ended = count = 0
        while ended < 3:
            assert count < 1000, "it does not end"
            task = asyncio.ensure_future(work())
            await turns(count)
            task.cancel()
            await asyncio.wait([task])
            ended += not task.cancelled()
            await check()
            count += 3 + count // 20

    loops.run(main(), seconds=50)


def test_a_client_whose_connecting_was_cancelled_may_try_again(loops: Loops, own_server: ZooKeeper) -> None:
    async def main() -> None:
        client = Client(own_server.address)
        own_server.pause()
        task = asyncio.ensure_future(client.connect())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert client.state is zklock.ClientState.CONNECTING
        own_server.resume()
        async with client:
            assert client.state is zklock.ClientState.CONNECTED

    loops.run(main())


def test_close(loops: Loops, server: ZooKeeper, path: str, inspector: Inspector) -> None:
    async def main() -> None:
        for count in range(12):
            client = await Client(server.address).connect()
            lock = client.mutex(path)
            await lock.acquire()
            task = asyncio.ensure_future(client.close())
            await turns(count)
            task.cancel()
            await asyncio.wait([task])
            if count or not task.cancelled():
                assert client.state is zklock.ClientState.CLOSED
            await client.close()
            assert inspector.nodes(path) == []

    loops.run(main())


def test_questions(loops: Loops, server: ZooKeeper, path: str) -> None:
    async def main() -> None:
        async with Client(server.address) as client:
            await client.shared_count_set(path, 1)
            lock = client.mutex(f"{path}/lock")
            asks: list[Step] = [
                lock.participants,
                client.rwlock(f"{path}/rw").queue,
                lock.queue,
                client.semaphore(f"{path}/pool", 1).participants,
                lambda: client.shared_count_get(path),
                lambda: client.shared_count_set(path, 1),
                lambda: client.fence_check(f"{path}/lock", 1),
                lambda: client.revoke(f"{path}/missing"),
            ]
            for ask in asks:
                for count in range(8):
                    await cancel_after(ask(), count)
            assert await client.shared_count_get(path) == 1

    loops.run(main())


def test_cancelled_calls_end_at_once_while_the_server_is_frozen(loops: Loops) -> None:
    """A cancelled task ends at once, and so does a cancelled block. Only the end of its client waits."""

    async def main(server: StandaloneServer) -> None:
        # A request without an answer fails after a third of the session timeout.
        async with Client(server.address, session_timeout=40) as client, Client(server.address) as holder:
            held, lock = holder.mutex("/held"), client.mutex("/own")
            pool = client.semaphore("/pool", 2)
            await held.acquire()
            entered = asyncio.Event()

            async def block() -> None:
                async with lock, pool.acquire():
                    entered.set()
                    await asyncio.sleep(60)

            inside = asyncio.ensure_future(block())
            await entered.wait()
            leases = await pool.acquire()
            server.freeze(client)
            waits = [
                client.mutex("/held").acquire(),
                client.mutex("/free").acquire(),
                client.semaphore("/other", 1).acquire(),
                client.multi([client.mutex("/x"), client.semaphore_mutex("/y")]).acquire(),
                lock.participants(),
                client.shared_count_get("/count"),
                leases.release(),
            ]
            tasks = [asyncio.ensure_future(wait) for wait in waits]
            await asyncio.sleep(0.05)
            started = time.monotonic()
            for task in [inside, *tasks]:
                assert not task.done()
                task.cancel()
            await asyncio.wait([inside, *tasks])
            assert time.monotonic() - started < 5
            assert all(task.cancelled() for task in [inside, *tasks])
            assert not lock.is_held_in_process
            server.thaw(client)
            # All nodes are removed once the server answers again.
            for path in ("/own", "/free", "/x"):
                async with holder.mutex(path, timeout=60):
                    pass
            async with holder.semaphore("/pool", 2).acquire(2, timeout=60):
                pass
            await held.release()
            async with client.mutex("/held", timeout=60):
                pass

    with StandaloneServer() as server:
        loops.run(main(server))


def test_a_block_that_is_cancelled_twice(loops: Loops, server: ZooKeeper, path: str, inspector: Inspector) -> None:
    """The second cancellation comes during __aexit__."""

    async def main() -> None:
        async with Client(server.address) as client:
            lock = client.mutex(path)
            for count in range(10):
                entered = asyncio.Event()

                async def block(entered: asyncio.Event = entered) -> None:
                    async with lock:
                        entered.set()
                        await asyncio.sleep(0)

                task = asyncio.ensure_future(block())
                await entered.wait()
                for _ in range(count):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                assert not lock.is_held_in_process
                await until(lambda: inspector.nodes(path) == [])

    loops.run(main())


def test_a_coroutine_that_is_closed_in_a_block(
    loops: Loops, server: ZooKeeper, path: str, inspector: Inspector
) -> None:
    """__aexit__ cannot await anything in this case, and does not need to."""

    async def main() -> None:
        async with Client(server.address) as client:
            lock, pool = client.mutex(path), client.semaphore(f"{path}-pool", 1)

            async def block() -> AsyncIterator[str]:
                async with lock, pool.acquire() as leases:
                    yield leases.node_paths[0]

            generator = block()
            [node] = [await generator.__anext__()]
            assert inspector.below(f"{path}-pool") == [node]
            with pytest.raises(GeneratorExit):
                generator.athrow(GeneratorExit).send(None)
            assert not lock.is_held
            await until(lambda: inspector.nodes(path) == [] and inspector.below(f"{path}-pool") == [])

    loops.run(main())
