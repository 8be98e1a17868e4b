"""How a task notices the loss of its hold."""

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
from conftest import Inspector, Loops, until
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
            lost = asyncio.ensure_future(held.wait_lost())
            await asyncio.sleep(0.01)
            server.expire(client)
            assert await asyncio.wait_for(lost, 60) is True
            assert not held.is_held
            assert await held.wait_lost() is True
            assert await held.wait_lost(timeout=0) is True
            await until(lambda: held.state is LockState.LOST)
            with pytest.raises(zklock.LockLost):
                async with held.while_held():
                    pytest.fail("lost")
            assert LockState.LOST in [event.state for event in events if isinstance(event, zklock.LockEvent)]
            with pytest.raises(zklock.LockLost):
                await held.release()
            # The lock works again in the next session.
            await (await take(client)).release()

    with StandaloneServer() as server:
        loops.run(main(server))


@pytest.mark.parametrize("take", KINDS)
def test_release_ends_wait_lost_with_not_owner(loops: Loops, take: Callable[[Client], Awaitable[Held]]) -> None:
    async def main(server: StandaloneServer) -> None:
        async with Client(server.address) as client:
            held = await take(client)
            lost = [asyncio.ensure_future(held.wait_lost()) for _ in range(4)]
            await asyncio.sleep(0.01)
            lost[0].cancel()
            await held.release()
            for one in lost[1:]:
                with pytest.raises(zklock.NotOwner, match=r"released|given back"):
                    await one
            with pytest.raises(zklock.NotOwner):
                await held.wait_lost()

    with StandaloneServer() as server:
        loops.run(main(server))


@pytest.mark.parametrize("take", KINDS)
def test_while_held_block_is_cancelled_on_loss(loops: Loops, take: Callable[[Client], Awaitable[Held]]) -> None:
    async def main(server: StandaloneServer) -> None:
        async with Client(server.address) as client:
            held = await take(client)
            entered = asyncio.get_running_loop().call_later(0.05, server.expire, client)
            cancelled = False
            with pytest.raises(zklock.LockLost):
                async with held.while_held():
                    try:
                        await asyncio.sleep(3600)
                    except asyncio.CancelledError:
                        cancelled = True
                        raise
            assert cancelled
            assert entered.when() > 0
            # Only this block cancelled the task.
            await asyncio.sleep(0)
            if sys.version_info >= (3, 11):
                task = asyncio.current_task()
                assert task is not None
                assert task.cancelling() == 0

    with StandaloneServer() as server:
        loops.run(main(server))


def test_a_lease_that_ends_where_no_server_answers(loops: Loops) -> None:
    """The lock may not be lost for good, but other clients may hold it from now on."""

    async def main(server: StandaloneServer) -> None:
        async with Client(server.address, session_timeout=3) as client:
            lock = client.mutex("/a")
            await lock.acquire()
            server.freeze(client)
            started = time.monotonic()
            with pytest.raises(zklock.LockLost, match=r"the session lease has ended|lost"):
                async with lock.while_held():
                    await asyncio.sleep(3600)
            assert 0.1 < time.monotonic() - started < 5
            assert not lock.is_held
            server.thaw(client)

    with StandaloneServer() as server:
        loops.run(main(server))


@pytest.mark.parametrize("take", KINDS)
def test_loss_during_aexit_is_reported_once(loops: Loops, take: Callable[[Client], Awaitable[Held]]) -> None:
    """Only this block raises LockLost. Nothing after it is cancelled."""

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
            # All scheduled calls have run after these turns.
            for _ in range(3):
                await asyncio.sleep(0)

    with StandaloneServer() as server:
        loops.run(main(server))


class SimulatedHold:
    """A hold whose loss and whose wait for the loss are separate."""

    def __init__(self) -> None:
        self.wait: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.safe = True
        self.error: zklock.Error | None = None

    def start_wait(self) -> asyncio.Future[bool]:
        return self.wait

    def is_safe(self) -> bool:
        return self.safe

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def loss_error(self) -> zklock.LockLost:
        return zklock.LockLost("lost")

    def quoted_paths(self) -> str:
        return "/a"


def test_block_that_ends_before_its_wait_ends_reports_the_loss(loops: Loops) -> None:
    async def main() -> None:
        lost, uncertain, released = SimulatedHold(), SimulatedHold(), SimulatedHold()
        lost.error = zklock.LockLost("lost")
        uncertain.safe = released.safe = False
        released.error = zklock.NotOwner("released")
        for held in (lost, uncertain):
            with pytest.raises(zklock.LockLost):
                async with WhileHeld(held):
                    pass
        async with WhileHeld(released):
            pass

    loops.run(main())


def test_loss_and_another_exception_in_a_block_keep_both(loops: Loops) -> None:
    async def main() -> None:
        held = SimulatedHold()
        with pytest.raises(KeyError):
            async with WhileHeld(held):
                held.wait.set_result(True)
                raise KeyError
        held = SimulatedHold()
        with pytest.raises(zklock.LockLost):
            async with WhileHeld(held):
                held.wait.set_result(True)
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(3600)
        held = SimulatedHold()
        async with WhileHeld(held):
            held.wait.set_result(False)
            await asyncio.sleep(0)
        inside = SimulatedHold()

        async def work() -> None:
            async with WhileHeld(inside):
                await asyncio.sleep(3600)

        # The task is cancelled before the block cancels it, so the block sends no second cancellation.
        task = asyncio.ensure_future(work())
        await asyncio.sleep(0)
        task.cancel()
        inside.wait.set_result(True)
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
    """The hold was not released by its owner, so the work under the lock must stop."""

    async def main(server: StandaloneServer) -> None:
        client = await Client(server.address, on_event=(lambda _: None) if is_told else None).connect()
        held = await take(client)
        lost = [asyncio.ensure_future(held.wait_lost()) for _ in range(2)]
        inside = asyncio.Event()
        # The hold belongs to the task that calls while_held(), and not to the task that enters the block.
        block = held.while_held()

        async def work() -> None:
            async with block:
                inside.set()
                await asyncio.sleep(3600)

        task = asyncio.ensure_future(work())
        await inside.wait()
        closing = asyncio.ensure_future(client.close())
        with pytest.raises(zklock.LockLost, match="closed"):
            await asyncio.wait_for(task, 60)
        for one in lost:
            with pytest.raises(zklock.ClientClosed):
                await asyncio.wait_for(one, 60)
        with pytest.raises(zklock.ClientClosed):
            await held.wait_lost()
        await closing

    with StandaloneServer() as server:
        loops.run(main(server))


def test_task_that_ends_with_a_lost_hold_frees_the_handle(loops: Loops) -> None:
    """A lost hold needs no release, and the lock object can be used again."""

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
                assert await lock.acquire(timeout=60)
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
                    await asyncio.sleep(3600)

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
                with pytest.raises(RuntimeError, match="only one block"):
                    await block.__aenter__()
            await asyncio.sleep(0)
            assert client._bridge is not None
            assert not client._bridge._completions

    with StandaloneServer() as server:
        loops.run(main(server))


def test_block_exit_after_loss_raises_lock_lost(
    loops: Loops, server: ZooKeeper, path: str, inspector: Inspector
) -> None:
    async def main() -> None:
        async with Client(server.address) as client:
            lock = client.mutex(path)
            with pytest.raises(zklock.LockLost, match="deleted"):
                async with lock:
                    inspector.kazoo.delete(lock.node_path)
                    await until(lambda: not lock.is_held)
                    assert lock.state is LockState.LOST
                    with pytest.raises(zklock.LockLost):
                        await lock.acquire()
            assert lock.state is LockState.FREE
            error = KeyError("mine")
            with pytest.raises(KeyError) as raised:
                async with lock:
                    inspector.kazoo.delete(lock.node_path)
                    await until(lambda: not lock.is_held)
                    raise error
            assert raised.value is error
            if hasattr(error, "add_note"):
                assert "releasing the lock" in error.__notes__[0]
                assert "another client or an operator deleted" in error.__notes__[0]
            else:
                assert isinstance(error.__context__, zklock.LockLost)
            with pytest.raises(zklock.LockLost):
                async with client.semaphore(f"{path}-pool", 2).acquire() as leases:
                    inspector.kazoo.delete(leases.node_paths[0])
                    assert await leases.wait_lost() is True

    loops.run(main())


def test_faults(loops: Loops) -> None:
    async def main(server: StandaloneServer) -> None:
        async with Client(server.address, session_timeout=2) as client:
            server.lose_reply(Op.CREATE2, client)
            async with client.mutex("/a", timeout=60) as lock:
                assert len(await lock.participants()) == 1
                server.cut(client)
                assert lock.is_held
                await asyncio.sleep(0.1)
            server.delay(0.2, client)
            started = time.monotonic()
            async with client.mutex("/b", timeout=60):
                pass
            assert time.monotonic() - started > 0.2
            server.delay(0, client)
            server.expire(client.session_id)
            async with client.mutex("/c", timeout=60):
                pass
        with pytest.raises(ValueError, match="the client has no session now"):
            server.expire(client)

    with StandaloneServer() as server:
        loops.run(main(server))
