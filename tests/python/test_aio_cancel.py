"""A task of zklock.aio that is cancelled leaves no node and no hold, wherever it is, and goes at once."""

from __future__ import annotations

import asyncio
import functools
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest

import zklock
from conftest import Loops, Witness, until
from server import ZooKeeper
from zklock.aio import Client, Leases, Lock
from zklock.testing import StandaloneServer

Step = Callable[[], Coroutine[Any, Any, Any]]


async def turns(count: int) -> None:
    """So many turns of the loop. Some of them wait for a moment, or none would see an answer of the server."""
    for turn in range(count):
        await asyncio.sleep(0 if turn % 2 else 0.0002)


async def cancel_after(work: Coroutine[Any, Any, Any], count: int) -> bool:
    """True where it was cancelled before it ended; which it does within one turn of the loop, and not a server's."""
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


async def at_every_point(
    work: Callable[[], Coroutine[Any, Any, Any]],
    check: Callable[[], Awaitable[None]],
    undo: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Cancels it after 0, 1, 2... turns, until it ends by itself three times in a row, and looks each time."""
    ended = 0
    cancelled = 0
    for count in range(400):
        if await cancel_after(work(), count):
            ended, cancelled = 0, cancelled + 1
        else:
            ended += 1
            if undo is not None:
                await undo()
        await check()
        if ended == 3:
            break
    assert ended == 3
    assert cancelled > 1, "it was never under way"


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
def test_acquire_of_a_free_lock(loops: Loops, server: ZooKeeper, path: str, witness: Witness, kind: str) -> None:
    async def main() -> None:
        async with Client(server.address) as client, Client(server.address) as other:
            lock, again = KINDS[kind](client, path), KINDS[kind](other, path)

            async def work() -> None:
                async with lock:
                    pass

            async def check() -> None:
                assert not lock.is_held_in_process
                # Whoever comes next gets it as soon as the server knows.
                async with again:
                    assert again.is_held
                assert await lock.acquire(timeout=5)
                await lock.release()

            await at_every_point(work, check)
            await until(lambda: witness.below(path) == [])

    loops.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_acquire_of_a_lock_that_another_holds(
    loops: Loops, server: ZooKeeper, path: str, witness: Witness, kind: str
) -> None:
    async def main() -> None:
        async with Client(server.address) as client, Client(server.address) as holder:
            make = KINDS["write"] if kind == "read" else KINDS[kind]
            lock, held = KINDS[kind](client, path), make(holder, path)
            async with held:
                before = len(witness.below(path))
                for count in (0, 1, 2, 3, 5, 8, 13, 21, 34, 55):
                    assert await cancel_after(lock.acquire(), count)
                    assert not lock.waiting()
                await until(lambda: len(witness.below(path)) == before)
            assert await lock.acquire(timeout=5)
            await lock.release()

    loops.run(main())


def waits_for_a_node(lock: Lock) -> bool:
    return [one.waits_for for one in lock.waiting()] == [zklock.WaitsFor.NODE]


def test_acquire_while_it_is_handed_over(loops: Loops, server: ZooKeeper, path: str, witness: Witness) -> None:
    """The moments around the one in which it wins."""

    async def main() -> None:
        async with Client(server.address) as client, Client(server.address) as holder:
            lock, held = client.mutex(path), holder.mutex(path)
            won = 0
            for count in range(60):
                await held.acquire()
                task = asyncio.ensure_future(lock.acquire())
                await until(functools.partial(waits_for_a_node, lock))
                held.release_nowait()
                await turns(count // 2)
                task.cancel()
                await asyncio.wait([task])
                if not task.cancelled():
                    # It had ended: the hold is that of a task that is no more, and goes with its handle.
                    won += 1
                    lock = client.mutex(path)
                else:
                    assert not lock.is_held_in_process
                del task
                gc.collect()  # tracebacks of those that were cancelled refer to the handle
                assert await held.acquire(timeout=5)
                await held.release()
            assert 0 < won < 60
            await until(lambda: witness.nodes(path) == [])

    with pytest.warns(ResourceWarning, match="ended while it holds"):
        loops.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_release(loops: Loops, server: ZooKeeper, path: str, witness: Witness, kind: str) -> None:
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
                await until(lambda: witness.below(path) == [])

    loops.run(main())


def test_leases(loops: Loops, server: ZooKeeper, path: str, witness: Witness) -> None:
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
                async with pool.acquire(2, timeout=5):
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
            await until(lambda: len(witness.below(path)) == 0 and len(witness.below(f"{path}-counted")) == 0)

    loops.run(main())


def test_connect(loops: Loops, server: ZooKeeper) -> None:
    async def main() -> None:
        before = server.sessions()

        async def work() -> None:
            async with Client(server.address):
                pass

        async def check() -> None:
            await until(lambda: server.sessions() == before)

        ended = 0
        for count in range(0, 200, 3):
            task = asyncio.ensure_future(work())
            await turns(count)
            task.cancel()
            await asyncio.wait([task])
            ended += not task.cancelled()
            await check()
            if ended == 3:
                break
        assert ended == 3

    loops.run(main())


def test_a_client_whose_connecting_was_cancelled_may_try_again(loops: Loops, server: ZooKeeper) -> None:
    async def main() -> None:
        client = Client(server.address)
        task = asyncio.ensure_future(client.connect())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert client.state is zklock.ClientState.CONNECTING
        async with client:
            assert client.state is zklock.ClientState.CONNECTED

    loops.run(main())


def test_close(loops: Loops, server: ZooKeeper, path: str, witness: Witness) -> None:
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
            assert witness.nodes(path) == []

    loops.run(main())


def test_questions(loops: Loops, server: ZooKeeper, path: str) -> None:
    async def main() -> None:
        async with Client(server.address) as client:
            await client.set_count(path, 1)
            lock = client.mutex(f"{path}/lock")
            asks: list[Step] = [
                lock.participants,
                client.rwlock(f"{path}/rw").participants,
                client.semaphore(f"{path}/pool", 1).participants,
                lambda: client.get_count(path),
                lambda: client.set_count(path, 1),
                lambda: client.fence_check(f"{path}/lock", 1),
                lambda: client.revoke(f"{path}/missing"),
            ]
            for ask in asks:
                for count in range(8):
                    await cancel_after(ask(), count)
            assert await client.get_count(path) == 1

    loops.run(main())


def test_a_server_that_does_not_answer_delays_nobody(loops: Loops) -> None:
    """Who is cancelled goes at once, and so does a block that is cancelled: only the end of its client waits."""

    async def main(server: StandaloneServer) -> None:
        async with Client(server.address, session_timeout=20) as client, Client(server.address) as holder:
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
                client.get_count("/count"),
                leases.release(),
            ]
            tasks = [asyncio.ensure_future(wait) for wait in waits]
            await asyncio.sleep(0.05)
            started = time.monotonic()
            for task in [inside, *tasks]:
                assert not task.done()
                task.cancel()
            await asyncio.wait([inside, *tasks])
            assert time.monotonic() - started < 0.5
            assert all(task.cancelled() for task in [inside, *tasks])
            assert not lock.is_held_in_process
            server.thaw(client)
            # All of it goes once the server answers again.
            for path in ("/own", "/free", "/x"):
                async with holder.mutex(path, timeout=10):
                    pass
            async with holder.semaphore("/pool", 2).acquire(2, timeout=10):
                pass
            await held.release()
            async with client.mutex("/held", timeout=10):
                pass

    with StandaloneServer() as server:
        loops.run(main(server))


def test_a_block_that_is_cancelled_twice(loops: Loops, server: ZooKeeper, path: str, witness: Witness) -> None:
    """The second time in its __aexit__."""

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
                await until(lambda: witness.nodes(path) == [])

    loops.run(main())


def test_a_coroutine_that_is_closed_in_a_block(loops: Loops, server: ZooKeeper, path: str, witness: Witness) -> None:
    """It can't await anything there, and need not."""

    async def main() -> None:
        async with Client(server.address) as client:
            lock, pool = client.mutex(path), client.semaphore(f"{path}-pool", 1)

            async def block() -> AsyncIterator[str]:
                async with lock, pool.acquire() as leases:
                    yield leases.node_paths[0]

            generator = block()
            [node] = [await generator.__anext__()]
            assert witness.below(f"{path}-pool") == [node]
            with pytest.raises(GeneratorExit):
                generator.athrow(GeneratorExit).send(None)
            assert not lock.is_held
            await until(lambda: witness.nodes(path) == [] and witness.below(f"{path}-pool") == [])

    loops.run(main())
