"""How a task hears that what it holds is lost."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
import warnings
from collections.abc import Awaitable, Callable
from typing import Any, Union

import pytest

import zklock
from conftest import Loops, Witness, until
from server import ZooKeeper
from zklock import LockState
from zklock.aio import Client, Leases, Lock
from zklock.aio._loss import WhileHeld
from zklock.testing import Op, StandaloneServer

Held = Union[Lock, Leases]


async def mutex(client: Client) -> Held:
    lock = client.mutex("/a")
    await lock.acquire()
    return lock


async def multi(client: Client) -> Held:
    lock = client.multi([client.mutex("/a"), client.rwlock("/b").read, client.semaphore_mutex("/c")])
    await lock.acquire()
    return lock


async def leases(client: Client) -> Held:
    return await client.semaphore("/pool", 3).acquire(2)


KINDS: list[Callable[[Client], Awaitable[Held]]] = [mutex, multi, leases]


@pytest.mark.parametrize("take", KINDS)
def test_a_session_that_expires(loops: Loops, take: Callable[[Client], Awaitable[Held]]) -> None:
    async def main(server: StandaloneServer) -> None:
        events: list[Any] = []
        async with Client(server.address, on_event=events.append) as client:
            held = await take(client)
            lost = asyncio.ensure_future(held.lost())
            await asyncio.sleep(0.01)
            server.expire(client)
            assert await asyncio.wait_for(lost, 5) is True
            assert not held.is_held
            assert await held.lost() is True
            await until(lambda: held.state is LockState.LOST)
            with pytest.raises(zklock.LockLost):
                async with held.while_held():
                    pytest.fail("lost")
            assert LockState.LOST in [event.state for event in events if isinstance(event, zklock.LockEvent)]
            with pytest.raises(zklock.LockLost):
                await held.release()
            # All is well again in the next session.
            await (await take(client)).release()

    with StandaloneServer() as server:
        loops.run(main(server))


@pytest.mark.parametrize("take", KINDS)
def test_one_that_is_given_back(loops: Loops, take: Callable[[Client], Awaitable[Held]]) -> None:
    async def main(server: StandaloneServer) -> None:
        async with Client(server.address) as client:
            held = await take(client)
            lost = [asyncio.ensure_future(held.lost()) for _ in range(3)]
            await asyncio.sleep(0.01)
            lost[0].cancel()
            await held.release()
            assert await asyncio.gather(*lost[1:]) == [False, False]
            with pytest.raises(zklock.NotOwner):
                await held.lost()

    with StandaloneServer() as server:
        loops.run(main(server))


@pytest.mark.parametrize("take", KINDS)
def test_a_block_is_cancelled_when_it_is_lost(loops: Loops, take: Callable[[Client], Awaitable[Held]]) -> None:
    async def main(server: StandaloneServer) -> None:
        async with Client(server.address) as client:
            held = await take(client)
            entered = asyncio.get_running_loop().call_later(0.05, server.expire, client)
            cancelled = False
            with pytest.raises(zklock.LockLost):
                async with held.while_held():
                    try:
                        await asyncio.sleep(20)
                    except asyncio.CancelledError:
                        cancelled = True
                        raise
            assert cancelled
            assert entered.when() > 0
            # It was this block's cancellation, and nobody else's.
            await asyncio.sleep(0)
            if sys.version_info >= (3, 11):
                task = asyncio.current_task()
                assert task is not None
                assert task.cancelling() == 0

    with StandaloneServer() as server:
        loops.run(main(server))


def test_a_lease_that_ends_where_no_server_answers(loops: Loops) -> None:
    """It need not be lost for good: others may have it from now on."""

    async def main(server: StandaloneServer) -> None:
        async with Client(server.address, session_timeout=1) as client:
            lock = client.mutex("/a")
            await lock.acquire()
            server.freeze(client)
            started = time.monotonic()
            with pytest.raises(zklock.LockLost, match=r"its lease is over|lost"):
                async with lock.while_held():
                    await asyncio.sleep(20)
            assert 0.1 < time.monotonic() - started < 1.5
            assert not lock.is_held
            server.thaw(client)

    with StandaloneServer() as server:
        loops.run(main(server))


@pytest.mark.parametrize("take", KINDS)
def test_a_block_that_is_left_just_when_it_is_lost(loops: Loops, take: Callable[[Client], Awaitable[Held]]) -> None:
    """It is this block that says so, and nothing after it is cancelled."""

    async def main(server: StandaloneServer) -> None:
        told = False

        def on_event(event: zklock.Event) -> None:
            nonlocal told
            told = told or (
                isinstance(event, zklock.LockEvent) and event.state in (LockState.LOST, LockState.UNCERTAIN)
            )

        async with Client(server.address, on_event=on_event) as client:
            held = await take(client)
            server.expire(client)
            with pytest.raises(zklock.LockLost):
                async with held.while_held():
                    while not told:
                        await asyncio.sleep(0)
            # Whatever was to be called has been called after this.
            for _ in range(3):
                await asyncio.sleep(0)

    with StandaloneServer() as server:
        loops.run(main(server))


def test_a_loss_that_comes_with_another_end_of_a_block(loops: Loops) -> None:
    class Held:
        def __init__(self) -> None:
            self.watch: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def _watch(self) -> asyncio.Future[bool]:
            return self.watch

        def _loss(self) -> zklock.LockLost:
            return zklock.LockLost("lost")

    async def main() -> None:
        held = Held()
        with pytest.raises(KeyError):
            async with WhileHeld(held):
                held.watch.set_result(True)
                raise KeyError
        held = Held()
        with pytest.raises(zklock.LockLost):
            async with WhileHeld(held):
                held.watch.set_result(True)
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(20)
        held = Held()
        async with WhileHeld(held):
            held.watch.set_result(False)
            await asyncio.sleep(0)
        inside = Held()

        async def work() -> None:
            async with WhileHeld(inside):
                await asyncio.sleep(20)

        # The cancellation of another comes before the block's, which is not sent any more.
        task = asyncio.ensure_future(work())
        await asyncio.sleep(0)
        task.cancel()
        inside.watch.set_result(True)
        with pytest.raises(asyncio.CancelledError if sys.version_info >= (3, 11) else BaseException):
            await task
        await asyncio.sleep(0)
        if sys.version_info >= (3, 11):
            current = asyncio.current_task()
            assert current is not None
            assert current.cancelling() == 0

    loops.run(main())


@pytest.mark.parametrize("is_told", [False, True])
@pytest.mark.parametrize("take", KINDS)
def test_a_client_that_is_closed_by_another_task(
    loops: Loops, take: Callable[[Client], Awaitable[Held]], is_told: bool
) -> None:
    """Nobody gave it back: who works under the lock is to stop."""

    async def main(server: StandaloneServer) -> None:
        client = await Client(server.address, on_event=(lambda _: None) if is_told else None).connect()
        held = await take(client)
        lost = [asyncio.ensure_future(held.lost()) for _ in range(2)]
        inside = asyncio.Event()

        async def work() -> None:
            async with held.while_held():
                inside.set()
                await asyncio.sleep(20)

        task = asyncio.ensure_future(work())
        await inside.wait()
        closing = asyncio.ensure_future(client.close())
        with pytest.raises(zklock.LockLost, match="closed"):
            await asyncio.wait_for(task, 5)
        assert await asyncio.wait_for(asyncio.gather(*lost), 5) == [True, True]
        with pytest.raises(zklock.ClientClosed):
            await held.lost()
        await closing

    with StandaloneServer() as server:
        loops.run(main(server))


def test_a_task_that_ends_with_what_is_lost(loops: Loops) -> None:
    """It leaves nothing that somebody would have to release, and the handle is as if it had."""

    async def main(server: StandaloneServer) -> None:
        async with Client(server.address) as client:
            mutex = client.mutex("/a")
            many = client.multi([client.mutex("/b"), client.mutex("/c"), client.semaphore_mutex("/d")])

            async def work() -> None:
                for lock in (mutex, mutex, many, many.locks[0]):
                    await lock.acquire()
                server.expire(client)
                await until(lambda: {mutex.state, *(lock.state for lock in many.locks)} == {LockState.LOST})

            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                await asyncio.create_task(work())
                await asyncio.sleep(0)
            assert [str(one.message) for one in warned if one.category is ResourceWarning] == []
            assert [lock.state for lock in (mutex, *many.locks[:2])] == [LockState.FREE] * 3
            for lock in (mutex, many.locks[0], many.locks[1]):
                assert await lock.acquire(timeout=5)
                await lock.release()

    with StandaloneServer() as server:
        loops.run(main(server))


def test_a_block_that_is_cancelled_by_another(loops: Loops) -> None:
    async def main(server: StandaloneServer) -> None:
        async with Client(server.address) as client:
            lock = client.mutex("/a")
            inside = asyncio.Event()

            async def work() -> None:
                async with lock, lock.while_held():
                    inside.set()
                    await asyncio.sleep(20)

            task = asyncio.ensure_future(work())
            await inside.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert lock.state is LockState.FREE
            async with lock, lock.while_held():
                await asyncio.sleep(0)
            with pytest.raises(KeyError):
                async with lock, lock.while_held():
                    raise KeyError
            with pytest.raises(zklock.NotOwner):
                async with lock.while_held():
                    pytest.fail("not held")
            async with lock:
                block = lock.while_held()
                async with block:
                    pass
                with pytest.raises(RuntimeError, match="for one block"):
                    await block.__aenter__()
            await asyncio.sleep(0)
            assert client._post is not None
            assert not client._post._watches

    with StandaloneServer() as server:
        loops.run(main(server))


def test_the_end_of_a_block_says_so(loops: Loops, server: ZooKeeper, path: str, witness: Witness) -> None:
    async def main() -> None:
        async with Client(server.address) as client:
            lock = client.mutex(path)
            with pytest.raises(zklock.LockLost, match="deleted"):
                async with lock:
                    witness.kazoo.delete(lock.node_path)
                    await until(lambda: not lock.is_held)
                    assert lock.state is LockState.LOST
                    with pytest.raises(zklock.LockLost):
                        await lock.acquire()
            assert lock.state is LockState.FREE
            error = KeyError("mine")
            with pytest.raises(KeyError) as raised:
                async with lock:
                    witness.kazoo.delete(lock.node_path)
                    await until(lambda: not lock.is_held)
                    raise error
            assert raised.value is error
            if hasattr(error, "add_note"):
                assert "releasing the lock" in error.__notes__[0]
                assert "deleted by somebody else" in error.__notes__[0]
            else:
                assert isinstance(error.__context__, zklock.LockLost)
            with pytest.raises(zklock.LockLost):
                async with client.semaphore(f"{path}-pool", 2).acquire() as leases:
                    witness.kazoo.delete(leases.node_paths[0])
                    assert await leases.lost() is True

    loops.run(main())


def test_faults(loops: Loops) -> None:
    async def main(server: StandaloneServer) -> None:
        async with Client(server.address, session_timeout=2) as client:
            server.lose_reply(Op.CREATE2, client)
            async with client.mutex("/a", timeout=5) as lock:
                assert len(await lock.participants()) == 1
                server.cut(client)
                assert lock.is_held
                await asyncio.sleep(0.1)
            server.delay(0.2, client)
            started = time.monotonic()
            async with client.mutex("/b", timeout=5):
                pass
            assert time.monotonic() - started > 0.2
            server.delay(0, client)
            server.expire(client.session_id)
            async with client.mutex("/c", timeout=5):
                pass
        with pytest.raises(ValueError, match="the client has no session now"):
            server.expire(client)

    with StandaloneServer() as server:
        loops.run(main(server))
