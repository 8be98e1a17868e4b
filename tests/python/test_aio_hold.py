"""Tests of ``lock.hold()`` and ``wait_lost()`` of zklock.aio, and of the warnings about holds that a program leaves
behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import logging
import os
import signal
import time
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import pytest

import zklock
from conftest import LIMIT, SLACK, Inspector, Loops, Program, until, wait_until
from server import ZooKeeper
from zklock import LockState
from zklock.aio import Client, Hold, Leases, Lock
from zklock.testing import StandaloneServer

KINDS: dict[str, Callable[[Client, str], Lock]] = {
    "mutex": lambda client, path: client.mutex(path),
    "semaphore_mutex": lambda client, path: client.semaphore_mutex(path),
    "read": lambda client, path: client.rwlock(path).read,
    "write": lambda client, path: client.rwlock(path).write,
    "multi": lambda client, path: client.multi([f"{path}/a", client.rwlock(f"{path}/b").read]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_hold_reports_its_own_state(
    loops: Loops, server: ZooKeeper, path: str, inspector: Inspector, kind: str
) -> None:
    async def main() -> None:
        async with Client(server.address) as client:
            lock = KINDS[kind](client, path)
            async with lock.hold(timeout=60.0) as hold:
                assert hold.lock is lock
                assert (hold.token, hold.fencing_pass) == (lock.fencing_token, 0)
                assert (hold.state, hold.is_held, hold.is_lost) == (LockState.HELD, True, False)
                assert 0 < hold.remaining <= 10
                assert repr(hold).endswith(f" HELD token={hold.token}>")
                assert await hold.wait_lost(0) is False
                assert await hold.wait_lost(timeout=0.05) is False
                if kind != "multi":
                    assert hold.path == path
                token = hold.token
            assert (hold.state, hold.is_held, hold.is_lost, hold.remaining) == (LockState.FREE, False, False, 0.0)
            assert (hold.token, hold.fencing_pass) == (token, 0)
            for wrong in (hold.release, hold.wait_lost, hold.__aenter__):
                with pytest.raises(zklock.NotOwner, match=f"{path}.*already released"):
                    await wrong()
            assert not lock.is_held_in_process
            hold = await asyncio.wait_for(lock.hold(), 60)
            async with hold as same:
                assert same is hold
                assert lock.is_held
            assert not lock.is_held_in_process
            # Any task may release a hold that another task acquired.
            hold = await asyncio.create_task(lock.hold())
            assert (hold.is_held, lock.is_held) == (True, True)
            await asyncio.create_task(hold.release())
            await until(lambda: inspector.below(path) == [])

    loops.run(main())


def test_a_hold_with_a_deadline(loops: Loops, server: ZooKeeper, path: str, inspector: Inspector) -> None:
    async def main() -> None:
        async with Client(server.address) as client, Client(server.address) as other, other.mutex(path).hold():
            # The timeout of the lock object applies to `async with lock` only.
            lock = client.mutex(path, timeout=0)
            for timeout in (0, 0.2):
                started = time.monotonic()
                with pytest.raises(zklock.LockTimeout, match=path):
                    async with lock.hold(timeout=timeout):
                        pytest.fail("two holders")
                assert timeout <= time.monotonic() - started < timeout + SLACK / 2
            with pytest.raises(ValueError, match=r"timeout: -1.* seconds; expected zero or more"):
                async with lock.hold(timeout=-1):
                    pytest.fail("two holders")
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(lock.hold(), 0.1)
            await until(lambda: len(inspector.nodes(path)) == 1)
            assert not lock.is_held_in_process

    loops.run(main())


def test_nested_holds_of_one_task_release_separately(
    loops: Loops, server: ZooKeeper, path: str, inspector: Inspector
) -> None:
    async def main() -> None:
        async with Client(server.address) as client:
            lock = client.mutex(path)
            async with lock.hold() as first:
                async with lock.hold(timeout=0) as second:
                    assert second.token == first.token
                    await second.release()
                    assert (first.is_held, second.is_held) == (True, False)
                    with pytest.raises(zklock.NotOwner, match="already released"):
                        await second.release()
                assert lock.is_held
                assert len(inspector.nodes(path)) == 1
            assert not lock.is_held

    loops.run(main())


def test_hold_can_be_queried_and_released_by_another_task(
    loops: Loops, server: ZooKeeper, path: str, inspector: Inspector
) -> None:
    """The lock object describes the hold of the calling task only."""

    async def work(lock: Lock, hold: Hold) -> int:
        assert not lock.is_held
        with pytest.raises(zklock.NotOwner):
            lock.fencing_token  # noqa: B018
        assert hold.is_held
        assert await hold.wait_lost(0) is False
        return hold.token

    async def main() -> None:
        async with Client(server.address) as client:
            lock = client.mutex(path)
            async with lock.hold() as hold:
                tokens = await asyncio.gather(work(lock, hold), work(lock, hold))
                assert tokens == [lock.fencing_token] * 2
                await asyncio.create_task(hold.release())
                assert inspector.nodes(path) == []
                assert not hold.is_held

    loops.run(main())


def test_an_asynchronous_generator_may_be_ended_by_another_task(
    loops: Loops, server: ZooKeeper, path: str, inspector: Inspector
) -> None:
    async def main() -> None:
        async with Client(server.address) as client:

            async def work() -> AsyncIterator[int]:
                async with client.mutex(path).hold() as hold:
                    yield hold.token

            generator = work()
            [_] = [await generator.__anext__()]
            await asyncio.create_task(generator.aclose())  # type: ignore[attr-defined]
            # The block ends with GeneratorExit, so the release does not wait for the server.
            await until(lambda: inspector.nodes(path) == [])

    loops.run(main())


@pytest.mark.filterwarnings("ignore:task .* ended while it holds:ResourceWarning")
def test_release_that_fails_in_a_generator_that_another_task_closes_is_logged(
    loops: Loops, server: ZooKeeper, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with Client(server.address) as client:
            lock = client.mutex(path)

            async def work() -> AsyncGenerator[None, None]:
                async with lock:
                    yield

            generator = work()
            await generator.__anext__()
            await asyncio.create_task(generator.aclose())
            assert lock.is_held
            await lock.release()

    loops.run(main())
    # asyncio also logs the name of this test if a step of the loop takes long.
    records = [record for record in caplog.records if record.name.startswith("zklock")]
    (record,) = [record for record in records if "generator" in record.getMessage()]
    assert (record.name, record.levelname) == ("zklock.lock", "WARNING")
    fields: dict[str, object] = record.zklock  # type: ignore[attr-defined]
    assert (fields["event"], fields["path"]) == ("the end of a block failed when a generator was closed", path)
    assert "the caller does not hold the lock" in str(fields["error"])


def test_generator_that_is_closed_after_its_client_logs_nothing(
    loops: Loops, server: ZooKeeper, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async def work(client: Client) -> AsyncGenerator[None, None]:
            async with client.mutex(path):
                yield

        async with Client(server.address) as client:
            generator = work(client)
            await generator.__anext__()
        await generator.aclose()

    loops.run(main())
    records = [record for record in caplog.records if record.name.startswith("zklock")]
    assert not any("generator" in record.getMessage() for record in records)


def test_a_hold_that_the_lock_s_own_methods_release(loops: Loops, server: ZooKeeper, path: str) -> None:
    async def main() -> None:
        async with Client(server.address) as client:
            lock = client.mutex(path)
            with pytest.raises(zklock.NotOwner):
                async with lock.hold() as hold:
                    await lock.release()
                    assert (hold.state, hold.is_held, hold.is_lost) == (LockState.FREE, False, False)
            hold = await lock.hold()
            await lock.release()
            await lock.acquire()
            # This is another hold of the same task.
            assert lock.fencing_token > hold.token
            assert (hold.is_held, hold.state, hold.remaining) == (False, LockState.FREE, 0.0)
            for wrong in (hold.release, hold.wait_lost, hold.__aenter__):
                with pytest.raises(zklock.NotOwner, match="already released"):
                    await wrong()
            assert lock.is_held
            await lock.release()

    loops.run(main())


def test_hold_is_identified_by_token_and_pass(loops: Loops, server: ZooKeeper, path: str) -> None:
    """A Hold recognizes its hold by the token and the fencing pass."""
    holds: list[tuple[int, int]] = []

    async def main() -> None:
        async with Client(server.address) as client:
            lock = client.mutex(path, local_handover=3)

            async def work() -> None:
                async with lock.hold() as hold:
                    holds.append((hold.token, hold.fencing_pass))
                    assert hold.is_held
                    await asyncio.sleep(0)

            await asyncio.gather(*(work() for _ in range(4)))

    loops.run(main())
    assert [passes for _, passes in holds] == [0, 1, 2, 3]
    assert len({token for token, _ in holds}) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_hold_that_is_lost(loops: Loops, kind: str) -> None:
    async def main(server: StandaloneServer) -> None:
        async with Client(server.address) as client:
            lock = KINDS[kind](client, "/a")
            with pytest.raises(zklock.LockLost):
                async with lock.hold() as hold:
                    watchers = [asyncio.create_task(hold.wait_lost()), asyncio.create_task(lock.wait_lost(timeout=60))]
                    await asyncio.sleep(0.01)
                    server.expire(client)
                    assert await asyncio.wait_for(asyncio.gather(*watchers), 60) == [True, True]
                    assert (hold.is_held, hold.is_lost, hold.remaining) == (False, True, 0.0)
                    await until(lambda: hold.state is LockState.LOST)
                    assert await hold.wait_lost(timeout=0) is True
                    assert hold.token > 0
            assert (hold.state, hold.is_lost) == (LockState.FREE, False)
            with pytest.raises(zklock.LockLost):
                async with lock.hold() as hold, hold.while_held():
                    server.expire(client)
                    await asyncio.sleep(3600)
            async with lock.hold(timeout=60) as hold:
                assert hold.is_held

    with StandaloneServer() as server:
        loops.run(main(server))


def test_the_tasks_below_a_hold_are_cancelled_when_it_is_lost(loops: Loops) -> None:
    async def main(server: StandaloneServer) -> None:
        async with Client(server.address) as client:

            async def work(hold: Hold) -> None:
                async with hold.while_held():
                    await asyncio.sleep(3600)

            with pytest.raises(zklock.LockLost):
                async with client.mutex("/a").hold() as hold:
                    tasks = [asyncio.create_task(work(hold)) for _ in range(3)]
                    await asyncio.sleep(0.01)
                    server.expire(client)
                    for ended in await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60):
                        assert isinstance(ended, zklock.LockLost)

    with StandaloneServer() as server:
        loops.run(main(server))


@pytest.mark.parametrize("of", ["lock", "hold", "leases"])
def test_wait_lost_ends_with_the_hold_and_with_the_client(loops: Loops, of: str) -> None:
    async def main(server: StandaloneServer) -> None:
        client = await Client(server.address).connect()
        async with contextlib.AsyncExitStack() as stack:
            held: Lock | Hold | Leases
            if of == "leases":
                held = await client.semaphore("/pool", 2).acquire(2)
            elif of == "hold":
                held = await stack.enter_async_context(client.mutex("/a").hold())
            else:
                held = client.mutex("/a")
                await held.acquire()
            watcher = asyncio.create_task(held.wait_lost())
            cancelled = asyncio.create_task(held.wait_lost())
            await asyncio.sleep(0.01)
            cancelled.cancel()
            await asyncio.wait([cancelled])
            assert cancelled.cancelled()
            assert not watcher.done()
            await held.release()
            with pytest.raises(zklock.NotOwner, match="released"):
                await asyncio.wait_for(watcher, 60)
            with pytest.raises(zklock.NotOwner):
                await held.wait_lost(timeout=0)
        lock = client.mutex("/b")
        await lock.acquire()
        watcher = asyncio.create_task(lock.wait_lost(timeout=60))
        await asyncio.sleep(0.01)
        await client.close()
        with pytest.raises(zklock.ClientClosed):
            await asyncio.wait_for(watcher, 60)

    with StandaloneServer() as server:
        loops.run(main(server))


def test_wait_lost_checks_its_timeout(loops: Loops, server: ZooKeeper, path: str) -> None:
    async def main() -> None:
        async with Client(server.address) as client, client.mutex(path).hold() as hold:
            for wrong, error, message in [
                (-1, ValueError, r"timeout: -1.* seconds; expected zero or more"),
                ("1", TypeError, "timeout: expected a number of seconds, not str"),
            ]:
                for held in (hold, hold.lock):
                    with pytest.raises(error, match=message):
                        await held.wait_lost(timeout=wrong)  # type: ignore[arg-type]
            # Infinity means no limit.
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(hold.wait_lost(timeout=float("inf")), 0.05)

    loops.run(main())


STOPPED = """
import asyncio, sys, zklock
async def main():
    async with zklock.aio.Client(sys.argv[1], session_timeout=4) as client:
        lock = client.mutex("/a")
        await lock.acquire()
        print("holds", flush=True)
        # The limit passes while the process is stopped: the lease decides, and not which timer comes first.
        print(await lock.wait_lost(timeout=3.9), lock.is_held, flush=True)
asyncio.run(main())
"""


def test_a_process_that_was_stopped(program: Callable[..., Program]) -> None:
    with StandaloneServer() as server:
        stopped = program(STOPPED, server.address)
        assert stopped.read_line() == "holds"
        stopped.process.send_signal(signal.SIGSTOP)
        time.sleep(4.5)
        stopped.process.send_signal(signal.SIGCONT)
        assert stopped.read_line() == "True False"


def test_timeouts_and_data_are_keywords() -> None:
    """``acquire(1)`` means blocking in ``threading``, so these arguments are keywords only."""
    for method, names in [
        (Client.mutex, {"timeout", "data", "local_handover"}),
        (Client.semaphore_mutex, {"timeout", "data"}),
        (Client.rwlock, {"timeout", "data"}),
        (Client.multi, {"timeout", "in_order"}),
        (Lock.acquire, {"timeout"}),
        (Lock.hold, {"timeout"}),
        (zklock.aio.Semaphore.acquire, {"timeout"}),
    ]:
        parameters = inspect.signature(method).parameters.values()
        assert {one.name for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY} == names, method


def test_a_multi_lock_of_paths(loops: Loops, server: ZooKeeper, path: str, inspector: Inspector) -> None:
    async def main() -> None:
        async with Client(server.address) as client, Client(server.address) as other:
            own = client.rwlock(f"{path}/b").write
            both = client.multi([f"{path}/a", own, f"{path}/c"], timeout=60)
            assert [type(lock).__name__ for lock in both.locks] == ["Mutex", "WriteLock", "Mutex"]
            assert both.locks[1] is own
            async with both:
                assert len(both.node_paths) == len(inspector.below(path)) == 3
                assert not await other.mutex(f"{path}/c").acquire(timeout=0)
            with pytest.raises(ValueError, match="the same path"):
                client.multi([f"{path}/a", f"{path}/a"])
            with pytest.raises(ValueError, match="path"):
                client.multi(["no slash"])
            with pytest.raises(TypeError, match="not one path, '/a'"):
                client.multi("/a")
            # The error of a generator is not an error of its type.
            with pytest.raises(TypeError, match="'int' object is not iterable"):
                client.multi(path for paths in [1] for path in paths)  # type: ignore[attr-defined]

    loops.run(main())


# Holds that are left behind.


@contextlib.contextmanager
def told() -> Iterator[list[str]]:
    """Collect the ResourceWarnings of the block as texts."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        texts: list[str] = []
        yield texts
        texts += [str(one.message) for one in caught if one.category is ResourceWarning]


def test_a_handle_that_is_garbage_collected_is_released_with_a_warning(
    loops: Loops, server: ZooKeeper, path: str, inspector: Inspector
) -> None:
    async def main() -> None:
        async with Client(server.address) as client:

            async def forget(make: Callable[[], Any]) -> None:
                """The task goes on, so only the end of the object can release the hold."""
                held = make()
                held = await (held if inspect.isawaitable(held) else held.acquire())
                assert inspector.below(path)

            for make, name in [
                (lambda: client.semaphore(f"{path}/pool", 1), f"{path}/pool"),
                (client.mutex(f"{path}/h").hold, f"{path}/h"),
            ]:
                with told() as texts:
                    await forget(make)
                    gc.collect()
                    await until(lambda: inspector.below(path) == [])
                [text] = texts
                assert name in text
                assert "released because" in text
                assert "garbage-collected" in text
            # Nothing was left behind.
            with told() as texts:
                async with client.mutex(path).hold(), client.semaphore(f"{path}/pool", 1).acquire():
                    pass
                gc.collect()
                await asyncio.sleep(0)
            assert texts == []

    loops.run(main())


def test_a_task_that_ends_with_a_hold(loops: Loops, server: ZooKeeper, path: str, inspector: Inspector) -> None:
    """The lock stays held until its client ends, also if the program drops its object. A warning has the path."""

    async def main() -> None:
        async with Client(server.address) as client:
            lock = client.mutex(path)

            async def work() -> None:
                await client.mutex(f"{path}/own").acquire()
                gc.collect()

            async def acquire(lock: zklock.aio.Mutex = lock) -> None:
                await lock.acquire()

            for hold, name in [(acquire, path), (work, f"{path}/own")]:
                with told() as texts:
                    await asyncio.create_task(hold(), name="forgetful")
                    await asyncio.sleep(0)
                [text] = texts
                assert "task 'forgetful' ended while it holds <zklock.aio.Mutex" in text
                assert repr(name) in text
            del lock, acquire, hold
            gc.collect()
            assert len(inspector.nodes(path)) == 2
            assert len(inspector.nodes(f"{path}/own")) == 1
        assert inspector.nodes(f"{path}/own") == []

    loops.run(main())


def test_a_task_that_hands_its_hold_over_is_not_warned_of(loops: Loops, server: ZooKeeper, path: str) -> None:
    async def main() -> None:
        async with Client(server.address) as client:
            lock = client.mutex(path)

            async def work() -> Hold:
                async with lock:
                    hold = await lock.hold()
                await lock.acquire()
                lock.release_nowait()
                return hold

            with told() as texts:
                hold = await asyncio.create_task(work())
                await asyncio.sleep(0)
            assert texts == []
            assert hold.is_held
            await hold.release()
            assert not lock.is_held_in_process

    loops.run(main())


def test_each_lock_of_a_task_that_ends_is_reported_if_warnings_are_errors(
    loops: Loops, server: ZooKeeper, path: str
) -> None:
    async def main() -> None:
        async with Client(server.address) as client:
            locks = [client.mutex(f"{path}/{name}") for name in "abc"]

            async def work() -> None:
                for lock in locks:
                    await lock.acquire()

            with warnings.catch_warnings():
                warnings.simplefilter("error")
                await asyncio.create_task(work())
                await asyncio.sleep(0)

    loops.run(main())
    errors = [report["exception"] for report in loops.reports]
    loops.reports.clear()
    assert sorted(f"{path}/{name}" in str(error) for name, error in zip("abc", sorted(errors, key=str))) == [True] * 3


def test_release_nowait_of_a_hold(loops: Loops, server: ZooKeeper, path: str, inspector: Inspector) -> None:
    async def main() -> None:
        async with Client(server.address) as client:
            hold = await client.mutex(path).hold()
            hold.release_nowait()
            assert hold.state is LockState.FREE
            await until(lambda: inspector.nodes(path) == [])
            with pytest.raises(zklock.NotOwner, match="already released"):
                hold.release_nowait()

    loops.run(main())


def test_a_hold_of_a_multi_lock_of_which_one_lock_was_released_releases_the_others(
    loops: Loops, server: ZooKeeper, path: str, inspector: Inspector
) -> None:
    async def main() -> None:
        async with Client(server.address) as client:
            multi = client.multi([f"{path}/a", f"{path}/b"])
            hold = await multi.hold()
            await multi.locks[0].release()
            assert hold.state is LockState.FREE
            with pytest.raises(zklock.NotOwner, match=f"{path}/a"):
                await hold.release()
            assert not multi.locks[1].is_held_in_process
            assert inspector.nodes(f"{path}/b") == []
            with pytest.raises(zklock.NotOwner, match="already released"):
                await hold.release()

    loops.run(main())


def test_an_old_hold_of_a_multi_lock_releases_no_later_hold_of_a_member(
    loops: Loops, server: ZooKeeper, path: str, inspector: Inspector
) -> None:
    async def main() -> None:
        async with Client(server.address) as client:
            a, b = client.mutex(f"{path}/a"), client.mutex(f"{path}/b")
            hold = await client.multi([a, b]).hold()
            await b.release()
            async with b.hold() as later:
                assert hold.state is LockState.FREE
                with pytest.raises(zklock.NotOwner, match="already released"):
                    await hold.release()
                assert later.state is LockState.HELD
                assert inspector.nodes(f"{path}/a") == []

    loops.run(main())


def test_a_hold_of_a_closed_client_gives_the_same_answers_each_time(loops: Loops, server: ZooKeeper, path: str) -> None:
    async def main() -> None:
        async with Client(server.address) as client:
            lock = client.mutex(path)
            released = await lock.hold()
            await lock.release()
            hold = await lock.hold()
        for _ in range(2):
            with pytest.raises(zklock.ClientClosed):
                await hold.release()
            assert (hold.is_held, hold.is_lost) == (False, True)
            assert (released.is_held, released.is_lost) == (False, False)

    loops.run(main())


def test_a_forgotten_hold_ends_with_its_client(
    server: ZooKeeper, path: str, program: Callable[..., Program], inspector: Inspector
) -> None:
    code = """
import asyncio, sys, warnings, zklock
warnings.resetwarnings()
warnings.simplefilter("always")
warnings.showwarning = lambda message, category, *_: print(category.__name__, message, flush=True)
async def main():
    async with zklock.aio.Client(sys.argv[1]) as client:
        await client.mutex(sys.argv[2]).acquire()
asyncio.run(main())
print("end", flush=True)
"""
    left = program(code, server.address, path)
    said = []
    while (line := left.read_line()) != "end":
        said.append(line)
    assert said == []
    assert left.ends() == 0
    wait_until(lambda: inspector.nodes(path) == [])
    assert os.environ.get("PYTHONWARNINGS") is None


BLOCKS: dict[str, Callable[[Client, str], Any]] = {
    "lock": lambda client, path: client.mutex(path),
    "hold": lambda client, path: client.mutex(path).hold(),
    "leases": lambda client, path: client.semaphore(path, 1).acquire(),
}


def end_blocks_without_a_server(
    loops: Loops,
    server: ZooKeeper,
    path: str,
    work: Callable[[Any], Coroutine[Any, Any, None]],
    session_timeout: float,
) -> list[type | None]:
    """End a block of each kind while the server answers nothing. ``work`` is the end of each block. Return the type of
    the exception of each block.
    """

    async def run(kind: str, entered: asyncio.Semaphore, paused: asyncio.Event) -> type | None:
        async with Client(server.address, session_timeout=session_timeout) as client:
            try:
                async with BLOCKS[kind](client, f"{path}/{kind}") as held:
                    entered.release()
                    await paused.wait()
                    await work(held)
            except zklock.Error as error:
                return type(error)
            assert not held.is_held
            return None

    async def main() -> list[type | None]:
        entered, paused = asyncio.Semaphore(0), asyncio.Event()
        blocks = [asyncio.create_task(run(kind, entered, paused)) for kind in BLOCKS]
        for _ in blocks:
            await entered.acquire()
        server.pause()
        paused.set()
        errors = await asyncio.gather(*blocks)
        server.resume()
        return errors

    return loops.run(main())


def test_a_block_that_was_safe_raises_nothing_if_no_server_confirms_the_release(
    loops: Loops, own_server: ZooKeeper, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(held: Any) -> None:
        assert held.is_held

    assert end_blocks_without_a_server(loops, own_server, path, work, session_timeout=6) == [None] * len(BLOCKS)
    assert caplog.text.count("no server has confirmed the release yet: no answer from") == len(BLOCKS)
    event = "no server has confirmed the release yet"
    fields = [record.zklock for record in caplog.records if event in record.getMessage()]  # type: ignore[attr-defined]
    assert {(one["event"], one["path"]) for one in fields} == {(event, f"{path}/{kind}") for kind in BLOCKS}
    assert all(one["error"].startswith("no answer from") for one in fields)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_failing_log_filter_does_not_make_a_block_fail(
    loops: Loops, own_server: ZooKeeper, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", reports.append)

    def fail(record: logging.LogRecord) -> bool:
        raise ZeroDivisionError

    async def work(held: Any) -> None:
        assert held.is_held

    logger = logging.getLogger("zklock.lock")
    logger.addFilter(fail)
    try:
        errors = end_blocks_without_a_server(loops, own_server, path, work, session_timeout=6)
    finally:
        logger.removeFilter(fail)
    assert errors == [None] * len(BLOCKS)
    assert sum(isinstance(report.exc_value, ZeroDivisionError) for report in reports) >= len(BLOCKS)


def test_a_block_that_was_not_safe_raises_if_no_server_confirms_the_release(
    loops: Loops, own_server: ZooKeeper, path: str
) -> None:
    async def work(held: Any) -> None:
        await until(lambda: not held.is_held)

    errors = end_blocks_without_a_server(loops, own_server, path, work, session_timeout=3)
    assert set(errors) <= {zklock.ConnectionLost, zklock.LockLost}


def test_the_timeout_of_the_lock_is_the_default(loops: Loops, server: ZooKeeper, path: str) -> None:
    async def main() -> None:
        async with Client(server.address) as client, Client(server.address) as other:
            async with other.mutex(path), other.semaphore(f"{path}-s", 1).acquire():
                lock = client.mutex(path, timeout=0.1)
                assert await lock.acquire() is False
                with pytest.raises(zklock.LockTimeout):
                    await lock.hold()
                with pytest.raises(zklock.LockTimeout):
                    await client.semaphore(f"{path}-s", 1, timeout=0.1).acquire()

                async def acquire_and_release() -> bool:
                    acquired = await lock.acquire(timeout=None)
                    await lock.release()
                    return acquired

                waiting = asyncio.create_task(acquire_and_release())
                await until(lambda: len(lock.waiting()) == 1)
            assert await waiting is True

    loops.run(main())


def test_a_forgotten_lock_stays_taken_until_its_client_ends(loops: Loops, server: ZooKeeper, path: str) -> None:
    async def main() -> None:
        async with Client(server.address) as other:
            async with Client(server.address) as client:
                with told() as texts:
                    assert await client.mutex(path).acquire(timeout=0)
                    gc.collect()
                    assert not await other.mutex(path).acquire(timeout=0)
                assert texts == []
            assert await other.mutex(path).acquire(timeout=60)

    loops.run(main())


def test_the_error_names_the_task_that_holds(loops: Loops, server: ZooKeeper, path: str) -> None:
    async def main() -> None:
        async with Client(server.address) as client:
            lock, held, end = client.mutex(path), asyncio.Event(), asyncio.Event()

            async def work() -> None:
                async with lock:
                    held.set()
                    await end.wait()

            task = asyncio.create_task(work(), name="worker-7")
            await asyncio.wait_for(held.wait(), LIMIT)
            with pytest.raises(zklock.NotOwner, match=r"task 'worker-7' holds it: .*any task can release a Hold"):
                await lock.release()
            end.set()
            await task

    loops.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_try_hold_gives_none_if_the_lock_is_busy(loops: Loops, server: ZooKeeper, path: str, kind: str) -> None:
    async def main() -> None:
        async with Client(server.address) as client, Client(server.address) as other:
            lock, rival = KINDS[kind](client, path), KINDS["write" if kind == "read" else kind](other, path)
            async with lock.try_hold() as hold:
                assert hold is not None
                hold.check()
                assert hold.token == lock.fencing_token
                assert await rival.try_hold() is None
                async with rival.try_hold() as none:
                    assert none is None
            assert not lock.is_held_in_process
            with pytest.raises(zklock.NotOwner, match="already released"):
                hold.check()
            free = await rival.try_hold()
            assert free is not None
            await free.release()

    loops.run(main())


def test_leases_answer_like_a_hold(loops: Loops, server: ZooKeeper, path: str, inspector: Inspector) -> None:
    async def main() -> None:
        async with Client(server.address) as client:
            async with client.semaphore(path, 2).acquire() as leases:
                leases.check()
                assert (leases.token, leases.is_lost) == (leases.fencing_token, False)
            lost = await client.semaphore(path, 2).acquire()
            inspector.kazoo.delete(lost.node_paths[0])
            assert await lost.wait_lost(LIMIT)
            with pytest.raises(zklock.LockLost):
                lost.check()
            assert lost.is_lost
            assert lost.token > leases.token
            with pytest.raises(zklock.LockLost):
                await lost.release()

    loops.run(main())
