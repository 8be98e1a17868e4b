"""Tests of ``hold.once_per()`` and ``client.past_runs()``, also of zklock.aio and together with the command."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

import zklock
from conftest import LIMIT, Inspector, Loops
from server import ZooKeeper
from zklock import Client, PastRun, RunResult
from zklock.aio import Client as AioClient
from zklock.testing import StandaloneServer

SUCCEEDED, FAILED, RUNNING = RunResult.SUCCEEDED, RunResult.FAILED, RunResult.RUNNING


def results(runs: list[PastRun]) -> list[tuple[RunResult, str | None]]:
    return [(run.result, run.failure) for run in runs]


def command(server: ZooKeeper, *arguments: str) -> int:
    words = [sys.executable, "-m", "zklock", "run", "--once-per", "day", "--time-zone", "UTC", *arguments]
    return subprocess.run(words, env={**os.environ, "ZKLOCK_SERVERS": server.address}).returncode


def test_job_runs_once_in_a_period(client: Client, path: str) -> None:
    lock = client.mutex(path, timeout=LIMIT)
    assert client.past_runs(path) == []
    with lock.hold() as hold, hold.once_per("day", zone="UTC") as run:
        assert isinstance(run, zklock.Run)
        assert repr(run) == f"<zklock.Run '{path}' running>"
        (begun,) = client.past_runs(path)
        assert (begun.result, begun.failure, begun.ended, begun.token) == (RUNNING, None, None, hold.token)
        assert begun.node_path is not None
        assert begun.node_path.startswith(path)
        assert begun.started - begun.period < timedelta(days=1)
        assert begun.period.tzinfo is not None
        assert begun.period.hour == 0
        assert datetime.now(timezone.utc) - begun.started < timedelta(hours=1)
    (ended,) = client.past_runs(path)
    assert ended.ended is not None
    assert ended.ended >= ended.started == begun.started
    assert (ended.result, ended.owner) == (SUCCEEDED, begun.owner)
    assert repr(ended).startswith(f"<zklock.PastRun of {ended.period:%Y-%m-%d} 00:00:00 UTC succeeded by ")
    with lock.hold() as hold, hold.once_per("day", zone="UTC", retry_failed=True) as run:
        assert run is None
    assert client.past_runs(path) == [ended]


def test_exception_is_recorded_as_failure(client: Client, path: str) -> None:
    lock = client.mutex(path, timeout=LIMIT)
    with pytest.raises(KeyError, match="row 7"), lock.hold() as hold, hold.once_per("@daily", zone="UTC"):
        raise KeyError("row 7")
    assert results(client.past_runs(path)) == [(FAILED, "KeyError: 'row 7'")]
    with lock.hold() as hold, hold.once_per("day", zone="UTC") as run:
        assert run is None
    with pytest.raises(SystemExit), lock.hold() as hold, hold.once_per("day", zone="UTC", retry_failed=True):
        raise SystemExit
    with lock.hold() as hold, hold.once_per("day", zone="UTC", retry_failed=True) as run:
        assert run is not None
        run.fail("3 rows are missing")
        with pytest.raises(ValueError, match="the run has already ended"):
            run.fail("again")
    assert results(client.past_runs(path))[:2] == [(FAILED, "3 rows are missing"), (FAILED, "SystemExit")]


def test_run_of_a_lost_hold_is_no_success(client: Client, path: str, inspector: Inspector) -> None:
    lock = client.mutex(path, timeout=LIMIT)
    with pytest.raises(zklock.LockLost), lock.hold() as hold, hold.once_per("day") as run:
        assert run is not None
        inspector.kazoo.delete(inspector.nodes(path)[0])
        hold.wait_lost(LIMIT)
    assert results(client.past_runs(path)) == [(RUNNING, None)]
    hold = lock.hold()
    hold.release()
    with pytest.raises(zklock.NotOwner):
        hold.once_per("day").__enter__()


def test_wrong_arguments(client: Client, path: str) -> None:
    with client.mutex(path).hold(timeout=LIMIT) as hold:
        wrong: list[tuple[Any, type[Exception], str]] = [
            (lambda: hold.once_per("noon"), ValueError, 'period is "noon"; expected minute, hour, day'),
            (lambda: hold.once_per("d\0y"), ValueError, "period is"),
            (lambda: hold.once_per("d\udcff"), ValueError, "expected text that UTF-8 can encode"),
            (lambda: hold.once_per(7), TypeError, "period: expected str, not int"),  # type: ignore[arg-type]
            (lambda: hold.once_per("day", zone="Mars/Base"), ValueError, 'zone is "Mars/Base"; expected the name'),
            (lambda: hold.once_per("day", zone="U\0C"), ValueError, "zone is"),
            (lambda: hold.once_per("day", zone=7), TypeError, "zone: expected str or None"),  # type: ignore[arg-type]
            (lambda: hold.once_per("day", retry_failed=7), TypeError, "retry_failed"),  # type: ignore[arg-type]
            (lambda: client.past_runs("no/path"), ValueError, "must start with '/'"),
            (lambda: client.past_runs("/"), ValueError, "path"),
        ]
        for call, kind, message in wrong:
            with pytest.raises(kind, match=message):
                call()
    read = client.rwlock(path).read
    with read.hold(timeout=LIMIT) as hold, pytest.raises(ValueError, match="only one participant can hold"):
        hold.once_per("day").__enter__()


def test_other_data_in_the_node_is_refused(client: Client, path: str, inspector: Inspector) -> None:
    inspector.kazoo.create(f"{path}-runs", b"something else", makepath=True)
    with pytest.raises(ValueError, match=f"the node {path}-runs is no record of runs"):
        client.past_runs(path)


def test_command_and_package_have_the_same_record(client: Client, server: ZooKeeper, path: str) -> None:
    """A cron line and a program decide together which of them runs the job."""
    lock = client.mutex(path, timeout=LIMIT)
    with lock.hold() as hold, hold.once_per("day", zone="UTC") as run:
        assert run is not None
    assert command(server, path, "true") == 75
    assert command(server, f"{path}-2", "sh", "-c", "exit 3") == 3
    assert results(client.past_runs(f"{path}-2")) == [(FAILED, "exit code 3")]
    with client.mutex(f"{path}-2").hold(timeout=LIMIT) as hold:
        with hold.once_per("day", zone="UTC") as run:
            assert run is None
        with hold.once_per("day", zone="UTC", retry_failed=True) as run:
            assert run is not None
    assert command(server, "--retry-failed", f"{path}-2", "true") == 75


def test_tasks_run_a_job_once(loops: Loops, server: ZooKeeper, path: str) -> None:
    async def main() -> None:
        async with AioClient(server.address) as client:
            lock = client.mutex(path, timeout=LIMIT)
            assert await client.past_runs(path) == []
            with pytest.raises(KeyError):
                async with lock.hold() as hold, hold.once_per("day", zone="UTC") as run:
                    assert repr(run) == f"<zklock.aio.Run '{path}' running>"
                    raise KeyError("row 7")
            assert results(await client.past_runs(path)) == [(FAILED, "KeyError: 'row 7'")]
            async with lock.hold() as hold:
                async with hold.once_per("day", zone="UTC") as run:
                    assert run is None
                async with hold.once_per("day", zone="UTC", retry_failed=True) as run:
                    assert run is not None
                    await run.fail("3 rows are missing")
                    with pytest.raises(ValueError, match="the run has already ended"):
                        await run.fail("again")
                async with hold.once_per("day", zone="UTC", retry_failed=True):
                    assert (await client.past_runs(path))[0].result is RUNNING
            runs = await client.past_runs(path)
            assert results(runs)[:2] == [(SUCCEEDED, None), (FAILED, "3 rows are missing")]
            async with client.rwlock(path).read.hold(timeout=LIMIT) as hold:
                with pytest.raises(ValueError, match="only one participant can hold"):
                    await hold.once_per("day").__aenter__()
                with pytest.raises(ValueError, match="period is"):
                    hold.once_per("noon")

    loops.run(main())


def test_cancelled_task(loops: Loops, server: ZooKeeper, path: str) -> None:
    """A cancelled block is a failure."""

    async def block(lock: zklock.aio.Lock, entered: asyncio.Event) -> None:
        async with lock.hold() as hold, hold.once_per("day", zone="UTC"):
            entered.set()
            await asyncio.sleep(LIMIT)

    async def main() -> None:
        async with AioClient(server.address) as aio_client:
            lock = aio_client.mutex(path, timeout=LIMIT)
            entered = asyncio.Event()
            task = asyncio.ensure_future(block(lock, entered))
            # The record contains the run before the task has entered the block.
            await entered.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            # The library records the failure in the background.
            while results(await aio_client.past_runs(path)) != [(FAILED, "CancelledError")]:
                await asyncio.sleep(0.01)

    loops.run(main())


def test_cancelled_beginning(loops: Loops) -> None:
    """A run that the task has not received does not count."""

    async def main(server: StandaloneServer) -> None:
        async with AioClient(server.address) as client, client.mutex("/a").hold() as hold:
            # The answer, which would end the call, does not arrive before the cancellation.
            server.freeze(client)
            beginning = asyncio.ensure_future(hold.once_per("day", zone="UTC").__aenter__())
            await asyncio.sleep(0)
            beginning.cancel()
            with pytest.raises(asyncio.CancelledError):
                await beginning
            server.thaw(client)
            # If the call continued, the server would perform its write before the second of these reads.
            await client.past_runs("/a")
            assert await client.past_runs("/a") == []

    with StandaloneServer() as server:
        loops.run(main(server))
