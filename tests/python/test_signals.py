"""Ctrl-C and other signals interrupt a wait, and no node remains."""

from __future__ import annotations

import _thread
import operator
import os
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress

import pytest

import zklock
from conftest import Inspector, Program, Waiter, wait_until
from server import ZooKeeper

WAITS = """
import sys, zklock
with zklock.Client(sys.argv[1]) as client:
    lock = client.mutex(sys.argv[2])
    print("waits", flush=True)
    try:
        {wait}
    except KeyboardInterrupt:
        print("interrupted", lock.state.name, flush=True)
    input()
    print(lock.acquire(timeout=60), flush=True)
"""


@pytest.mark.parametrize("wait", ["lock.acquire()", "lock.acquire(timeout=60)", "lock.__enter__()"])
def test_ctrl_c(
    client: zklock.Client,
    path: str,
    inspector: Inspector,
    server: ZooKeeper,
    program: Callable[..., Program],
    wait: str,
) -> None:
    with client.mutex(path):
        waiting = program(WAITS.format(wait=wait), server.address, path)
        assert waiting.read_line() == "waits"
        inspector.wait_for(path, 2)
        started = time.monotonic()
        waiting.process.send_signal(signal.SIGINT)
        assert waiting.read_line() == "interrupted FREE"
        assert time.monotonic() - started < 5
        inspector.wait_for(path, 1)
    waiting.write_line()
    assert waiting.read_line() == "True"
    assert waiting.ends() == 0
    assert inspector.nodes(path) == []


INTERRUPTED = """
import sys, zklock
with zklock.Client(sys.argv[1]) as client:
    path = sys.argv[2]
    thing = {thing}
    input()
    try:
        print("waits", flush=True)
        {wait}
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    input()
    with {again}:
        print("again", flush=True)
"""
SEMAPHORE = "client.semaphore(path, 1)"
MULTI = "client.multi([client.mutex(path + '/a'), client.semaphore_mutex(path + '/b')])"
WAITS_OF_OTHERS = [
    ("client.semaphore_mutex(path)", "thing.acquire()", "thing"),
    ("client.semaphore_mutex(path)", "thing.__enter__()", "thing"),
    ("client.rwlock(path).read", "thing.acquire()", "thing"),
    ("client.rwlock(path).write", "thing.acquire(timeout=60)", "thing"),
    (MULTI, "thing.acquire()", "thing"),
    (MULTI, "thing.__enter__()", "thing"),
    (SEMAPHORE, "thing.acquire()", "thing.acquire(timeout=60)"),
    (SEMAPHORE, "thing.acquire(1, timeout=60)", "thing.acquire(timeout=60)"),
    ("client.semaphore(path, count_path=path + '-count', initial=1)", "thing.acquire()", "thing.acquire(timeout=60)"),
]


@pytest.mark.parametrize(("thing", "wait", "again"), WAITS_OF_OTHERS)
def test_ctrl_c_of_every_recipe(
    client: zklock.Client,
    path: str,
    inspector: Inspector,
    server: ZooKeeper,
    program: Callable[..., Program],
    thing: str,
    wait: str,
    again: str,
) -> None:
    held = eval(thing, {"client": client, "path": path})
    held = held.write if isinstance(held, zklock.RwLock) else held
    if isinstance(held, zklock.ReadLock):
        held = client.rwlock(path).write
    waiting = program(INTERRUPTED.format(thing=thing, wait=wait, again=again), server.address, path)
    with held.acquire() if isinstance(held, zklock.Semaphore) else held:
        count = len(inspector.below(path))
        waiting.write_line()
        assert waiting.read_line() == "waits"
        wait_until(lambda: len(inspector.below(path)) > count)
        started = time.monotonic()
        waiting.process.send_signal(signal.SIGINT)
        assert waiting.read_line() == "interrupted"
        assert time.monotonic() - started < 5
        wait_until(lambda: len(inspector.below(path)) == count)
    waiting.write_line()
    assert waiting.read_line() == "again"
    assert waiting.ends() == 0
    assert inspector.below(path) == []


def test_ctrl_c_that_nobody_catches(
    client: zklock.Client, path: str, inspector: Inspector, server: ZooKeeper, program: Callable[..., Program]
) -> None:
    code = "import sys, zklock\nwith zklock.Client(sys.argv[1]) as client, client.mutex(sys.argv[2]): pass"
    with client.mutex(path):
        waiting = program(f"import os; os.dup2(os.open(os.devnull, os.O_WRONLY), 2)\n{code}", server.address, path)
        inspector.wait_for(path, 2)
        waiting.process.send_signal(signal.SIGINT)
        assert waiting.ends() == -signal.SIGINT
        assert len(inspector.nodes(path)) == 1


def test_ctrl_c_while_it_connects(program: Callable[..., Program]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        code = """
import sys, zklock
try:
    zklock.Client(sys.argv[1], connect_timeout=60)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
        connecting = program(code, f"127.0.0.1:{silent.getsockname()[1]}")
        accepted, _ = silent.accept()
        with accepted:
            started = time.monotonic()
            connecting.process.send_signal(signal.SIGINT)
            assert connecting.read_line() == "interrupted"
            assert connecting.ends() == 0
            assert time.monotonic() - started < 5


class Alarm(Exception):
    pass


def test_handlers_run_while_the_main_thread_waits(
    client: zklock.Client, other_client: zklock.Client, path: str, inspector: Inspector
) -> None:
    calls: list[str] = []

    def only_note(*_: object) -> None:
        calls.append("noted")

    def also_raise(*_: object) -> None:
        calls.append("raised")
        raise Alarm

    def send(lock: zklock.Mutex) -> None:
        lock.acquire()
        inspector.wait_for(path, 2)
        os.kill(os.getpid(), signal.SIGUSR1)
        while not calls:
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGUSR2)
        while len(calls) < 2:
            time.sleep(0.005)
        inspector.wait_for(path, 1)
        lock.release()

    before = signal.signal(signal.SIGUSR1, only_note), signal.signal(signal.SIGUSR2, also_raise)
    try:
        sending = Waiter(lambda: send(other_client.mutex(path)))
        inspector.wait_for(path, 1)
        lock = client.mutex(path)
        with pytest.raises(Alarm):
            lock.acquire()
        sending.result()
        assert calls == ["noted", "raised"]
        assert lock.acquire(timeout=0)
        lock.release()
    finally:
        signal.signal(signal.SIGUSR1, before[0])
        signal.signal(signal.SIGUSR2, before[1])


def test_a_signal_every_millisecond_disturbs_no_wait(
    client: zklock.Client, other_client: zklock.Client, path: str
) -> None:
    """The signals neither end a wait nor change its length."""
    signals: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: signals.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        with client.mutex(path) as lock:
            started = time.monotonic()
            assert not other_client.mutex(path).acquire(timeout=1)
            assert 1 <= time.monotonic() - started < 5
            wait_until(lambda: len(lock.participants()) == 1)
            semaphore = client.semaphore(path + "-semaphore", count_path=path + "-count", initial=1)
            with semaphore.acquire(), pytest.raises(zklock.LockTimeout):
                semaphore.acquire(timeout=1)
            client.shared_count_set(path + "-count", 2)
            assert client.shared_count_get(path + "-count") == 2
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(signals) > 3


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a with block of its own may miss its __exit__: bpo-29988")
def test_a_signal_in_any_moment_leaves_nothing(client: zklock.Client, path: str, inspector: Inspector) -> None:
    """The signals also come at moments in which an acquire has just succeeded."""
    lock = client.mutex(path)
    looping = threading.Event()

    def raise_alarm(*_: object) -> None:
        raise Alarm

    def send() -> None:
        looping.wait()
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, raise_alarm)
    try:
        for _ in range(50):
            sending = Waiter(send)
            with pytest.raises(Alarm):
                while True:
                    with lock:
                        looping.set()
            sending.result()
            assert not lock.is_held
            looping.clear()
        inspector.wait_for(path, 0)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_nothing_runs_python_code_between_the_acquire_and_its_return(client: zklock.Client, path: str) -> None:
    """A signal handler runs only in Python code. An exception of a handler must not separate a hold from its record."""
    calls: list[str] = []
    lock = client.mutex(path)
    with lock:  # The first acquire of a thread makes a record for the thread.
        pass
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        with lock:
            calls.append("acquired")
        lock.acquire()
        lock.release()
    finally:
        sys.setprofile(None)
    # The native module reads the configuration of `logging` before each acquire.
    assert set(calls) - {"effective_level", "getEffectiveLevel", "<listcomp>"} == {"acquired"}
    assert calls[calls.index("acquired") + 1] == "effective_level"


def test_no_signal_is_lost(client: zklock.Client, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception of a signal handler always reaches the program, also from a call that does not wait."""
    lost: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    lock, semaphore = client.mutex(path), client.semaphore(path + "-semaphore", 2)
    objects = [client, lock, semaphore, client.rwlock(path + "-rw"), client.multi([lock, path + "-other"])]

    def raise_alarm(*_: object) -> None:
        raise Alarm

    before = signal.signal(signal.SIGVTALRM, raise_alarm)
    try:
        for _ in range(300):
            with suppress(Alarm):
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.001)
                while not lost:
                    for one in objects:
                        repr(one)
                    with suppress(ValueError):
                        client.semaphore(path, 2**40)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    assert lost == []


class InterruptingRef(weakref.ref):  # type: ignore[type-arg]
    """A weak reference that can report Ctrl-C to the interpreter. No Python code runs during the call."""

    interrupt = staticmethod(_thread.interrupt_main)


class Referent:
    """An object that a weak reference can refer to."""


TAKE = pytest.mark.parametrize(
    "take",
    [
        lambda client, path: client.mutex(path).hold(),
        lambda client, path: client.semaphore(path, 1).acquire(),
    ],
    ids=["Hold", "Leases"],
)


@TAKE
def test_ctrl_c_is_not_lost_when_a_held_object_is_collected(
    client: zklock.Client, path: str, inspector: Inspector, take: Callable[[zklock.Client, str], object]
) -> None:
    # A list drops its last object first. Ctrl-C is therefore pending when the list drops the held object.
    last = Referent()
    interrupting = InterruptingRef(last, operator.methodcaller("interrupt"))
    objects = [take(client, path), last]
    del last
    with pytest.raises(KeyboardInterrupt):
        del objects
        for _ in range(1000):
            pass
    assert interrupting() is None
    wait_until(lambda: inspector.below(path) == [])


@TAKE
def test_exception_that_drops_a_held_object_is_raised(
    client: zklock.Client, path: str, inspector: Inspector, take: Callable[[zklock.Client, str], object]
) -> None:
    with pytest.raises(ZeroDivisionError):
        (take(client, path), 1 // 0)
    wait_until(lambda: inspector.below(path) == [])


REPR = """
import signal, sys, zklock
client, signals = zklock.Client(sys.argv[1]), []

def show(number, _):
    signals.append(number)
    repr(client)
    # The last signal starts no timer, which could end the process after Python has removed this handler.
    if len(signals) < 500:
        signal.setitimer(signal.ITIMER_REAL, 0.0005)

signal.signal(signal.SIGALRM, show)
signal.setitimer(signal.ITIMER_REAL, 0.0005)
while len(signals) < 500:
    repr(client)
print("ends", flush=True)
"""


def test_handler_may_use_repr_of_a_client_during_repr(server: ZooKeeper, program: Callable[..., Program]) -> None:
    running = program(REPR, server.address)
    assert running.read_line() == "ends"
    assert running.ends() == 0


@pytest.mark.parametrize(
    "wait",
    [
        "lock.release()",
        "lock.participants()",
        "lock.__exit__(None, None, None)",
        "multi.release()",
        "multi.participants()",
        "rw.queue()",
        "rw.read.release()",
        "semaphore.participants()",
        "semaphore.acquire()",
        "leases.release()",
        "leases.__exit__(None, None, None)",
        "client.shared_count_get('/a')",
        "client.shared_count_set('/a', 1)",
        "client.revoke('/a')",
        "client.fence_check('/a', 1)",
        "client.semaphore('/a', count_path='/b', initial=1)",
    ],
)
def test_ctrl_c_where_the_server_does_not_answer(
    own_server: ZooKeeper, path: str, program: Callable[..., Program], wait: str
) -> None:
    waiting = program(HOLDS_FIRST.format(wait=wait), own_server.address, path)
    assert waiting.read_line() == "holds"
    own_server.pause()
    waiting.write_line()
    assert waiting.read_line() == "waits"
    started = time.monotonic()
    waiting.process.send_signal(signal.SIGINT)
    assert waiting.read_line() == "interrupted"
    assert time.monotonic() - started < 5
    waiting.process.kill()


HOLDS_FIRST = """
import sys, zklock
# A request without an answer fails after a third of this time.
client = zklock.Client(sys.argv[1], session_timeout=60)
lock = client.mutex(sys.argv[2])
lock.acquire()
multi = client.multi([client.mutex("/a"), client.semaphore_mutex("/b")])
multi.acquire()
rw = client.rwlock("/c")
rw.read.acquire()
semaphore = client.semaphore("/d", 2)
leases = semaphore.acquire()
print("holds", flush=True)
input()
try:
    print("waits", flush=True)
    {wait}
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
