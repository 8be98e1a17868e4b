"""Tests of the events that a client's ``on_event`` receives."""

from __future__ import annotations

import gc
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import zklock
from conftest import SLACK, Inspector, Program, Waiter, wait_until
from server import ZooKeeper
from zklock import ClientEvent, ClientState, LockEvent, LockState
from zklock.testing import StandaloneServer


class EventRecorder:
    """An ``on_event`` callback that keeps the events."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def __call__(self, event: zklock.Event) -> None:
        self.events.append(event)

    def of(self, lock: Any) -> list[tuple[LockState, LockState]]:
        return [(e.previous, e.state) for e in self.events if isinstance(e, LockEvent) and e.lock is lock]

    def of_client(self) -> list[tuple[ClientState, ClientState]]:
        return [(e.previous, e.state) for e in self.events if isinstance(e, ClientEvent)]


FREE, HELD, SUSPENDED, UNCERTAIN, LOST = LockState
CONNECTING, CONNECTED, CUT, ENDED, CLOSED = ClientState


def test_events_arrive_in_order(server: ZooKeeper, path: str) -> None:
    heard = EventRecorder()
    with zklock.Client(server.address, on_event=heard) as client:
        lock = client.mutex(path)
        with lock, lock:
            token = lock.fencing_token
    # The last events are reported before close() returns.
    assert heard.events == [
        ClientEvent(CONNECTED, CONNECTING),
        LockEvent(lock, path, HELD, FREE, token),
        LockEvent(lock, path, FREE, HELD, token),
        ClientEvent(CLOSED, CONNECTED),
    ]
    assert heard.events[1].lock is lock


def test_event_has_its_fields() -> None:
    event = LockEvent(lock=None, path="/a", state=LOST, previous=HELD, token=7)
    same = LockEvent(None, "/a", LOST, HELD, 7)
    assert event == same
    assert hash(event) == hash(same)
    assert event != LockEvent(None, "/a", LOST, HELD, 8)
    assert repr(event) == (
        "LockEvent(path='/a', state=<LockState.LOST: 'lost'>, previous=<LockState.HELD: 'held'>, "
        "token=7, fencing_pass=0)"
    )
    client = ClientEvent(state=CLOSED, previous=CONNECTED)
    assert client == ClientEvent(CLOSED, CONNECTED)
    assert repr(client) == (
        "ClientEvent(state=<ClientState.CLOSED: 'closed'>, previous=<ClientState.CONNECTED: 'connected'>)"
    )
    for one in (event, client):
        assert isinstance(one, (ClientEvent, LockEvent))
        with pytest.raises(AttributeError):
            one.state = FREE  # type: ignore[misc, assignment]


def test_the_two_states_never_compare_equal() -> None:
    assert not any(state == other for state in ClientState for other in LockState)
    assert [state.value for state in ClientState] == [state.name.lower() for state in ClientState]
    assert [state.value for state in LockState] == [state.name.lower() for state in LockState]
    assert LockState("held") is HELD


def test_a_deleted_node(server: ZooKeeper, path: str, inspector: Inspector) -> None:
    heard = EventRecorder()
    with zklock.Client(server.address, session_timeout=3, on_event=heard) as client:
        rw = client.rwlock(path)
        for lock in (rw.read, rw.write):
            with pytest.raises(zklock.LockLost), lock:
                inspector.kazoo.delete(lock.node_path)
                wait_until(lambda lock=lock: len(heard.of(lock)) == 2)
                assert not lock.is_held
            wait_until(lambda lock=lock: heard.of(lock) == [(FREE, HELD), (HELD, LOST), (LOST, FREE)])


def test_multi_lock_events_come_from_its_members(server: ZooKeeper, path: str) -> None:
    heard = EventRecorder()
    with zklock.Client(server.address, on_event=heard) as client:
        a, b = client.mutex(f"{path}/a"), client.semaphore_mutex(f"{path}/b")
        with client.multi([b, a]) as multi:
            wait_until(lambda: heard.of(a) == heard.of(b) == [(FREE, HELD)])
        wait_until(lambda: heard.of(a) == heard.of(b) == [(FREE, HELD), (HELD, FREE)])
        assert heard.of(multi) == []


def test_leases_have_no_lock(server: ZooKeeper, path: str, inspector: Inspector) -> None:
    heard = EventRecorder()
    with zklock.Client(server.address, session_timeout=3, on_event=heard) as client:
        leases = client.semaphore(path, 3).acquire(2)
        token = leases.fencing_token
        inspector.kazoo.delete(leases.node_paths[0])
        wait_until(lambda: len(heard.events) == 3)
        assert heard.events[1:] == [
            LockEvent(None, path, HELD, FREE, token),
            LockEvent(None, path, LOST, HELD, token),
        ]


def test_event_of_a_collected_lock_is_delivered(server: ZooKeeper, path: str) -> None:
    heard = EventRecorder()
    with zklock.Client(server.address, on_event=heard) as client:
        lock = client.mutex(path)
        hold = lock.hold()
        token = hold.token
        wait_until(lambda: len(heard.events) == 2)
        heard.events.clear()
        del lock
        with pytest.warns(ResourceWarning, match="its Hold was garbage-collected"):
            del hold
        wait_until(lambda: heard.events)
        [event] = heard.events
        assert isinstance(event, LockEvent)
        # The event may arrive before the lock object is gone.
        assert (event.path, event.state, event.previous, event.token) == (path, FREE, HELD, token)


def test_the_server_dies(own_server: ZooKeeper, path: str) -> None:
    heard = EventRecorder()
    with zklock.Client(own_server.address, session_timeout=3, on_event=heard) as client:
        lock = client.mutex(path)
        lock.acquire()
        own_server.kill()
        wait_until(lambda: heard.of(lock) == [(FREE, HELD), (HELD, SUSPENDED), (SUSPENDED, UNCERTAIN)])
        assert heard.of_client() == [(CONNECTING, CONNECTED), (CONNECTED, CUT)]
        assert (lock.is_held, lock.remaining) == (False, 0.0)
    assert heard.of(lock)[3:] == [(UNCERTAIN, FREE)]
    assert heard.of_client()[2:] == [(CUT, CLOSED)]


def test_sessions_end(zklock_server: StandaloneServer) -> None:
    heard, rounds = EventRecorder(), 8
    with zklock.Client(zklock_server.address, on_event=heard) as client:
        locks = [client.mutex(f"/{name}") for name in "abc"]
        for _ in range(rounds):
            for lock in locks:
                lock.acquire()
            zklock_server.cut(client)
            zklock_server.expire(client)
            wait_until(lambda: all(lock.state is LOST for lock in locks))
            for lock in locks:
                with pytest.raises(zklock.LockLost):
                    lock.release()
    assert heard.of_client()[-1][1] is CLOSED
    assert_sequence(heard.of_client(), CONNECTING)
    for lock in locks:
        changes = heard.of(lock)
        assert_sequence(changes, FREE)
        assert changes[-1] == (LOST, FREE)
        assert [state for _, state in changes].count(LOST) == rounds


def assert_sequence(changes: list[tuple[Any, Any]], state: Any) -> None:
    """Check that each change begins with the state at which the previous one ended."""
    for previous, following in changes:
        assert previous is state
        state = following


def test_events_and_revocations_share_one_thread(server: ZooKeeper, path: str) -> None:
    seen: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()

    def tell(what: str) -> None:
        seen.put((what, threading.current_thread().name))

    def on_event(event: zklock.Event) -> None:
        tell(type(event).__name__)

    with zklock.Client(server.address, on_event=on_event) as client:
        lock = client.mutex(path)
        lock.set_revocable(lambda node: tell("revoked"))
        lock.acquire()
        client.revoke(lock.node_path)
        told = [seen.get(timeout=60) for _ in range(3)]
        assert told == [(what, "zklock-events") for what in ("ClientEvent", "LockEvent", "revoked")]
        assert [thread.name for thread in threading.enumerate()].count("zklock-events") == 1


INTERRUPTED_START = """
import sys, threading, time, zklock

class Interrupted(threading.Thread):
    def start(self):
        super().start()
        threading.Thread = original
        raise KeyboardInterrupt

client = zklock.Client(sys.argv[1])
original, threading.Thread = threading.Thread, Interrupted
try:
    client.on_event(print)
except KeyboardInterrupt:
    print("interrupted", flush=True)
client.on_event(lambda event: print(threading.current_thread().name, flush=True))
while [thread.name for thread in threading.enumerate()].count("zklock-events") > 1:
    time.sleep(0.01)
client.mutex(sys.argv[2]).acquire()
sys.stdin.read()
"""


def test_ctrl_c_during_the_start_of_the_callback_thread_starts_no_second_thread(
    server: ZooKeeper, path: str, program: Callable[..., Program]
) -> None:
    running = program(INTERRUPTED_START, server.address, path)
    assert [running.read_line(), running.read_line()] == ["interrupted", "zklock-events"]
    running.close_input()
    assert running.ends() == 0


@pytest.mark.parametrize("error", [KeyError("mine"), SystemExit(3)])
def test_callback_exception_is_reported_as_unraisable(
    server: ZooKeeper, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    reports: queue.SimpleQueue[Any] = queue.SimpleQueue()
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reports.put((report.exc_value, report.object)))

    def on_event(event: zklock.Event) -> None:
        raise error

    with zklock.Client(server.address, on_event=on_event):
        assert reports.get(timeout=60) == (error, on_event)
    assert reports.get(timeout=60) == (error, on_event)
    error.__traceback__ = None


def test_callback_may_call_the_library(server: ZooKeeper, path: str, inspector: Inspector) -> None:
    done: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def on_event(event: zklock.Event) -> None:
        if isinstance(event, LockEvent) and event.lock is lock and event.state is HELD:
            other = event_client.mutex(f"{path}-other")
            assert other.acquire(timeout=0)
            other.release()
            lock.release()
            done.put(event_client.session_id)

    with zklock.Client(server.address, on_event=on_event) as event_client:
        lock = event_client.semaphore_mutex(path)
        lock.acquire()
        assert done.get(timeout=60) == event_client.session_id
        assert not lock.is_held
        assert inspector.nodes(f"{path}/leases") == []


def test_waiting_in_a_callback_raises_deadlock(server: ZooKeeper, path: str, inspector: Inspector) -> None:
    done: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def on_event(event: zklock.Event) -> None:
        lock = client.mutex(path)
        semaphore = client.semaphore(f"{path}-semaphore", 1)
        for call in [
            lock.acquire,
            lambda: lock.acquire(timeout=0.1),
            lock.__enter__,
            semaphore.acquire,
            lambda: semaphore.acquire(timeout=1),
        ]:
            try:
                call()
            except zklock.Deadlock as error:
                assert error.status == -7  # noqa: PT017
                assert "another thread" in str(error)  # noqa: PT017
            else:
                done.put(call)
        done.put(lock.acquire(timeout=0))
        semaphore.acquire(timeout=0).release()
        lock.release()
        done.put(lock.participants())

    client = zklock.Client(server.address)
    with zklock.Client(server.address, on_event=on_event):
        assert [done.get(timeout=60), done.get(timeout=60)] == [True, []]
    client.close()


def test_callback_may_close_its_client(server: ZooKeeper, path: str) -> None:
    closed = threading.Event()

    def on_event(event: zklock.Event) -> None:
        if isinstance(event, LockEvent):
            client.close()
            closed.set()

    client = zklock.Client(server.address, on_event=on_event)
    client.mutex(path).acquire()
    assert closed.wait(60)
    assert client.state is CLOSED


def test_concurrent_closes_in_callbacks_both_wait(zklock_server: StandaloneServer) -> None:
    client = zklock.Client(zklock_server.address, session_timeout=3)
    zklock_server.freeze(client)
    first = Waiter(client.close)
    wait_until(lambda: client.state is CLOSED)
    client.close()
    first.result(1.5)  # less than close() waits


def test_hanging_callback_blocks_no_other_thread(server: ZooKeeper, path: str) -> None:
    entered, leave = threading.Event(), threading.Event()

    def stay(event: zklock.Event) -> None:
        entered.set()
        leave.wait()

    client = zklock.Client(server.address, on_event=stay)
    try:
        assert entered.wait(60)
        with client.mutex(path):
            pass
        started = time.monotonic()
        client.close()
        assert time.monotonic() - started < 2.5 + SLACK
    finally:
        leave.set()


@pytest.mark.filterwarnings("ignore:the client of .* was not closed:ResourceWarning")
def test_callback_does_not_keep_its_client_alive(
    server: ZooKeeper, path: str, inspector: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The callback is not called any more once the garbage collector has begun to clear it."""
    reports: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", reports.append)

    class Program:
        def __init__(self) -> None:
            self.events: list[zklock.Event] = []
            self.client = zklock.Client(server.address, on_event=self.on_event)
            self.lock = self.client.mutex(path)
            self.lock.set_revocable(self.on_revoked)
            self.semaphore = self.client.semaphore(f"{path}-semaphore", 2)
            self.lock.acquire()
            self.leases = self.semaphore.acquire()

        def on_event(self, event: zklock.Event) -> None:
            self.events.append(event)

        def on_revoked(self, node: str) -> None:
            self.events.clear()

    program = Program()
    wait_until(lambda: len(program.events) == 3)  # noqa: F821
    things = [weakref.ref(thing) for thing in (program, program.client, program.lock, program.leases)]
    del program
    wait_until(lambda: gc.collect() >= 0 and [thing() for thing in things] == [None] * 4)
    wait_until(lambda: inspector.nodes(path) == [])
    assert not reports


@pytest.mark.filterwarnings("ignore:the client of .* was not closed:ResourceWarning")
def test_lock_keeps_the_callback_alive(server: ZooKeeper, path: str) -> None:
    heard = EventRecorder()
    client = zklock.Client(server.address, on_event=heard)
    lock, semaphore = client.mutex(path), client.semaphore(f"{path}-semaphore", 1)
    del client
    gc.collect()
    with lock, semaphore.acquire():
        wait_until(lambda: len(heard.events) == 3)
    wait_until(lambda: len(heard.events) == 5)


@pytest.mark.parametrize("on_event", [1, "print", [print]])
def test_non_callable_on_event_raises_type_error(server: ZooKeeper, on_event: Any) -> None:
    with pytest.raises(TypeError, match="on_event: expected a callable or None, not"):
        zklock.Client(server.address, on_event=on_event)
    zklock.Client(server.address, on_event=None).close()


# The child goes on in a copy of the thread that called the parent's callback. It works like any other process.
FORKS = """
import os, sys, threading, time, warnings, zklock
warnings.simplefilter("ignore", DeprecationWarning)
done = threading.Event()
def on_event(event):
    if os.getpid() == parent and event.state is zklock.ClientState.CONNECTED:
        if os.fork() == 0:
            child()
        os.wait()
        print("parent", flush=True)
        done.set()
def child():
    heard = []
    def slowly(event):
        time.sleep(0.1)
        heard.append(event.state.name)
    try:
        client = zklock.Client(sys.argv[1], on_event=slowly)
        lock = client.mutex(sys.argv[2])
        with lock:
            pass
        client.close()
        print(*heard, flush=True)
    finally:
        os._exit(0)
parent = os.getpid()
client = zklock.Client(sys.argv[1], on_event=on_event)
done.wait()  # close() waits at most 2 s for a callback
client.close()
"""


def test_callback_may_fork(server: ZooKeeper, path: str, program: Callable[..., Program]) -> None:
    forking = program(FORKS, server.address, path)
    assert forking.read_line() == "CONNECTED HELD FREE CLOSED"
    assert forking.read_line() == "parent"
    assert forking.ends() == 0


# An event waits, or is being reported, while the interpreter ends.
ENDS = """
import sys, threading, time, zklock
entered = threading.Event()
def say(word):
    sys.stdout.write(word + "\\n")
    sys.stdout.flush()
def on_event(event):
    entered.set()
    {body}
client = zklock.Client(sys.argv[1], on_event=on_event)
lock = client.mutex(sys.argv[2])
lock.acquire()
entered.wait(60)
say("leaves")
"""


def test_the_last_events_come_before_the_end(server: ZooKeeper, path: str, program: Callable[..., Program]) -> None:
    leaving = program(ENDS.format(body="say(event.state.name)"), server.address, path)
    assert sorted(leaving.read_line() for _ in range(5)) == ["CLOSED", "CONNECTED", "FREE", "HELD", "leaves"]
    assert leaving.ends() == 0


@pytest.mark.parametrize(
    "body",
    ["pass", "threading.Event().wait()", "exec('while True: pass')", "[lock.participants() for _ in iter(int, 1)]"],
)
def test_callback_does_not_delay_exit(
    server: ZooKeeper, path: str, inspector: Inspector, program: Callable[..., Program], body: str
) -> None:
    leaving = program(ENDS.format(body=body), server.address, path)
    assert leaving.read_line() == "leaves"
    assert leaving.ends(5) == 0
    inspector.wait_for(path, 0)


def test_a_loss_does_not_wait_for_a_slow_callback_of_another_client(
    server: ZooKeeper, path: str, inspector: Inspector
) -> None:
    """The other client has earlier events in its queue. Its callbacks keep their order."""
    gate, entered = threading.Event(), threading.Event()

    def slow(event: object) -> None:
        entered.set()
        gate.wait(60)

    seen: queue.SimpleQueue[str] = queue.SimpleQueue()
    try:
        with zklock.Client(server.address, on_event=slow), zklock.Client(server.address) as other:
            assert entered.wait(60)
            lock = other.mutex(path)
            lock.on_event(lambda event: seen.put(event.state.name))
            lock.on_lost(lambda event: seen.put(f"on_lost {event.state.name}"))
            lock.acquire()
            inspector.kazoo.delete(lock.node_path)
            assert [seen.get(timeout=60) for _ in range(3)] == ["HELD", "LOST", "on_lost LOST"]
            assert not gate.is_set()
            gate.set()
    finally:
        gate.set()


def test_callbacks_of_one_client_come_one_after_the_other_also_after_a_loss(
    server: ZooKeeper, path: str, inspector: Inspector
) -> None:
    gate, entered = threading.Event(), threading.Event()
    seen: list[str] = []

    def slow(event: LockEvent) -> None:
        seen.append(event.state.name)
        entered.set()
        gate.wait(60)
        seen.append("returned")

    lost = threading.Event()
    with zklock.Client(server.address) as client:
        lock = client.mutex(path)
        lock.on_event(slow)
        lock.acquire()
        assert entered.wait(60)
        lock.on_lost(lambda event: (seen.append("on_lost"), lost.set()))
        inspector.kazoo.delete(lock.node_path)
        wait_until(lambda: lock.state is LockState.LOST)
        gate.set()
        assert lost.wait(60)
        assert seen == ["HELD", "returned", "LOST", "returned", "on_lost"]
