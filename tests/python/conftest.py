"""Common fixtures. Every test uses a real server and its own path, and may read the znodes with kazoo, an independent
client.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

import zklock
import zklock.aio
from server import ZooKeeper

T = TypeVar("T")

# How long a test waits for a condition, in seconds. A correct program needs a fraction of a second on an idle machine.
LIMIT = 60.0

# A shell ignores SIGINT in the commands that it starts in the background, and every child would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "TEST_ZKLOCK_REVERSE_ORDER" in os.environ:
        items.reverse()


def needs(framework: str) -> None:
    """Check that the framework is installed. An import would change how this process forks."""
    assert importlib.util.find_spec(framework) is not None, f"{framework} is missing: make setup installs it"


def wait_until(condition: Callable[[], Any], seconds: float = LIMIT) -> Any:
    """Wait until the condition is true, and return its value."""
    started = time.monotonic()
    while not (result := condition()):
        waited = time.monotonic() - started
        assert waited < seconds, f"not within {seconds} s"
        time.sleep(poll_interval(waited))
    return result


def poll_interval(waited: float) -> float:
    """Return the pause before the next check of a condition. Most checks ask a server, so the checks of a long wait
    become rarer. Many tests wait at the same time, and frequent checks would keep all processors busy.
    """
    return min(max(waited / 4, 0.002), 0.04)


LIMITS_ARE_EXACT = "TEST_ZKLOCK_EXACT_LIMITS" in os.environ
# How late a result may be, in seconds. A busy machine may delay every thread and every server.
SLACK = 1.0 if LIMITS_ARE_EXACT else 10.0


def ends_at_limit(limit: float, call: Callable[[], T]) -> T:
    """Check that a call ends at its time limit in seconds, and never before it. If the limits are exact, the call must
    end at most 0.1 s after its limit. Return the result of the call. Several attempts are allowed, because a busy
    machine may delay a thread. If the server owes an answer at the deadline of an acquire, the acquire raises
    ConnectionLost instead of LockTimeout, and is tried again.
    """
    deadline = time.monotonic() + 60
    late: list[float] = []
    while len(late) < 5:
        results: list[T] = []
        started = time.monotonic()
        with suppress(zklock.ConnectionLost):
            results.append(call())
        took = time.monotonic() - started
        assert took >= limit, f"{limit} s: too early, after {took} s"
        if not results:
            assert time.monotonic() < deadline, f"{limit} s: ConnectionLost every time, the last after {took} s"
        elif took < limit + (0.1 if LIMITS_ARE_EXACT else SLACK):
            return results[0]
        else:
            late.append(took)
    pytest.fail(f"{limit} s: too late every time, after {late}")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    with ZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ZooKeeper]:
    """A server that the test may kill or pause."""
    with ZooKeeper(tmp_path) as server:
        yield server


@pytest.fixture
def client(server: ZooKeeper) -> Iterator[zklock.Client]:
    with zklock.Client(server.address) as client:
        yield client


@pytest.fixture
def other_client(server: ZooKeeper) -> Iterator[zklock.Client]:
    with zklock.Client(server.address) as client:
        yield client


@pytest.fixture
def path() -> str:
    return f"/zklock-python/{uuid.uuid4()}"


class Inspector:
    """Reads the znodes with another library."""

    def __init__(self, kazoo: KazooClient) -> None:
        self.kazoo = kazoo

    def nodes(self, path: str) -> list[str]:
        """Return the lock's nodes in the order of its queue."""
        try:
            names = self.kazoo.get_children(path)
        except NoNodeError:
            return []
        return [f"{path}/{name}" for name in sorted(names, key=lambda name: name[-10:])]

    def below(self, path: str) -> list[str]:
        """Return the ephemeral nodes of a whole tree."""
        try:
            children = self.kazoo.get_children(path)
            is_ephemeral = self.kazoo.get(path)[1].ephemeralOwner != 0
        except NoNodeError:
            return []
        return [path] * is_ephemeral + [node for name in children for node in self.below(f"{path}/{name}")]

    def wait_for(self, path: str, count: int) -> list[str]:
        wait_until(lambda: len(self.nodes(path)) == count)
        return self.nodes(path)


@pytest.fixture(scope="session")
def session_inspector(server: ZooKeeper) -> Iterator[Inspector]:
    kazoo = KazooClient(server.address)
    kazoo.start()
    yield Inspector(kazoo)
    kazoo.stop()
    kazoo.close()


@pytest.fixture
def inspector(session_inspector: Inspector) -> Inspector:
    return session_inspector


class Waiter:
    """A call on a separate thread."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._outcome: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._outcome = self._call()
        except BaseException as error:
            self._error = error

    def result(self, seconds: float = LIMIT) -> Any:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "it still runs"
        if self._error is not None:
            raise self._error
        return self._outcome


class Program:
    """A Python process that exchanges lines with the test."""

    def __init__(self, code: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-W", "error", "-c", code, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def read_line(self, seconds: float = LIMIT) -> str:
        """Return its next line, or an empty text at the end of its output."""
        assert self.process.stdout is not None
        line = b""
        deadline = time.monotonic() + seconds
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no line within {seconds} s, only {line!r}"
            byte = self.process.stdout.read(1)
            if not byte:
                break
            line += byte
        return line.decode().rstrip("\n")

    def write_line(self, line: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")

    def close_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None

    def ends(self, seconds: float = LIMIT) -> int:
        return self.process.wait(seconds)


@pytest.fixture
def program() -> Iterator[Callable[..., Program]]:
    started: list[Program] = []

    def start(code: str, *arguments: str) -> Program:
        started.append(Program(code, *arguments))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.communicate()


class Loops:
    """Event loops of one kind. An error that their exception handlers receive fails the test."""

    def __init__(self, make: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self.make = make
        self.reports: list[dict[str, Any]] = []

    def run(self, main: Coroutine[Any, Any, T], seconds: float = 2 * LIMIT) -> T:
        """Run like ``asyncio.run()``, in debug mode and with a time limit in seconds."""
        loop = self.make()
        loop.set_debug(True)
        loop.set_exception_handler(lambda _, report: self.reports.append(report))
        try:
            task = loop.create_task(main)
            handle = loop.call_later(seconds, task.cancel)
            try:
                return loop.run_until_complete(task)
            finally:
                handle.cancel()
                left = asyncio.all_tasks(loop)
                for other in left:
                    other.cancel()
                if left:
                    loop.run_until_complete(asyncio.wait(left))
                loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()


def uvloops() -> asyncio.AbstractEventLoop:
    return pytest.importorskip("uvloop").new_event_loop()


@pytest.fixture(params=[asyncio.SelectorEventLoop, uvloops], ids=["asyncio", "uvloop"])
def loops(request: pytest.FixtureRequest) -> Iterator[Loops]:
    loops = Loops(request.param)
    yield loops
    assert not loops.reports, loops.reports


async def until(condition: Callable[[], Any], seconds: float = LIMIT) -> Any:
    """Wait until the condition is true while the loop runs, and return its value."""
    started = time.monotonic()
    while not (result := condition()):
        waited = time.monotonic() - started
        assert waited < seconds, f"not within {seconds} s"
        await asyncio.sleep(poll_interval(waited))
    return result
