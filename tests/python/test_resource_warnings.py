"""Holds that a program leaves behind: a ResourceWarning names the path."""

from __future__ import annotations

import ctypes
import gc
import re
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import zklock
from conftest import LIMIT, Inspector, Waiter, needs, wait_until
from server import ZooKeeper
from zklock import Client

MAKERS: list[Callable[[Client, str], zklock.Lock]] = [
    lambda client, path: client.mutex(path),
    lambda client, path: client.semaphore_mutex(path),
    lambda client, path: client.rwlock(path).read,
    lambda client, path: client.rwlock(path).write,
    lambda client, path: client.multi([path]),
]
KINDS = ["mutex", "semaphore mutex", "read", "write", "multi"]


@contextmanager
def warned() -> Iterator[list[str]]:
    """Collect the texts of the warnings of a block. Fail if one of them is not a ResourceWarning."""
    texts: list[str] = []
    gc.collect()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield texts
        gc.collect()
    assert all(one.category is ResourceWarning for one in found), found
    texts.extend(str(one.message) for one in found)


@pytest.mark.parametrize("make", MAKERS, ids=KINDS)
def test_a_forgotten_lock_stays_taken_until_its_client_ends(
    server: ZooKeeper, client: Client, path: str, make: Callable[[Client, str], zklock.Lock]
) -> None:
    def take(own: Client) -> bool:
        return make(own, path).acquire(timeout=0)

    other = make(client, path) if not isinstance(make(client, path), zklock.ReadLock) else client.rwlock(path).write
    with warned() as texts, Client(server.address) as own:
        assert take(own)
        gc.collect()
        assert not other.acquire(timeout=0)
    assert texts == []
    assert other.acquire(timeout=LIMIT)
    other.release()


def test_a_forgotten_lock_calls_its_callbacks(server: ZooKeeper, path: str) -> None:
    lost: list[Any] = []
    with Client(server.address) as own:
        lock = own.mutex(path)
        lock.on_lost(lost.append)
        lock.acquire()
        del lock
        gc.collect()
    assert [event.state for event in lost] == [zklock.LockState.FREE]


def test_released_locks_are_collected(client: Client, path: str) -> None:
    for release in ("release", "release_nowait"):
        lock = client.mutex(path)
        seen = weakref.ref(lock)
        lock.acquire()
        hold = lock.hold()
        getattr(lock, release)()
        hold.release()
        del lock, hold
        gc.collect()
        assert seen() is None


@pytest.mark.filterwarnings("ignore:the client of .* was not closed:ResourceWarning")
def test_a_lock_in_a_cycle_ends_with_its_client(server: ZooKeeper, path: str, inspector: Inspector) -> None:
    with warned() as texts:
        cycle: list[Any] = [Client(server.address)]
        cycle.append(cycle[0].mutex(path))
        cycle[1].set_revocable(lambda node: cycle.clear())  # noqa: F821
        cycle[1].acquire()
        del cycle
    [text] = [text for text in texts if "the client of" not in text]
    assert repr(path) in text
    wait_until(lambda: inspector.below(path) == [])


def test_dropped_handles_are_logged(client: Client, path: str, caplog: pytest.LogCaptureFixture) -> None:
    lock = client.mutex(f"{path}/hold")
    with warned() as texts:
        lock.hold()
        client.semaphore(f"{path}/leases", 1).acquire()
    assert len(texts) == 2
    wait_until(lambda: {"hold", "leases"} <= set(re.findall(rf"{path}/(hold|leases)", caplog.text)))
    assert {record.name for record in caplog.records} == {"zklock.lock"}


def test_leases_that_are_collected(client: Client, path: str, inspector: Inspector) -> None:
    with warned() as texts:
        client.semaphore(path, 3).acquire(2)
    [text] = texts
    assert repr(path) in text
    assert "2 leases were released because their object was garbage-collected" in text
    wait_until(lambda: inspector.below(path) == [])


def test_a_hold_that_is_collected(client: Client, path: str, inspector: Inspector) -> None:
    lock = client.mutex(path)
    with warned() as texts:
        lock.hold()
    [text] = texts
    assert repr(path) in text
    assert "its Hold was garbage-collected" in text
    assert not lock.is_held
    wait_until(lambda: inspector.below(path) == [])


@pytest.mark.parametrize("make", MAKERS, ids=KINDS)
def test_released_locks_give_no_warning(client: Client, path: str, make: Callable[[Client, str], zklock.Lock]) -> None:
    def use() -> None:
        lock = make(client, path)
        with lock, lock.hold() if not isinstance(lock, zklock.SemaphoreMutex) else warnings.catch_warnings():
            pass
        lock.acquire()
        lock.release_nowait()
        assert lock.acquire(timeout=0)
        lock.release()
        with client.semaphore(f"{path}-pool", 1).acquire():
            pass

    with warned() as texts:
        use()
        Waiter(use).result()
    assert texts == []


def test_the_end_of_a_client_is_not_warned_of(server: ZooKeeper, path: str) -> None:
    with warned() as texts:
        with Client(server.address) as client:
            lock, leases = client.mutex(path), client.semaphore(f"{path}-pool", 1).acquire()
            lock.acquire()
            hold = client.mutex(f"{path}-hold").hold()
        del client, lock, leases, hold
    assert texts == []


def test_a_lost_hold_is_not_warned_of(client: Client, path: str, inspector: Inspector) -> None:
    """Nothing is released, because the node does not exist any more."""
    with warned() as texts:
        holds = [client.mutex(path).hold()]
        inspector.kazoo.delete(holds[0].lock.node_path)
        wait_until(lambda: holds[0].is_lost)
        holds.clear()
    assert texts == []


def thread(call: Callable[[], Any], name: str) -> None:
    worker = threading.Thread(target=call, name=name)
    worker.start()
    worker.join(60)
    assert not worker.is_alive()


@pytest.mark.parametrize("make", MAKERS[:1] + MAKERS[2:], ids=KINDS[:1] + KINDS[2:])
def test_a_thread_that_ends_with_a_hold(client: Client, path: str, make: Callable[[Client, str], zklock.Lock]) -> None:
    """The hold stays, because the program may have intended it. No other thread can release it."""
    lock = make(client, path)
    with warned() as texts:
        thread(lambda: (lock.acquire(), lock.acquire(), lock.release()), "worker-7")
    [text] = texts
    assert text.startswith("thread 'worker-7' ended while it holds <zklock.")
    assert repr(path) in text
    assert "HELD token=" in text
    assert lock.is_held_in_process
    with pytest.raises(zklock.NotOwner):
        lock.release()


def test_thread_that_ends_with_a_transferable_hold_gives_no_warning(client: Client, path: str) -> None:
    job, both, holds = client.semaphore_mutex(path), client.multi([client.semaphore_mutex(f"{path}-b")]), []
    mutex = client.mutex(f"{path}-c")
    with warned() as texts:
        thread(lambda: (job.acquire(), both.acquire(), holds.append(mutex.hold())), "worker-8")
    assert texts == []
    for thing in (job, both, *holds):
        thing.release()


def test_a_thread_that_hands_its_hold_over_is_not_warned_of(client: Client, path: str) -> None:
    lock, holds = client.mutex(path), []

    def work() -> None:
        with lock:
            holds.append(lock.hold())

    with warned() as texts:
        thread(work, "worker-10")
    assert texts == []
    assert holds[0].is_held
    holds[0].release()


def test_a_thread_that_python_did_not_start_is_not_warned_of(client: Client, path: str) -> None:
    """The thread-local storage of such a thread ends when it leaves the interpreter, although the thread goes on."""
    c, lock, got = ctypes.CDLL(None), client.mutex(path), []
    start = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _: got.append(lock.acquire()))
    number = ctypes.c_ulong()
    with warned() as texts:
        assert c.pthread_create(ctypes.byref(number), None, start, None) == 0
        assert c.pthread_join(number, None) == 0
    assert got == [True]
    assert texts == []
    assert lock.is_held_in_process


def test_a_thread_that_ends_with_a_lost_hold(client: Client, path: str, inspector: Inspector) -> None:
    lock = client.mutex(path)

    def lose() -> None:
        lock.acquire()
        inspector.kazoo.delete(lock.node_path)
        wait_until(lambda: lock.state is zklock.LockState.LOST)

    with warned() as texts:
        thread(lose, "worker-9")
    assert texts == []
    assert lock.state_in_process is zklock.LockState.FREE


# -X dev shows the warnings. -W error turns them into exceptions that the program cannot catch.
LEAVES = """
import sys, threading, zklock
with zklock.Client(sys.argv[1]) as client:
    client.mutex(sys.argv[2]).acquire()
    lock = client.mutex(sys.argv[2] + "/thread")
    worker = threading.Thread(target=lock.acquire, name="worker")
    worker.start()
    worker.join()
    try:
        client.mutex(sys.argv[2] + "/raised").acquire(), 1 / 0
    except ZeroDivisionError:
        print("raised")
lock = zklock.Client(sys.argv[1]).mutex(sys.argv[2] + "/end")
lock.acquire()
print("ends")
"""


@pytest.mark.parametrize("options", [["-X", "dev"], ["-W", "error"], []], ids=["dev", "error", "default"])
def test_program_exit_with_a_hold_warns(server: ZooKeeper, path: str, options: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, *options, "-c", LEAVES, server.address, path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "raised\nends\n"
    named = re.findall(r"ResourceWarning: (?:thread 'worker' ended while it holds <zklock.Mutex )?'(.*?)'", done.stderr)
    assert named == ([f"{path}/thread"] if options else []), done.stderr


GREENLETS = """
import sys, warnings, zklock
warnings.simplefilter("ignore", DeprecationWarning)
import {0}
with zklock.Client(sys.argv[1]) as client:
    lock = client.mutex(sys.argv[2])
    def work():
        lock.acquire()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        {1}
        # The warning appears although the lock object still exists.
        print(*[one.category.__name__ for one in found if "ended while it holds" in str(one.message)])
        print(sys.argv[2] in str(found[0].message), lock.is_held_in_process, lock.is_held)
        def leave():
            with lock_2:
                pass
        lock_2 = client.mutex(sys.argv[2] + "/2")
        found.clear()
        {2}
        del greenlet
        print(len(found))
"""
FRAMEWORKS = {
    "gevent": (
        "greenlet = gevent.spawn(work); greenlet.join(); gevent.sleep()",
        "greenlet = gevent.spawn(leave); greenlet.join()",
    ),
    "eventlet": (
        "greenlet = eventlet.spawn(work); greenlet.wait()",
        "greenlet = eventlet.spawn(leave); greenlet.wait()",
    ),
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_greenlet_that_ends_with_a_hold(server: ZooKeeper, path: str, framework: str) -> None:
    needs(framework)
    code = GREENLETS.format(framework, *FRAMEWORKS[framework])
    done = subprocess.run(
        [sys.executable, "-c", code, server.address, path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ResourceWarning\nTrue True False\n0\n", done.stdout + done.stderr
