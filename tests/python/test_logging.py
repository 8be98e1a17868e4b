"""Tests of the log, through ``logging``."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import zklock
from conftest import Inspector, Program, wait_until
from server import ZooKeeper
from zklock.testing import StandaloneServer


class EventRecorder(logging.Handler):
    """A handler that keeps its records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def of(self, path: str) -> list[str]:
        return [r.zklock["event"] for r in self.records if r.zklock.get("path") == path and r.name == "zklock.lock"]

    def events(self) -> list[str]:
        return [record.zklock["event"] for record in self.records]


@pytest.fixture
def heard() -> Iterator[EventRecorder]:
    logger, handler = logging.getLogger("zklock"), EventRecorder()
    before = logger.level
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(before)


def test_record_has_message_and_fields(server: ZooKeeper, path: str, heard: EventRecorder) -> None:
    logging.getLogger("zklock").setLevel(logging.DEBUG)
    started = time.time()
    with zklock.Client(server.address) as client:
        session = f"{client.session_id:#x}"
        with client.mutex(path) as lock:
            token = lock.fencing_token
        wait_until(lambda: heard.of(path) == ["acquired", "released"])
        acquired = next(record for record in heard.records if record.zklock["event"] == "acquired")
        begun = next(record for record in heard.records if record.zklock["event"] == "session established")
    assert (acquired.name, acquired.levelno, acquired.zklock["token"]) == ("zklock.lock", logging.DEBUG, token)
    assert acquired.getMessage().startswith(f"acquired path={path} owner=")
    assert acquired.zklock["handed_over"] is False
    assert acquired.zklock["waited_us"] >= 0
    # The record has the time of the event, and was delivered on the thread that calls callbacks.
    assert started <= acquired.created <= time.time()
    assert acquired.threadName == "zklock-events"
    assert (begun.name, begun.levelno, begun.zklock["session"]) == ("zklock.session", logging.INFO, session)
    assert begun.zklock["timeout_ms"] == 10000
    wait_until(lambda: heard.events()[-1] == "session closed")
    assert [record.created for record in heard.records] == sorted(record.created for record in heard.records)


def test_levels(server: ZooKeeper, path: str, caplog: pytest.LogCaptureFixture) -> None:
    def seen(level: int, name: str = "zklock") -> set[int]:
        caplog.clear()
        with caplog.at_level(level, logger=name):
            with zklock.Client(server.address) as client, client.mutex(path):
                pass
            wait_until(lambda: level > logging.INFO or any("closed" in text for text in caplog.messages))
            time.sleep(0.05)
        return {record.levelno for record in caplog.records if record.name.startswith("zklock")}

    assert seen(5) == {5, logging.DEBUG, logging.INFO}
    assert {record.name for record in caplog.records if record.levelno == 5} == {"zklock.request"}
    assert seen(logging.DEBUG) == {logging.DEBUG, logging.INFO}
    assert seen(logging.INFO) == {logging.INFO}
    assert seen(logging.WARNING) == set()


def test_a_level_that_is_set_later_counts(client: zklock.Client, path: str, heard: EventRecorder) -> None:
    lock = client.mutex(path)
    with lock:
        pass
    logging.getLogger("zklock.lock").setLevel(logging.DEBUG)
    try:
        with lock:
            pass
        wait_until(lambda: heard.of(path) == ["acquired", "released"])
    finally:
        logging.getLogger("zklock.lock").setLevel(logging.NOTSET)
    with lock:
        pass
    time.sleep(0.05)
    assert len(heard.of(path)) == 2


def test_a_loss_is_a_warning(
    server: ZooKeeper, path: str, inspector: Inspector, caplog: pytest.LogCaptureFixture
) -> None:
    with zklock.Client(server.address, session_timeout=3) as client:
        lock = client.mutex(path)
        with pytest.raises(zklock.LockLost), lock:
            inspector.kazoo.delete(lock.node_path)
            wait_until(lambda: caplog.records)
        (record,) = (record for record in caplog.records if record.name == "zklock.lock")
    assert (record.levelname, record.zklock["event"], record.zklock["path"]) == ("WARNING", "lock lost", path)  # type: ignore[attr-defined]
    assert "another client or an operator deleted its node" in record.getMessage()


def test_a_session_that_expires(zklock_server: StandaloneServer, heard: EventRecorder) -> None:
    with zklock.Client(zklock_server.address) as client:
        first = f"{client.session_id:#x}"
        zklock_server.expire(client)
        wait_until(lambda: "session expired" in heard.events())
        expired = next(record for record in heard.records if record.zklock["event"] == "session expired")
        lost = next(record for record in heard.records if record.zklock["event"] == "connection lost")
    assert (expired.levelname, expired.zklock["session"]) == ("WARNING", first)
    assert (lost.levelname, lost.zklock["server"]) == ("WARNING", zklock_server.address)


def test_a_handler_may_use_zklock(client: zklock.Client, path: str) -> None:
    lock, done = client.mutex(path), threading.Event()
    looks: list[object] = []

    class Curious(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.zklock["event"] == "acquired" and not looks:  # type: ignore[attr-defined]
                looks.append(lock.acquire(timeout=0))
                try:
                    lock.acquire()
                except zklock.Deadlock as refused:
                    looks.append(refused)
                done.set()

    logger, curious = logging.getLogger("zklock"), Curious(logging.DEBUG)
    logger.addHandler(curious)
    logger.setLevel(logging.DEBUG)
    try:
        with lock:
            assert done.wait(60)
    finally:
        logger.removeHandler(curious)
        logger.setLevel(logging.NOTSET)
    assert looks[0] is False
    assert isinstance(looks[1], zklock.Deadlock)


# The module logging handles the exceptions of a handler.
def test_a_handler_that_fails(
    client: zklock.Client, path: str, heard: EventRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            try:
                raise ZeroDivisionError
            except ZeroDivisionError:
                self.handleError(record)

    logger, broken = logging.getLogger("zklock"), Broken()
    logger.setLevel(logging.DEBUG)
    logger.addHandler(broken)
    try:
        with client.mutex(path):
            pass
        wait_until(lambda: heard.of(path) == ["acquired", "released"])
    finally:
        logger.removeHandler(broken)


FAILED_START = """
import logging, sys, threading, zklock
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")

def fail(self):
    threading.Thread.start = start
    raise RuntimeError("can't start new thread")

start, threading.Thread.start = threading.Thread.start, fail
try:
    zklock.Client(sys.argv[1])
except zklock.Exhausted as error:
    print(error, flush=True)
zklock.Client(sys.argv[1]).close()
"""


def test_lines_are_logged_after_a_start_of_the_thread_has_failed(
    server: ZooKeeper, program: Callable[..., Program]
) -> None:
    logging_program = program(FAILED_START, server.address)
    message = "the thread that calls the callbacks cannot be started: can't start new thread"
    assert logging_program.read_line() == message
    assert logging_program.read_line().startswith("session established session=0x")
    assert logging_program.read_line().startswith("session closed session=0x")
    assert logging_program.ends() == 0


SILENT = """
import sys, threading, zklock
client = zklock.Client(sys.argv[1])
with client.mutex(sys.argv[2]):
    pass
print([thread.name for thread in threading.enumerate()])
"""


def test_unconfigured_logging_prints_nothing(server: ZooKeeper, path: str, program: Callable[..., Program]) -> None:
    silent = program(SILENT, server.address, path)
    assert silent.read_line() == "['MainThread']"
    assert silent.ends() == 0


AT_THE_END = """
import logging, sys, zklock
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(name)s %(levelname)s %(message)s")
client = zklock.Client(sys.argv[1])
"""


def test_the_last_lines_come_before_the_end(server: ZooKeeper, program: Callable[..., Program]) -> None:
    for _ in range(5):
        ending = program(AT_THE_END, server.address)
        lines = []
        while line := ending.read_line():
            lines.append(line)
        assert ending.ends() == 0
        assert lines[-1].startswith("zklock.session INFO session closed session=0x"), lines
        assert any(line.startswith("zklock.session INFO session established session=0x") for line in lines)


STUCK = """
import logging, sys, time, zklock
class Stuck(logging.Handler):
    # Not emit(), which has a lock that logging itself waits for at the end.
    def handle(self, record):
        time.sleep(1000)
logging.getLogger().addHandler(Stuck())
logging.getLogger().setLevel(logging.DEBUG)
client = zklock.Client(sys.argv[1])
lock = client.mutex(sys.argv[2])
lock.acquire()
"""


def test_a_handler_that_is_stuck_does_not_keep_the_interpreter(
    server: ZooKeeper, path: str, program: Callable[..., Program]
) -> None:
    assert program(STUCK, server.address, path).ends(15) == 0


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_logs_for_itself(server: ZooKeeper, path: str, heard: EventRecorder) -> None:
    logging.getLogger("zklock").setLevel(logging.DEBUG)
    with zklock.Client(server.address) as client, client.mutex(path):
        wait_until(lambda: heard.of(path) == ["acquired"])
        child = os.fork()
        if child == 0:
            try:
                # The parent may have logged more before the fork, for example that it connected.
                heard.records.clear()
                time.sleep(0.1)
                assert heard.records == []
                with zklock.Client(server.address) as own, own.mutex(path + "-child"):
                    wait_until(lambda: heard.of(path + "-child") == ["acquired"])
                os._exit(7)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert heard.of(path) == ["acquired"]
        assert heard.of(path + "-child") == []
    wait_until(lambda: heard.of(path) == ["acquired", "released"])


def test_a_slow_handler_does_not_delay_a_loss(server: ZooKeeper, path: str, inspector: Inspector) -> None:
    gate, entered, lost = threading.Event(), threading.Event(), threading.Event()

    class Slow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            entered.set()
            gate.wait(60)

    handler = Slow()
    logging.getLogger("zklock").addHandler(handler)
    try:
        logging.getLogger("zklock").setLevel(logging.INFO)
        with zklock.Client(server.address) as client:
            assert entered.wait(60)
            lock = client.mutex(path)
            lock.on_lost(lambda _: lost.set())
            lock.acquire()
            inspector.kazoo.delete(lock.node_path)
            assert lost.wait(60)
            assert not gate.is_set()
            gate.set()
    finally:
        gate.set()
        logging.getLogger("zklock").removeHandler(handler)
