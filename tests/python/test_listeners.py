"""Tests of ``on_event()`` and ``on_lost()``: callbacks that are added and removed at any time."""

from __future__ import annotations

import gc
import queue
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import zklock
from conftest import Inspector, Program, wait_until
from server import ZooKeeper
from zklock import Client, ClientEvent, ClientState, LockEvent, LockState
from zklock.testing import StandaloneServer

FREE, HELD, SUSPENDED, UNCERTAIN, LOST = LockState


class Queue:
    """A callback that keeps its events."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def __call__(self, event: Any) -> None:
        self.events.put(event)

    def next(self) -> Any:
        return self.events.get(timeout=60)

    def is_empty(self) -> bool:
        return self.events.empty()


def settled(client: Client) -> None:
    """Wait until all earlier events have been reported."""
    told = Queue()
    listener = client.on_event(told)
    with client.mutex("/settled"):
        told.next()
    told.next()
    listener.stop()


REFUSED = """
import faulthandler, sys, threading, zklock
faulthandler.dump_traceback_later(20, exit=True)
with zklock.Client(sys.argv[1]) as client, zklock.Client(sys.argv[1]) as closed:
    lock, ends = client.mutex(sys.argv[2]), threading.Event()
    multi = client.multi([lock, closed.mutex(sys.argv[2] + "/closed")])
    closed.close()
    def work():
        while not ends.is_set():
            with lock:
                pass
    worker = threading.Thread(target=work)
    worker.start()
    for _ in range(300):
        try:
            multi.on_event(lambda event: None)
        except zklock.ClientClosed:
            continue
        sys.exit("it was added")
    ends.set()
    worker.join()
print("ended")
"""


def test_a_refused_callback_of_a_multi_lock_waits_for_no_event(
    server: ZooKeeper, path: str, program: Callable[..., Program]
) -> None:
    """The first member lock accepts the callback, and a closed member lock refuses it. The library removes the callback
    while an event of the first member lock is in progress.
    """
    refused = program(REFUSED, server.address, path)
    assert refused.read_line() == "ended"
    assert refused.ends() == 0


def test_a_callback_is_added_at_any_time(client: Client, path: str) -> None:
    first, second, mine = Queue(), Queue(), Queue()
    lock = client.mutex(path)
    one = client.on_event(first)
    assert isinstance(one, zklock.Listener)
    assert "Queue" in repr(one)
    with lock:
        event = first.next()
        assert event == LockEvent(lock, path, HELD, FREE, lock.fencing_token)
        client.on_event(second)
        lock.on_event(mine)
    expected = LockEvent(lock, path, FREE, HELD, event.token)
    assert [first.next(), second.next(), mine.next()] == [expected] * 3
    one.stop()
    one.stop()
    assert repr(one) == "<zklock.Listener stopped>"
    with lock:
        assert second.next().state is mine.next().state is HELD
    client.close()
    assert [second.next().state, mine.next().state] == [FREE, FREE]
    assert second.next() == ClientEvent(ClientState.CLOSED, ClientState.CONNECTED)
    assert first.is_empty()
    assert mine.is_empty()
    with pytest.raises(zklock.ClientClosed):
        client.on_event(first)
    with pytest.raises(zklock.ClientClosed):
        lock.on_lost(first)


def test_the_loss_of_one_lock(client: Client, path: str, inspector: Inspector) -> None:
    lost, others = Queue(), Queue()
    lock, other = client.mutex(path), client.mutex(f"{path}/other")
    lock.on_lost(lost)
    other.on_lost(others)
    with pytest.raises(zklock.LockLost), lock, other:
        token = lock.fencing_token
        inspector.kazoo.delete(lock.node_path)
        assert lost.next() == LockEvent(lock, path, LOST, HELD, token)
    with lock:
        pass
    settled(client)
    assert lost.is_empty()
    assert others.is_empty()


def test_a_loss_without_a_connection(zklock_server: StandaloneServer) -> None:
    lost = Queue()
    with Client(zklock_server.address, session_timeout=1) as client:
        lock = client.mutex("/a")
        lock.on_lost(lost)
        hold = lock.hold()
        zklock_server.freeze(client)
        event = lost.next()
        assert (event.lock, event.state, event.token) == (lock, UNCERTAIN, hold.token)
        assert hold.is_lost
        zklock_server.thaw(client)


def test_the_end_of_a_client_is_a_loss_of_what_is_held(server: ZooKeeper, path: str) -> None:
    lost = Queue()
    client = Client(server.address)
    lock, free, leases = client.mutex(path), client.mutex(f"{path}/free"), client.semaphore(f"{path}/pool", 1).acquire()
    for thing in (lock, free, leases):
        thing.on_lost(lost)
    lock.acquire()
    client.close()
    events = {event.path: (event.state, event.previous) for event in (lost.next(), lost.next())}
    assert events == {path: (FREE, HELD), f"{path}/pool": (FREE, HELD)}
    assert lost.is_empty()


def test_the_loss_of_leases(client: Client, path: str, inspector: Inspector) -> None:
    lost, told = Queue(), Queue()
    semaphore = client.semaphore(path, 3)
    kept, leases = semaphore.acquire(), semaphore.acquire()
    leases.on_lost(lost)
    leases.on_event(told)
    inspector.kazoo.delete(leases.node_paths[0])
    expected = lost.next()
    assert (expected.lock, expected.path, expected.state, expected.previous) == (None, path, LOST, HELD)
    assert told.next() == expected
    with pytest.raises(zklock.LockLost):
        leases.release()
    assert told.next().state is FREE
    kept.release()
    with pytest.raises(zklock.NotOwner):
        kept.on_lost(lost)
    settled(client)
    assert lost.is_empty()
    assert told.is_empty()


def test_a_multi_lock_listens_to_each_of_its_locks(
    client: Client, other_client: Client, path: str, inspector: Inspector
) -> None:
    lost = Queue()
    a, b = client.mutex(f"{path}/a"), other_client.mutex(f"{path}/b")
    multi = client.multi([a, b])
    listener = multi.on_lost(lost)
    with pytest.raises(zklock.LockLost), multi:
        for lock in (a, b):
            inspector.kazoo.delete(lock.node_path)
            event = lost.next()
            assert (event.lock, event.state) == (lock, LOST)
    listener.stop()
    with pytest.raises(zklock.LockLost), multi:
        inspector.kazoo.delete(a.node_path)
        wait_until(lambda: a.state is LOST)
        settled(client)
        assert lost.is_empty()


def test_a_callback_may_stop_itself_and_the_next(client: Client, path: str) -> None:
    called: list[str] = []
    done = threading.Event()

    def first(event: zklock.Event) -> None:
        called.append("first")
        one.stop()
        two.stop()
        done.set()

    def second(event: zklock.Event) -> None:
        called.append("second")

    one, two = client.on_event(first), client.on_event(second)
    with client.mutex(path):
        assert done.wait(60)
    settled(client)
    assert called == ["first"]


def test_raising_callback_does_not_stop_the_others(client: Client, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reports: queue.SimpleQueue[Any] = queue.SimpleQueue()
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reports.put(report.exc_value))
    heard = Queue()

    def fail(event: zklock.Event) -> None:
        raise KeyError("mine")

    failing = client.on_event(fail)
    client.on_event(heard)
    with client.mutex(path):
        assert heard.next().state is HELD
        assert isinstance(reports.get(timeout=60), KeyError)
    failing.stop()


def test_the_listener_need_not_be_kept(client: Client, path: str) -> None:
    lost = Queue()
    lock = client.mutex(path)
    weak = weakref.ref(lock.on_event(lost))
    gc.collect()
    assert weak() is not None
    with lock:
        assert lost.next().state is HELD


@pytest.mark.filterwarnings("ignore:the client of .* was not closed:ResourceWarning")
def test_listener_keeps_neither_lock_nor_client_alive(server: ZooKeeper, path: str) -> None:
    class Program:
        def __init__(self) -> None:
            self.client = Client(server.address)
            self.lock = self.client.mutex(path)
            self.leases = self.client.semaphore(f"{path}/pool", 1).acquire()
            self.listeners = [
                self.client.on_event(self.hear),
                self.lock.on_event(self.hear),
                self.lock.on_lost(self.hear),
                self.leases.on_lost(self.hear),
            ]

        def hear(self, event: zklock.Event) -> None:
            assert event

    program = Program()
    things = [weakref.ref(thing) for thing in (program, program.client, program.lock, program.leases)]
    del program
    wait_until(lambda: gc.collect() >= 0 and [thing() for thing in things] == [None] * 4)


def test_stopped_listeners_are_not_kept(client: Client, path: str) -> None:
    lock = client.mutex(path)
    weak = weakref.ref(lock.on_lost(print))
    listener = weak()
    assert listener is not None
    listener.stop()
    del listener
    lock.on_lost(print)
    assert weak() is None


MAKERS: list[Callable[[Client, str], Any]] = [
    lambda client, path: client.on_event,
    lambda client, path: client.mutex(path).on_event,
    lambda client, path: client.mutex(path).on_lost,
    lambda client, path: client.multi([path]).on_lost,
]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("callback", [None, 1, "print", [print]])
def test_non_callable_listener_raises_type_error(
    client: Client, path: str, make: Callable[[Client, str], Any], callback: Any
) -> None:
    with pytest.raises(zklock.InvalidType, match="callback: expected a callable"):
        make(client, path)(callback)


def test_listeners_are_added_and_removed_during_events(client: Client, path: str) -> None:
    ends = threading.Event()

    def change() -> None:
        while not ends.is_set():
            client.on_event(lambda event: None).stop()
            lock.on_lost(lambda event: None).stop()

    lock = client.mutex(path)
    threads = [threading.Thread(target=change) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        with lock:
            pass
    ends.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
