"""Tests of zklock.aio in one process, on the loops of asyncio and of uvloop."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import pickle
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import zklock
from conftest import SLACK, Inspector, Loops, Program, Waiter, until
from server import ZooKeeper
from zklock import ClientState, LockState
from zklock.aio import Client


def test_aio_is_imported_lazily(program: Callable[..., Program]) -> None:
    without = "import sys, zklock.testing; assert 'asyncio' not in sys.modules and 'aio' in dir(zklock)"
    assert program(without).ends() == 0
    assert program(f"{without}; assert zklock.aio.Client.__module__ == 'zklock.aio'").ends() == 0
    with pytest.raises(AttributeError, match="'zklock' has no attribute 'aoi'"):
        zklock.aoi  # noqa: B018


def test_acquire_and_release(loops: Loops, server: ZooKeeper, path: str, inspector: Inspector) -> None:
    async def main() -> None:
        async with Client(server.address) as client:
            lock = client.mutex(path)
            assert lock.path == path
            assert (lock.is_held, lock.is_held_in_process, lock.state, lock.remaining) == (
                False,
                False,
                LockState.FREE,
                0.0,
            )
            assert await lock.acquire() is True
            assert (lock.is_held, lock.is_held_in_process, lock.state) == (True, True, LockState.HELD)
            assert 0 < lock.remaining <= 10
            [node] = inspector.nodes(path)
            assert (lock.node_path, lock.node_paths) == (node, [node])
            assert lock.fencing_token == inspector.kazoo.get(node)[1].czxid
            assert lock.fencing_pass == 0
            await lock.release()
            assert inspector.nodes(path) == []
            assert not lock.is_held
            async with lock as held:
                assert held is lock
                assert lock.is_held
                assert lock.acquire(timeout=0).send  # a coroutine
            assert lock.state is LockState.FREE

    with pytest.warns(RuntimeWarning, match="never awaited"):
        loops.run(main())


def test_every_lock_is_like_a_lock(loops: Loops, server: ZooKeeper, path: str) -> None:
    async def main() -> None:
        async with Client(server.address) as client:
            rwlock = client.rwlock(path)
            for lock in (client.mutex(path), client.semaphore_mutex(path), rwlock.read, client.multi([path])):
                assert isinstance(lock, zklock.aio.LockLike)
                assert not isinstance(lock, zklock.LockLike)
            for other in (client, rwlock, client.semaphore(path, 1), asyncio.Lock(), None):
                assert not isinstance(other, zklock.aio.LockLike)

    loops.run(main())


def test_a_new_server_list(loops: Loops, server: ZooKeeper, path: str) -> None:
    async def main() -> None:
        async with Client(server.address) as client, client.mutex(path) as lock:
            client.set_servers(f"{server.address},{server.address}")
            assert f"'{server.address},{server.address}'" in repr(client)
            with pytest.raises(ValueError, match='has the chroot "/x"'):
                client.set_servers("h:2181/x")
            assert lock.is_held

    loops.run(main())


def test_the_holder_is_the_task(loops: Loops, server: ZooKeeper, path: str, inspector: Inspector) -> None:
    async def other(lock: zklock.aio.Mutex) -> None:
        """Check that the properties do not describe the hold of another task."""
        assert (lock.is_held, lock.state, lock.remaining) == (False, LockState.FREE, 0.0)
        for question in ("fencing_token", "fencing_pass", "node_path", "node_paths"):
            with pytest.raises(zklock.NotOwner):
                getattr(lock, question)
        with pytest.raises(zklock.NotOwner):
            await lock.wait_lost(timeout=0)
        assert (lock.is_held_in_process, lock.state_in_process) == (True, LockState.HELD)
        for wrong in (lock.release, lock.release_nowait):
            with pytest.raises(zklock.NotOwner):
                result = wrong()
                assert result is not None
                await result
        assert await lock.acquire(timeout=0) is False
        assert await lock.acquire(timeout=1) is False

    async def main() -> None:
        async with Client(server.address) as client:
            lock = client.mutex(path)
            async with lock, lock:
                token = lock.fencing_token
                assert await lock.acquire(timeout=0)
                assert len(inspector.nodes(path)) == 1
                assert lock.fencing_token == token
                await lock.release()
                await asyncio.create_task(other(lock))
                with pytest.raises(zklock.Deadlock):
                    await client.mutex(path).acquire()
                assert lock.is_held
            with pytest.raises(zklock.NotOwner, match=path):
                await lock.release()
            # A callback runs outside of tasks.
            async with lock:
                seen = asyncio.get_running_loop().create_future()
                asyncio.get_running_loop().call_soon(lambda: seen.set_result((lock.is_held, lock.state)))
                assert await seen == (False, LockState.FREE)
            assert lock.state_in_process is LockState.FREE

    loops.run(main())


def test_tasks_exclude_each_other(loops: Loops, server: ZooKeeper, path: str, inspector: Inspector) -> None:
    inside: list[int] = []
    crowds: list[int] = []
    tokens: list[int] = []

    async def work(lock: zklock.aio.Mutex, number: int) -> None:
        for _ in range(10):
            async with lock:
                inside.append(number)
                crowds.append(len(inside))
                tokens.append(lock.fencing_token)
                await asyncio.sleep(0)
                inside.remove(number)

    async def main() -> None:
        async with Client(server.address) as client, Client(server.address) as other:
            locks = [client.mutex(path), client.mutex(path), other.mutex(path)]
            await asyncio.gather(*(work(lock, number) for number, lock in enumerate(locks)))

    loops.run(main())
    assert crowds == [1] * 30
    assert tokens == sorted(set(tokens))
    assert inspector.nodes(path) == []


def test_a_thousand_tasks_on_one_client(loops: Loops, server: ZooKeeper, path: str, inspector: Inspector) -> None:
    inside: set[str] = set()
    turns: list[int] = []

    async def work(client: Client, number: int) -> None:
        place = f"{path}/{number % 10}"
        async with client.mutex(place, timeout=60):
            assert place not in inside
            inside.add(place)
            await asyncio.sleep(0)
            inside.remove(place)
            turns.append(number)

    async def main() -> None:
        async with Client(server.address) as client:
            before = descriptors()
            tasks = [asyncio.ensure_future(work(client, number)) for number in range(1000)]
            while not all(task.done() for task in tasks):
                assert descriptors() <= before
                await asyncio.sleep(0.01)
            await asyncio.gather(*tasks)

    loops.run(main())
    assert sorted(turns) == list(range(1000))
    assert inspector.below(path) == []


def descriptors() -> int:
    from pathlib import Path

    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.filterwarnings("ignore:task .* ended while it holds:ResourceWarning")
def test_wait_for_acquires_for_its_caller_only_if_it_receives_the_call_itself(
    loops: Loops, server: ZooKeeper, path: str
) -> None:
    async def main() -> None:
        async with Client(server.address) as client:
            lock = client.mutex(path)

            async def work() -> bool:
                return await lock.acquire()

            for call in (lock.acquire, lock.hold):
                held = await asyncio.wait_for(call(), 60)
                assert lock.is_held
                await asyncio.wait_for(lock.release(), 60)
                assert not lock.is_held_in_process
                del held
            # Before Python 3.12, wait_for() runs its coroutine in a new task.
            assert await asyncio.wait_for(work(), 60)
            assert lock.is_held_in_process
            assert lock.is_held == (sys.version_info >= (3, 12))

    loops.run(main())


def test_waits_with_the_tools_of_asyncio(loops: Loops, server: ZooKeeper, path: str, inspector: Inspector) -> None:
    async def main() -> None:
        async with Client(server.address) as client, Client(server.address) as other:
            lock, blocked = client.mutex(path), other.mutex(path)
            # The hold belongs to the task that waits, even if Python runs the coroutine in another task.
            assert await asyncio.wait_for(lock.acquire(), 60)
            assert lock.is_held
            assert await asyncio.wait_for(lock.acquire(), 60)
            await asyncio.wait_for(lock.release(), 60)
            assert lock.is_held
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(blocked.acquire(), 0.1)
            await until(lambda: len(inspector.nodes(path)) == 1)
            if sys.version_info >= (3, 11):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1), blocked:
                        pytest.fail("two holders")
                await until(lambda: len(inspector.nodes(path)) == 1)
                with pytest.raises(ExceptionGroup):  # noqa: F821
                    async with asyncio.TaskGroup() as group:
                        group.create_task(blocked.acquire())
                        await asyncio.sleep(0.05)
                        raise KeyError
                await until(lambda: len(inspector.nodes(path)) == 1)
            waiting = asyncio.create_task(blocked.acquire())
            done, _ = await asyncio.wait([waiting], timeout=0.1)
            assert not done
            await lock.release()
            assert await waiting
            # The task that has called acquire() is the owner.
            assert blocked.is_held
            await blocked.release()

    loops.run(main())


def test_timeouts(loops: Loops, server: ZooKeeper, path: str, inspector: Inspector) -> None:
    async def main() -> None:
        async with Client(server.address) as client, Client(server.address) as other, other.mutex(path):
            lock = client.mutex(path, timeout=1)
            started = time.monotonic()
            with pytest.raises(zklock.LockTimeout, match="not acquired within"):
                async with lock:
                    pytest.fail("two holders")
            assert 1 <= time.monotonic() - started < 2 + SLACK
            for timeout in (0, 1e-9, 0.05):
                acquired: bool | None = None
                while acquired is None:
                    started = time.monotonic()
                    # If the server owes an answer for 100 ms, the acquire raises ConnectionLost.
                    with contextlib.suppress(zklock.ConnectionLost):
                        acquired = await lock.acquire(timeout=timeout)
                    assert timeout <= time.monotonic() - started < timeout + 1 + SLACK
                assert acquired is False
            for wrong in (-1, float("nan")):
                with pytest.raises(ValueError, match=r"timeout: .* seconds; expected zero or more"):
                    await lock.acquire(timeout=wrong)
            with pytest.raises(TypeError, match="timeout: expected a number of seconds, not str"):
                await lock.acquire(timeout="1")  # type: ignore[arg-type]
            await until(lambda: len(inspector.nodes(path)) == 1)

    loops.run(main())


def test_cancel_wakes_waiters(loops: Loops, server: ZooKeeper, path: str, inspector: Inspector) -> None:
    async def main() -> None:
        async with Client(server.address) as client, Client(server.address) as other:
            lock, semaphore = client.mutex(path), client.semaphore(f"{path}-pool", 1)
            async with other.mutex(path), other.semaphore(f"{path}-pool", 1).acquire():
                waiting = [asyncio.create_task(lock.acquire()), asyncio.create_task(semaphore.acquire())]
                await until(lambda: len(lock.waiting()) == len(semaphore.waiting()) == 1)
                assert lock.waiting()[0].waits_for in (zklock.WaitsFor.NODE, zklock.WaitsFor.SERVER)
                lock.cancel()
                semaphore.cancel()
                for waiter in waiting:
                    with pytest.raises(zklock.Canceled):
                        await waiter
            async with lock, semaphore.acquire(timeout=60):
                pass

    loops.run(main())


def test_every_recipe(loops: Loops, server: ZooKeeper, path: str, inspector: Inspector) -> None:
    async def main() -> None:
        async with Client(server.address) as client:
            rw = client.rwlock(f"{path}/rw", timeout=60)
            assert rw.read is rw.read
            assert rw.path == rw.write.path == f"{path}/rw"
            async with rw.write, rw.read:
                assert [one.holds for one in await rw.queue()] == [True, True]
                assert await rw.read.queue() == await rw.write.queue() == await rw.queue()
                assert len(await rw.read.participants()) == len(await rw.write.participants()) == 1
            async with rw.read:
                with pytest.raises(zklock.Deadlock):
                    await rw.write.acquire()

            job = client.semaphore_mutex(f"{path}/job")
            await job.acquire()
            assert await job.acquire(timeout=1) is False
            await asyncio.create_task(job.release())
            assert job.state is LockState.FREE

            for in_order in (False, True):
                parts = (client.mutex(f"{path}/a"), client.mutex(f"{path}/b"), client.semaphore_mutex(f"{path}/c"))
                multi = client.multi(parts, timeout=60, in_order=in_order)
                assert multi.locks == parts
                async with multi as held:
                    assert [part.is_held for part in parts] == [True] * 3
                    assert len(held.node_paths) == 3
                    assert len(await held.participants()) == 3
                    with pytest.raises(AttributeError, match="node_paths"):
                        held.node_path  # noqa: B018
                assert not parts[0].is_held

            pool = client.semaphore(f"{path}/pool", max_leases=3)
            async with pool.acquire(2, timeout=60.0) as leases:
                assert (leases.quantity, leases.is_held, leases.state) == (2, True, LockState.HELD)
                assert 0 < leases.remaining <= 10
                assert leases.fencing_token > 0
                assert len(leases.node_paths) == len(await pool.participants()) == 2
                with pytest.raises(zklock.LockTimeout):
                    await pool.acquire(2, timeout=0)
            more = await pool.acquire(3)
            async with more as same:
                assert same is more
                await more.release()
            with pytest.raises(zklock.NotOwner):
                await more.release()
            with pytest.raises(zklock.NotOwner):
                async with more:
                    pytest.fail("given back")
            (await asyncio.create_task(pool.acquire())).release_nowait()
            pool.close()
            with pytest.raises(zklock.ClientClosed):
                await pool.acquire()

            count = f"{path}/size"
            counted = client.semaphore(f"{path}/counted", count_path=count, initial=2)
            async with counted.acquire(2):
                assert await client.shared_count_get(count) == 2
                await client.shared_count_set(count, 3)
                async with counted.acquire(timeout=60) as third:
                    assert await client.fence_check(f"{path}/counted", third.fencing_token)
                assert not await client.fence_check(f"{path}/counted", 1)

    loops.run(main())
    assert inspector.below(path) == []


def test_local_handover(loops: Loops, server: ZooKeeper, path: str, inspector: Inspector) -> None:
    passes: list[tuple[int, int]] = []

    async def work(lock: zklock.aio.Mutex) -> None:
        async with lock:
            passes.append((lock.fencing_token, lock.fencing_pass))
            assert len(inspector.nodes(path)) == 1
            await asyncio.sleep(0)

    async def main() -> None:
        async with Client(server.address) as client:
            lock = client.mutex(path, local_handover=3)
            await asyncio.gather(*(work(lock) for _ in range(8)))
            lock.set_local_handover(0)

    loops.run(main())
    assert [number for _, number in passes] == [0, 1, 2, 3] * 2
    assert passes == sorted(passes)


def test_revocation(loops: Loops, server: ZooKeeper, path: str) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        asked: asyncio.Queue[tuple[str, str, bool]] = asyncio.Queue()

        def plain(node: str) -> None:
            asked.put_nowait(("plain", node, threading.current_thread() is threading.main_thread()))

        async def coroutine(node: str) -> None:
            await asyncio.sleep(0)
            assert asyncio.get_running_loop() is loop
            asked.put_nowait(("coroutine", node, True))

        async with Client(server.address) as client, Client(server.address) as other:
            lock, pool = client.mutex(path), client.semaphore(f"{path}-pool", 2)
            lock.set_revocable(plain)
            pool.set_revocable(coroutine)
            async with lock, pool.acquire() as leases:
                await other.revoke((await lock.participants())[0])
                assert await asked.get() == ("plain", lock.node_path, True)
                await other.revoke(leases.node_paths[0])
                assert await asked.get() == ("coroutine", leases.node_paths[0], True)
                lock.set_revocable(None)
                await other.revoke(lock.node_path)
                await asyncio.sleep(0.05)
                assert asked.empty()
            with pytest.raises(TypeError, match="callback: expected a callable or None, not int"):
                lock.set_revocable(1)  # type: ignore[arg-type]
        assert "zklock-events" not in {thread.name for thread in threading.enumerate()} - before

    before = {thread.name for thread in threading.enumerate()}
    loops.run(main())


def test_events_come_on_the_loop_and_in_order(loops: Loops, server: ZooKeeper, path: str) -> None:
    events: list[Any] = []

    def on_event(event: zklock.Event) -> None:
        assert asyncio.get_running_loop()
        events.append(event)

    async def main() -> None:
        async with Client(server.address, on_event=on_event) as client:
            lock = client.mutex(path)
            async with lock:
                token = lock.fencing_token
            async with client.semaphore(f"{path}-pool", 1).acquire() as leases:
                pool = leases.fencing_token
            held = client.mutex(path)
            await held.acquire()
            last = held.fencing_token
        # Events that came before the client was closed have been reported by now.
        free, has = LockState.FREE, LockState.HELD
        assert events == [
            zklock.ClientEvent(ClientState.CONNECTED, ClientState.CONNECTING),
            zklock.LockEvent(lock, path, has, free, token),
            zklock.LockEvent(lock, path, free, has, token),
            zklock.LockEvent(None, f"{path}-pool", has, free, pool),
            zklock.LockEvent(None, f"{path}-pool", free, has, pool),
            zklock.LockEvent(held, path, has, free, last),
            zklock.LockEvent(held, path, free, has, last),
            zklock.ClientEvent(ClientState.CLOSED, ClientState.CONNECTED),
        ]
        assert events[1].lock is lock

    loops.run(main())


def test_an_on_event_that_is_a_coroutine_function(loops: Loops, server: ZooKeeper, path: str) -> None:
    begun: list[str] = []
    ended: list[str] = []

    async def on_event(event: zklock.Event) -> None:
        begun.append(type(event).__name__)
        await asyncio.sleep(0.01)
        ended.append(type(event).__name__)

    async def main() -> None:
        async with Client(server.address, on_event=on_event) as client, client.mutex(path):
            pass
        assert begun == ["ClientEvent", "LockEvent", "LockEvent", "ClientEvent"]
        await until(lambda: ended == begun)

    loops.run(main())


def test_what_a_callback_raises_goes_to_the_loop(server: ZooKeeper, path: str) -> None:
    loops = Loops(asyncio.SelectorEventLoop)
    error = KeyError("mine")

    def on_event(event: zklock.Event) -> None:
        raise error

    async def main() -> None:
        async with Client(server.address, on_event=on_event) as client, client.mutex(path):
            pass

    loops.run(main())
    assert [report["exception"] for report in loops.reports] == [error] * 4


def test_two_clients_and_a_multi_lock_of_both(loops: Loops, server: ZooKeeper, path: str) -> None:
    async def main() -> None:
        async with Client(server.address) as one, Client(server.address) as two:
            a, b = one.mutex(f"{path}/a"), two.mutex(f"{path}/b")
            both = one.multi([a, b])
            async with b, both:
                assert a.is_held
                watch = asyncio.create_task(both.wait_lost())
                await asyncio.sleep(0)
            with pytest.raises(zklock.NotOwner, match="released"):
                await watch
            assert not a.is_held

    loops.run(main())


def test_the_error_of_a_multi_lock_does_not_blame_an_open_client(loops: Loops, server: ZooKeeper, path: str) -> None:
    async def main() -> None:
        async with Client(server.address) as one, Client(server.address) as holder:
            other = Client(server.address)
            await other.connect()
            multi = one.multi([one.mutex(f"{path}/a"), other.mutex(f"{path}/b")])
            async with holder.mutex(f"{path}/a"):
                waiting = asyncio.ensure_future(multi.acquire())
                await until(lambda: bool(multi.waiting()))
                await other.close()
                with pytest.raises(
                    zklock.ClientClosed, match="the multi-lock, one of its member locks or a client was"
                ):
                    await waiting

    loops.run(main())


def test_objects_cannot_be_copied(loops: Loops, server: ZooKeeper, path: str) -> None:
    async def main() -> None:
        async with Client(server.address) as client:
            lock, semaphore = client.mutex(path), client.semaphore(f"{path}/s", 1)
            async with lock.hold() as hold, semaphore.acquire() as leases:
                for value in (client, lock, client.rwlock(path), semaphore, hold, leases):
                    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
                        with pytest.raises(
                            TypeError, match=f"cannot copy or pickle 'zklock.aio.{type(value).__name__}'"
                        ):
                            duplicate(value)

    loops.run(main())


def test_a_task_and_a_thread_and_a_process(loops: Loops, server: ZooKeeper, path: str, program: Any) -> None:
    """A task, a thread and a process queue for one lock."""
    code = """
import asyncio, sys, zklock
async def main():
    async with zklock.aio.Client(sys.argv[1]) as client, client.mutex(sys.argv[2]) as lock:
        print("holds", lock.fencing_token, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, input)
asyncio.run(main())
"""

    async def main() -> None:
        async with Client(server.address) as client:
            lock = client.mutex(path)
            with zklock.Client(server.address) as blocking:
                thread_lock = blocking.mutex(path)
                async with lock:
                    first = lock.fencing_token
                    thread = Waiter(lambda: (thread_lock.acquire(timeout=60), thread_lock.fencing_token))
                    await until(lambda: thread_lock.waiting())
                    process = program(code, server.address, path)
                    await until(lambda: len(witness_of(blocking, path)) == 3)
                got, second = await asyncio.get_running_loop().run_in_executor(None, thread.result)
                assert got
                blocking.close()
            third = int((await asyncio.get_running_loop().run_in_executor(None, process.read_line)).split()[1])
            waiting = asyncio.create_task(lock.hold(timeout=60))
            await until(lambda: lock.waiting())
            process.write_line()
            assert first < second < third < (await waiting).token

    loops.run(main())


def witness_of(client: zklock.Client, path: str) -> list[zklock.Participant]:
    return client.mutex(path).participants()


def test_collected_handles_are_released(loops: Loops, server: ZooKeeper, path: str, inspector: Inspector) -> None:
    async def main() -> None:
        async with Client(server.address) as client:
            lock = client.mutex(path)
            hold = await lock.hold()
            pool = client.semaphore(f"{path}-pool", 1)
            leases = await pool.acquire()
            del lock, hold, leases
            await until(lambda: inspector.nodes(path) == [] and len(inspector.below(f"{path}-pool")) == 0)

    loops.run(main())


def test_awaited_task_is_kept_alive(loops: Loops, server: ZooKeeper, path: str) -> None:
    """A loop refers to a task only through the object that the task waits for."""
    import gc

    ended: list[str] = []

    async def wait(client: Client, lock: str) -> None:
        async with client.mutex(lock):
            ended.append(lock)

    async def main() -> None:
        async with Client(server.address) as holder:
            lock = holder.mutex(path)
            async with lock:
                client = await Client(server.address).connect()
                task = asyncio.create_task(wait(client, path))
                await asyncio.sleep(0.05)
                task.add_done_callback(lambda _: ended.append("done"))
                del task, client
                gc.collect()
                await asyncio.sleep(0.05)
                assert ended == []
            await until(lambda: ended == [path, "done"])
            gc.collect()

    with pytest.warns(ResourceWarning, match="was not closed"):
        loops.run(main())


def test_metrics(loops: Loops, server: ZooKeeper, path: str) -> None:
    async def main() -> None:
        async with Client(server.address) as client:
            async with client.mutex(path):
                pass
            async with client.semaphore(f"{path}-pool", 1).acquire():
                pass
            text = client.prometheus({"role": "test"})
        assert client.metrics().acquires_ok == 2
        assert 'role="test"' in text

    loops.run(main())


def test_repr(loops: Loops, server: ZooKeeper, path: str) -> None:
    async def main() -> None:
        client = Client(server.address)
        assert repr(client) == f"<zklock.aio.Client {server.address!r} CONNECTING>"
        async with client:
            assert repr(client) == f"<zklock.aio.Client {server.address!r} CONNECTED session={client.session_id:#x}>"
            lock = client.mutex(path)
            assert repr(lock) == f"<zklock.aio.Mutex {path!r} FREE>"
            assert repr(client.rwlock(path)) == f"<zklock.aio.RwLock {path!r}>"
            pool = client.semaphore(f"{path}-pool", 2)
            assert repr(pool) == f"<zklock.aio.Semaphore '{path}-pool' max_leases=2>"
            async with lock, pool.acquire() as leases:
                assert repr(lock) == f"<zklock.aio.Mutex {path!r} HELD token={lock.fencing_token}>"
                assert repr(leases).startswith(f"<zklock.aio.Leases '{path}-pool' quantity=1 HELD")
        assert repr(lock) == f"<zklock.aio.Mutex {path!r} CLOSED>"

    loops.run(main())


def test_wrong_arguments(loops: Loops, server: ZooKeeper, path: str) -> None:
    for wrong, error, message in [
        ({"session_timeout": -1}, ValueError, "session_timeout"),
        ({"session_timeout": "x"}, TypeError, "session_timeout"),
        ({"auth": [1]}, TypeError, "auth"),
        ({"on_event": 1}, TypeError, "on_event: expected a callable or None, not int"),
        ({"no_such": 1}, TypeError, "no_such"),
    ]:
        with pytest.raises(error, match=message):
            Client(server.address, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="host"):
        Client("host:port:more")
    with pytest.raises(TypeError):
        Client(1)  # type: ignore[arg-type]

    async def main() -> None:
        client = Client(server.address)
        with pytest.raises(RuntimeError, match="not connected yet"):
            client.mutex(path)
        async with client:
            with pytest.raises(ValueError, match="path"):
                client.mutex("no slash")
            with zklock.Client(server.address) as blocking:
                for locks, message in [
                    ([blocking.mutex(path)], r"expected paths and locks of zklock.aio, .* not Mutex"),
                    ([client.rwlock(path)], r"not RwLock; use its .read or .write"),
                    (1, "not int"),
                    ([1], "not int"),
                    ("/a", "not one path, '/a'"),
                ]:
                    with pytest.raises(TypeError, match=message):
                        client.multi(locks)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="no member locks"):
                client.multi([])
            with pytest.raises(ValueError, match="the same path"):
                client.multi([client.mutex(path), client.mutex(path)])
            with pytest.raises(TypeError, match="expected max_leases, or count_path and initial"):
                client.semaphore(path)  # type: ignore[call-overload]
            with pytest.raises(TypeError, match="node: expected a Participant"):
                await client.revoke(1)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="quantity is 0; expected 1 or more"):
                await client.semaphore(path, 1).acquire(0)
            with pytest.raises(zklock.ServerError):
                await client.shared_count_get(f"{path}/missing")

    loops.run(main())
