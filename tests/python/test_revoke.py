"""Tests of revocation."""

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
from conftest import Inspector, Waiter, wait_until
from server import ZooKeeper

Locks = Callable[[zklock.Client, str], Any]
LOCKS: list[Locks] = [
    lambda client, path: client.mutex(path),
    lambda client, path: client.semaphore_mutex(path),
    lambda client, path: client.rwlock(path).read,
    lambda client, path: client.rwlock(path).write,
    lambda client, path: client.multi([client.mutex(f"{path}/a"), client.mutex(f"{path}/b")]),
    lambda client, path: client.multi([client.mutex(f"{path}/a"), client.semaphore_mutex(f"{path}/b")]),
]


def asked(lock: zklock.Lock | zklock.Semaphore) -> queue.SimpleQueue[str]:
    """Return a queue of the nodes for which a revocation is requested."""
    nodes: queue.SimpleQueue[str] = queue.SimpleQueue()
    lock.set_revocable(nodes.put)
    return nodes


@pytest.mark.parametrize("make", LOCKS)
def test_revoke_calls_the_holders_callback(
    client: zklock.Client, other_client: zklock.Client, path: str, make: Locks
) -> None:
    lock = make(client, path)
    nodes = asked(lock)
    with lock:
        for node in lock.node_paths:
            for _ in range(2):
                other_client.revoke(node)
                assert nodes.get(timeout=60) == node
        assert lock.is_held  # only a request
    assert nodes.empty()


def test_revoke_of_a_participant_calls_its_callback(
    client: zklock.Client, other_client: zklock.Client, path: str
) -> None:
    lock = client.mutex(path)
    nodes = asked(lock)
    with lock:
        holder = other_client.mutex(path).participants()[0]
        other_client.revoke(holder)
        assert nodes.get(timeout=60) == holder.node_path == lock.node_path


def test_revoke_reaches_waiters(
    client: zklock.Client, other_client: zklock.Client, path: str, inspector: Inspector
) -> None:
    lock = client.mutex(path)
    lock.set_revocable(lambda node: lock.cancel())
    with other_client.mutex(path) as held:
        waiter = Waiter(lock.acquire)
        inspector.wait_for(path, 2)
        other_client.revoke(held.participants()[1])
        with pytest.raises(zklock.Canceled):
            waiter.result()
        inspector.wait_for(path, 1)


def test_revoke_reaches_leases(client: zklock.Client, other_client: zklock.Client, path: str) -> None:
    semaphore = client.semaphore(path, 3)
    nodes = asked(semaphore)
    leases = semaphore.acquire(2)
    # The leases keep their semaphore and its callback alive.
    del semaphore
    gc.collect()
    for node in leases.node_paths:
        other_client.revoke(node)
        assert nodes.get(timeout=60) == node
    leases.release()


def test_asked_by_another_library(client: zklock.Client, path: str, inspector: Inspector) -> None:
    lock = client.mutex(path)
    nodes = asked(lock)
    with lock:
        inspector.kazoo.set(lock.node_path, b"something else")
        inspector.kazoo.set(lock.node_path, b"__REVOKE__")
        assert nodes.get(timeout=60) == lock.node_path
    assert nodes.empty()


def test_revoke_writes_the_marker_into_the_node(client: zklock.Client, path: str, inspector: Inspector) -> None:
    with client.mutex(path) as lock:
        client.revoke(lock.node_path)
        assert inspector.kazoo.get(lock.node_path)[0] == b"__REVOKE__"
        # A request that came before the callback was set is reported.
        assert asked(lock).get(timeout=60) == lock.node_path
    client.revoke(f"{path}/nobody")  # there is no such node


def test_new_callback_replaces_the_old_one(client: zklock.Client, path: str) -> None:
    lock = client.mutex(path)
    first = asked(lock)
    second = asked(lock)
    with lock:
        client.revoke(lock.node_path)
        assert second.get(timeout=60) == lock.node_path
        lock.set_revocable(None)
        client.revoke(lock.node_path)
        third = asked(lock)
        client.revoke(lock.node_path)
        assert third.get(timeout=60) == lock.node_path
    assert first.empty()
    assert second.empty()


def test_callback_of_a_multi_lock_is_set_on_its_members(client: zklock.Client, path: str) -> None:
    a, b = client.mutex(f"{path}/a"), client.mutex(f"{path}/b")
    own = asked(a)
    nodes = asked(client.multi([a, b]))
    gc.collect()
    with a, b:
        for lock in (a, b):
            client.revoke(lock.node_path)
            assert nodes.get(timeout=60) == lock.node_path
        a.set_revocable(None)
        client.revoke(a.node_path)
        client.revoke(b.node_path)
        assert nodes.get(timeout=60) == b.node_path
    assert own.empty()


def test_callbacks_come_one_after_the_other_on_a_daemon_thread(client: zklock.Client, path: str) -> None:
    locks = [client.mutex(f"{path}/{name}") for name in "abcd"]
    inside: list[int] = []
    seen: queue.SimpleQueue[tuple[str, bool, int]] = queue.SimpleQueue()

    def callback(node: str) -> None:
        thread = threading.current_thread()
        inside.append(1)
        time.sleep(0.01)
        seen.put((thread.name, thread.daemon, len(inside)))
        inside.pop()

    for lock in locks:
        lock.set_revocable(callback)
        lock.acquire()
    for lock in locks:
        client.revoke(lock.node_path)
    assert [seen.get(timeout=60) for _ in locks] == [("zklock-events", True, 1)] * 4
    assert [thread.name for thread in threading.enumerate()].count("zklock-events") == 1


def test_a_callback_may_use_the_library(client: zklock.Client, path: str, inspector: Inspector) -> None:
    lock = client.semaphore_mutex(path)
    done: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def give_up(node: str) -> None:
        other = client.mutex(f"{path}-other")
        assert other.acquire(timeout=0)
        other.release()
        lock.release()
        lock.set_revocable(None)
        done.put(client.session_id)

    lock.set_revocable(give_up)
    lock.acquire()
    client.revoke(lock.node_path)
    assert done.get(timeout=60) == client.session_id
    assert not lock.is_held
    assert inspector.nodes(f"{path}/leases") == []


def test_a_callback_may_close_its_client(server: ZooKeeper, client: zklock.Client, path: str) -> None:
    closing = zklock.Client(server.address)
    lock = closing.mutex(path)
    lock.set_revocable(lambda node: closing.close())
    lock.acquire()
    client.revoke(lock.node_path)
    wait_until(lambda: closing.state is zklock.ClientState.CLOSED)
    with client.mutex(path, timeout=60):
        pass


def test_a_callback_that_does_not_return_keeps_nobody(server: ZooKeeper, path: str) -> None:
    client = zklock.Client(server.address)
    lock = client.mutex(path)
    entered, leave = threading.Event(), threading.Event()

    def stay(node: str) -> None:
        entered.set()
        leave.wait()

    try:
        lock.set_revocable(stay)
        lock.acquire()
        client.revoke(lock.node_path)
        assert entered.wait(60)
        started = time.monotonic()
        lock.release()
        lock.set_revocable(None)
        client.close()
        assert time.monotonic() - started < 5
    finally:
        leave.set()


@pytest.mark.parametrize("error", [KeyError("mine"), SystemExit(3)])
def test_what_a_callback_raises_is_reported(
    client: zklock.Client, path: str, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    reports: queue.SimpleQueue[Any] = queue.SimpleQueue()
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reports.put((report.exc_value, report.object)))
    lock = client.mutex(path)

    def callback(node: str) -> None:
        raise error

    lock.set_revocable(callback)
    with lock:
        for _ in range(2):
            client.revoke(lock.node_path)
            assert reports.get(timeout=60) == (error, callback)
    error.__traceback__ = None


@pytest.mark.parametrize("make", [*LOCKS, lambda client, path: client.semaphore(path, 2)])
def test_a_callback_does_not_keep_its_lock(client: zklock.Client, path: str, inspector: Inspector, make: Locks) -> None:
    lock = make(client, path)
    lock.set_revocable(lambda node, lock=lock: lock.cancel())
    held = lock.hold() if isinstance(lock, zklock.Lock) else lock.acquire()
    things = [weakref.ref(lock), weakref.ref(held)]
    nodes = (lock if isinstance(lock, zklock.Lock) else held).node_paths
    assert all(inspector.kazoo.exists(node) for node in nodes)
    del lock, held
    gc.collect()
    assert [thing() for thing in things] == [None, None]
    wait_until(lambda: not any(inspector.kazoo.exists(node) for node in nodes))


def test_replaced_callback_is_collected(client: zklock.Client, path: str) -> None:
    class Callback:
        def __call__(self, node: str) -> None:
            pass

    lock = client.mutex(path)
    for replace in [lambda: lock.set_revocable(None), lambda: lock.set_revocable(print), None]:
        callback = Callback()
        gone = weakref.ref(callback)
        lock.set_revocable(callback)
        del callback
        gc.collect()
        assert gone() is not None
        if replace is None:
            del lock
        else:
            replace()
        assert gone() is None


@pytest.mark.parametrize("callback", [1, "print", [print]])
def test_non_callable_callback_raises_type_error(client: zklock.Client, path: str, callback: Any) -> None:
    lock = client.mutex(path)
    nodes = asked(lock)
    for thing in [lock, client.rwlock(path).read, client.multi([client.mutex(path)]), client.semaphore(path, 1)]:
        with pytest.raises(TypeError, match="callback: expected a callable or None, not"):
            thing.set_revocable(callback)
    with lock:
        client.revoke(lock.node_path)
        assert nodes.get(timeout=60) == lock.node_path


@pytest.mark.parametrize(
    ("node", "raised"), [("", ValueError), ("a", ValueError), (b"/a", TypeError), (None, TypeError)]
)
def test_invalid_node_path_raises(client: zklock.Client, node: Any, raised: type[Exception]) -> None:
    with pytest.raises(raised):
        client.revoke(node)


def test_a_closed_client(client: zklock.Client, path: str) -> None:
    lock = client.mutex(path)
    client.close()
    with pytest.raises(zklock.ClientClosed):
        client.revoke("/a")
    with pytest.raises(zklock.ClientClosed):
        lock.set_revocable(print)
