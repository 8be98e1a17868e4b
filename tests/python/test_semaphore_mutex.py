"""Tests of the mutex that any thread may release and that is not re-entrant."""

from __future__ import annotations

import pytest

import zklock
from conftest import Inspector, Waiter, ends_at_limit, wait_until
from zklock import LockState


def test_acquire_and_release(client: zklock.Client, path: str, inspector: Inspector) -> None:
    lock = client.semaphore_mutex(path, data=b"mine")
    assert isinstance(lock, zklock.SemaphoreMutex)
    assert isinstance(lock, zklock.Lock)
    assert not isinstance(lock, zklock.Mutex)
    assert repr(lock) == f"<zklock.SemaphoreMutex '{path}' FREE>"
    with lock as held:
        assert held is lock
        assert (lock.is_held, lock.is_held_in_process, lock.state) == (True, True, LockState.HELD)
        assert inspector.nodes(f"{path}/leases") == [lock.node_path] == lock.node_paths
        assert inspector.kazoo.get(lock.node_path)[0] == b"mine"
        assert [(one.node_path, one.holds, one.czxid) for one in lock.participants()] == [
            (lock.node_path, True, lock.fencing_token)
        ]
        assert 0 < lock.remaining <= 10
    assert not lock.is_held
    inspector.wait_for(f"{path}/leases", 0)
    inspector.wait_for(f"{path}/locks", 0)


def test_second_acquire_of_the_holder_waits(client: zklock.Client, path: str) -> None:
    lock, second = client.semaphore_mutex(path), client.semaphore_mutex(path, timeout=0.1)

    def enter() -> None:
        with pytest.raises(zklock.LockTimeout), second:
            pytest.fail("two holders")

    with lock:
        assert lock.acquire(timeout=0) is False
        assert ends_at_limit(0.2, lambda: lock.acquire(timeout=0.2)) is False
        ends_at_limit(0.1, enter)
        assert lock.is_held


def test_any_thread_releases(client: zklock.Client, path: str, inspector: Inspector) -> None:
    lock = client.semaphore_mutex(path)
    assert Waiter(lock.acquire).result() is True
    assert lock.is_held_in_process
    assert not lock.is_held
    token = lock.participants()[0].czxid
    lock.release()
    with pytest.raises(zklock.NotOwner):
        lock.release()
    assert lock.acquire(timeout=0)
    assert lock.fencing_token > token
    Waiter(lock.release_nowait).result()
    assert lock.state is LockState.FREE
    inspector.wait_for(f"{path}/leases", 0)


def test_they_exclude_each_other(
    client: zklock.Client, other_client: zklock.Client, path: str, inspector: Inspector
) -> None:
    lock, other = client.semaphore_mutex(path), other_client.semaphore_mutex(path)
    with lock:
        waiter = Waiter(lambda: (other.acquire(), other.release()))
        inspector.wait_for(f"{path}/leases", 2)
        assert [one.holds for one in lock.participants()] == [True, False]
        other.cancel()
        with pytest.raises(zklock.Canceled):
            waiter.result()
        waiter = Waiter(lambda: (other.acquire(timeout=60), other.release()))
        inspector.wait_for(f"{path}/leases", 2)
    assert waiter.result() == (True, None)


def test_a_lost_one_is_reported(client: zklock.Client, path: str, inspector: Inspector) -> None:
    lock = client.semaphore_mutex(path)
    with pytest.raises(zklock.LockLost, match="deleted"), lock:
        inspector.kazoo.delete(lock.node_path)
        wait_until(lambda: lock.state is LockState.LOST)
        assert not lock.is_held
    with lock:
        assert lock.is_held
