"""The owner of a hold in asyncio: the task that makes the call, whichever task runs the coroutine."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from unittest import mock

import pytest

import zklock
import zklock.aio
from conftest import Inspector, Loops
from server import ZooKeeper
from zklock.aio import Client


def test_the_task_that_calls_is_the_owner(loops: Loops, server: ZooKeeper, path: str, inspector: Inspector) -> None:
    async def main() -> None:
        async with Client(server.address) as client:
            lock = client.mutex(path)
            for wrap in (asyncio.shield, asyncio.create_task, lambda coroutine: asyncio.wait_for(coroutine, 60)):
                assert await wrap(lock.acquire())
                assert lock.is_held
                await wrap(lock.release())
                assert not lock.is_held
            locks = [client.mutex(f"{path}-{number}") for number in range(3)]
            assert await asyncio.gather(*(one.acquire() for one in locks)) == [True] * 3
            assert all(one.is_held for one in locks)
            await asyncio.gather(*(one.release() for one in locks))
            async with await asyncio.shield(lock.hold()):
                assert lock.is_held
            assert inspector.nodes(path) == []

    loops.run(main())


def test_a_call_outside_of_a_task_belongs_to_the_task_that_runs_it(loops: Loops, server: ZooKeeper, path: str) -> None:
    async def main() -> None:
        async with Client(server.address) as client:
            lock, loop = client.mutex(path), asyncio.get_running_loop()
            made: asyncio.Future[asyncio.Task[bool]] = loop.create_future()
            loop.call_soon(lambda: made.set_result(loop.create_task(lock.acquire())))
            assert await (await made)
            await asyncio.sleep(0)
            assert not lock.is_held
            assert lock.is_held_in_process

    with pytest.warns(ResourceWarning, match="ended while it holds"):
        loops.run(main())


def test_tools_recognize_the_coroutine_functions(loops: Loops, server: ZooKeeper, path: str) -> None:
    async def main() -> None:
        async with Client(server.address) as client:
            lock = client.mutex(path)
            hold = await lock.hold()
            for function in (
                lock.acquire,
                lock.release,
                lock.wait_lost,
                lock.participants,
                hold.release,
                hold.wait_lost,
                zklock.aio.Lock.acquire,
                zklock.aio.Mutex.release,
            ):
                assert asyncio.iscoroutinefunction(function), function
                assert inspect.iscoroutinefunction(function), function
                assert function.__doc__
                assert function.__name__ in ("acquire", "release", "wait_lost", "participants")
            assert str(inspect.signature(lock.release)) == "() -> 'Coroutine[Any, Any, None]'"
            assert list(inspect.signature(lock.acquire).parameters) == ["timeout"]
            await hold.release()
            assert await zklock.aio.Lock.acquire(lock, timeout=0)
            await zklock.aio.Lock.release(lock)

    loops.run(main())


def test_mocks_of_a_lock_can_be_awaited(loops: Loops) -> None:
    async def main() -> None:
        for fake in (mock.create_autospec(zklock.aio.Mutex, instance=True), mock.AsyncMock(spec=zklock.aio.Mutex)):
            fake.acquire.return_value = False
            assert await fake.acquire(timeout=1) is False
            await fake.release()
            fake.release.assert_awaited_once_with()
        with pytest.raises(TypeError):
            await mock.create_autospec(zklock.aio.Mutex, instance=True).acquire(blocking=False)

    loops.run(main())


def test_a_block_may_end_in_another_task_when_its_task_has_ended(
    loops: Loops, server: ZooKeeper, path: str, inspector: Inspector
) -> None:
    """A plugin runs the two halves of a fixture in two tasks."""

    async def fixture(lock: zklock.aio.Mutex) -> AsyncIterator[int]:
        async with lock:
            yield lock.fencing_token

    async def first_half(generator: AsyncIterator[int]) -> int:
        return await generator.__anext__()

    async def second_half(generator: AsyncIterator[int]) -> None:
        with pytest.raises(StopAsyncIteration):
            await generator.__anext__()

    async def main() -> None:
        async with Client(server.address) as client:
            lock = client.mutex(path)
            generator = fixture(lock)
            token = await asyncio.create_task(first_half(generator))
            assert not lock.is_held
            assert lock.participants is not None
            assert token > 0
            await asyncio.create_task(second_half(generator))
            assert inspector.nodes(path) == []
            # The block of a task that still runs belongs to this task.
            generator = fixture(lock)
            await generator.__anext__()
            with pytest.raises(zklock.NotOwner):
                await asyncio.create_task(second_half(generator))
            assert lock.is_held
            await lock.release()

    loops.run(main())


def test_a_client_whose_loop_has_ended_can_be_closed(server: ZooKeeper, path: str, inspector: Inspector) -> None:
    made = []

    async def leaves_it_open() -> None:
        client = await Client(server.address).connect()
        made.append(client)
        assert await client.mutex(path).acquire()

    async def closes_it() -> None:
        await made[0].close()
        await made[0].close()
        assert made[0].state is zklock.ClientState.CLOSED

    with pytest.warns(ResourceWarning, match="ended while it holds"):
        asyncio.run(leaves_it_open())
    assert len(inspector.nodes(path)) == 1
    asyncio.run(closes_it())
    assert inspector.nodes(path) == []
