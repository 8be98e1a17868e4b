"""Tests of ``wait_lost()`` of locks, holds and leases."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import zklock
from conftest import Inspector, Program, Waiter, ends_at_limit, needs, wait_until
from server import ZooKeeper
from zklock import Client, LockState
from zklock.testing import StandaloneServer


def lock_of(client: Client, path: str) -> Any:
    lock = client.mutex(path)
    lock.acquire()
    return lock


MAKERS: list[Callable[[Client, str], Any]] = [
    lock_of,
    lambda client, path: client.rwlock(path).write.hold(),
    lambda client, path: client.semaphore(path, 2).acquire(2),
]
KINDS = ["lock", "hold", "leases"]


@pytest.mark.parametrize("make", MAKERS, ids=KINDS)
def test_timeout_and_zero_timeout_return_false_while_safe(
    client: Client, path: str, make: Callable[[Client, str], Any]
) -> None:
    held = make(client, path)
    assert held.wait_lost(0) is False
    assert ends_at_limit(0.15, lambda: held.wait_lost(0.15)) is False
    assert ends_at_limit(0.15, lambda: held.wait_lost(timeout=0.15)) is False
    held.release()
    for timeout in (0, 0.1, None):
        with pytest.raises(zklock.NotOwner):
            held.wait_lost(timeout)


@pytest.mark.parametrize("make", MAKERS[1:], ids=KINDS[1:])
def test_a_deleted_node_wakes_a_thread(
    client: Client, path: str, inspector: Inspector, make: Callable[[Client, str], Any]
) -> None:
    held = make(client, path)
    waiter = Waiter(held.wait_lost)
    limited = Waiter(lambda: held.wait_lost(20))
    time.sleep(0.05)
    for node in inspector.below(path):
        inspector.kazoo.delete(node)
    assert waiter.result() is True
    assert limited.result() is True
    assert held.wait_lost(0) is True
    with pytest.raises(zklock.LockLost):
        held.release()


def test_the_holder_itself_waits(client: Client, path: str, inspector: Inspector) -> None:
    lock = client.mutex(path)

    def work() -> bool:
        with lock:
            threading.Timer(0.05, inspector.kazoo.delete, [lock.node_path]).start()
            return lock.wait_lost()

    with pytest.raises(zklock.LockLost):
        Waiter(work).result()
    with pytest.raises(zklock.NotOwner):
        lock.wait_lost()


@pytest.mark.parametrize("make", MAKERS[1:], ids=KINDS[1:])
def test_release_and_close_end_wait_lost(
    client: Client, server: ZooKeeper, path: str, make: Callable[[Client, str], Any]
) -> None:
    held = make(client, path)
    waiter = Waiter(held.wait_lost)
    time.sleep(0.05)
    held.release()
    with pytest.raises(zklock.NotOwner):
        waiter.result()
    other = Client(server.address)
    held = make(other, path)
    waiter = Waiter(held.wait_lost)
    time.sleep(0.05)
    other.close()
    with pytest.raises(zklock.ClientClosed):
        waiter.result()


def test_a_lease_that_is_over(zklock_server: StandaloneServer) -> None:
    with Client(zklock_server.address, session_timeout=3) as client:
        hold = client.mutex("/a").hold()
        waiter = Waiter(hold.wait_lost)
        started = time.monotonic()
        zklock_server.freeze(client)
        assert waiter.result() is True
        assert time.monotonic() - started < 5
        assert hold.is_lost
        zklock_server.thaw(client)


def test_in_a_callback(client: Client, path: str) -> None:
    hold = client.mutex(path).hold()
    answers: list[Any] = []
    done = threading.Event()

    def call(event: zklock.Event) -> None:
        if done.is_set():
            return
        try:
            answers.append(hold.wait_lost(0))
            hold.wait_lost(0.1)
        except zklock.Deadlock as error:
            answers.append(error)
        done.set()

    client.on_event(call)
    with client.mutex(f"{path}/b"):
        assert done.wait(60)
    assert answers[0] is False
    assert isinstance(answers[1], zklock.Deadlock)
    hold.release()


INTERRUPTED = """
import sys, zklock
with zklock.Client(sys.argv[1]) as client, client.mutex(sys.argv[2]).hold() as hold:
    print("waits", flush=True)
    try:
        hold.wait_lost()
    except KeyboardInterrupt:
        print("interrupted", hold.is_held, flush=True)
"""


def test_ctrl_c(server: ZooKeeper, path: str, program: Callable[..., Program]) -> None:
    waiting = program(INTERRUPTED, server.address, path)
    assert waiting.read_line() == "waits"
    time.sleep(0.2)
    waiting.process.send_signal(signal.SIGINT)
    assert waiting.read_line() == "interrupted True"
    assert waiting.ends() == 0


STOPPED = """
import sys, zklock
with zklock.Client(sys.argv[1], session_timeout=2) as client:
    hold = client.mutex(sys.argv[2]).hold()
    print("waits", flush=True)
    print(hold.wait_lost(), hold.state.name in ("UNCERTAIN", "LOST", "HELD"), flush=True)
"""


def test_a_process_that_was_stopped(server: ZooKeeper, path: str, program: Callable[..., Program]) -> None:
    waiting = program(STOPPED, server.address, path)
    assert waiting.read_line() == "waits"
    time.sleep(0.2)
    os.kill(waiting.process.pid, signal.SIGSTOP)
    time.sleep(2.2)
    os.kill(waiting.process.pid, signal.SIGCONT)
    assert waiting.read_line() == "True True"
    waiting.ends()


GREENLETS = """
import sys, time, zklock
import {0} as framework
from kazoo.client import KazooClient
with zklock.Client(sys.argv[1]) as client:
    hold = client.mutex(sys.argv[2]).hold()
    turns = []
    def tick():
        while True:
            turns.append(1)
            framework.sleep(0.01)
    ticking = framework.spawn(tick)
    def work():
        first = hold.wait_lost(0), hold.wait_lost(1)
        went_on = len(turns) > 5
        return first, went_on
    def run(call):
        one = framework.spawn(call)
        return one.get() if hasattr(one, "get") else one.wait()
    print(*run(work))
    waiting = framework.spawn(hold.wait_lost)
    framework.sleep(0.05)
    def lose():
        kazoo = KazooClient(sys.argv[1])
        kazoo.start()
        [name] = kazoo.get_children(sys.argv[2])
        kazoo.delete(sys.argv[2] + "/" + name)
        kazoo.stop()
    import threading
    thread = threading.Thread(target=lose)
    thread.start()
    print(waiting.get() if hasattr(waiting, "get") else waiting.wait())
    second = client.mutex(sys.argv[2] + "/b").hold()
    killed = framework.spawn(second.wait_lost)
    framework.sleep(0.05)
    killed.kill()
    second.release()
    print("killed")
    ticking.kill()
    try:
        hold.release()
    except zklock.LockLost:
        print("lost")
"""


@pytest.mark.parametrize("framework", ["gevent", "eventlet"])
def test_a_greenlet_waits_while_others_run(server: ZooKeeper, path: str, framework: str) -> None:
    needs(framework)
    done = subprocess.run(
        [sys.executable, "-c", GREENLETS.format(framework), server.address, path],
        capture_output=True,
        text=True,
        check=False,
        timeout=40,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "(False, False) True\nTrue\nkilled\nlost\n", done.stdout + done.stderr


def test_timed_out_waits_do_not_end_the_hold(client: Client, path: str) -> None:
    hold = client.mutex(path).hold()
    waiters = [Waiter(lambda: [hold.wait_lost(0.001) for _ in range(50)]) for _ in range(4)]
    for waiter in waiters:
        assert not any(waiter.result())
    assert hold.state is LockState.HELD
    hold.release()
    wait_until(lambda: not client.mutex(path).participants())
