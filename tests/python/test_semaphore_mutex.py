"""A mutex that any thread may release, and none may enter twice."""

from __future__ import annotations

import time

import pytest

import zklock
from conftest import Waiter, Witness, wait_until
from zklock import LockState


def test_acquire_and_release(client: zklock.Client, path: str, witness: Witness) -> None:
    lock = client.semaphore_mutex(path, data=b"mine")
    assert isinstance(lock, zklock.SemaphoreMutex)
    assert isinstance(lock, zklock.Lock)
    assert not isinstance(lock, zklock.Mutex)
    assert repr(lock) == f"<zklock.SemaphoreMutex '{path}' FREE>"
    with lock as held:
        assert held is lock
        assert (lock.is_held, lock.is_held_in_process, lock.state) == (True, True, LockState.HELD)
        assert witness.nodes(f"{path}/leases") == [lock.node_path] == lock.node_paths
        assert witness.kazoo.get(lock.node_path)[0] == b"mine"
        assert [(one.node_path, one.holds, one.czxid) for one in lock.participants()] == [
            (lock.node_path, True, lock.fencing_token)
        ]
        assert 0 < lock.remaining <= 10
    assert not lock.is_held
    witness.wait_for(f"{path}/leases", 0)
    witness.wait_for(f"{path}/locks", 0)


def test_nobody_enters_twice(client: zklock.Client, path: str) -> None:
    lock = client.semaphore_mutex(path)
    with lock:
        assert lock.acquire(timeout=0) is False
        started = time.monotonic()
        assert lock.acquire(timeout=0.2) is False
        assert 0.2 <= time.monotonic() - started < 0.3
        with pytest.raises(zklock.LockTimeout), client.semaphore_mutex(path, timeout=0.1):
            pytest.fail("two holders")
        assert lock.is_held


def test_any_thread_releases(client: zklock.Client, path: str, witness: Witness) -> None:
    lock = client.semaphore_mutex(path)
    assert Waiter(lock.acquire).result() is True
    assert lock.is_held_in_process
    assert not lock.is_held
    token = lock.fencing_token
    lock.release()
    with pytest.raises(zklock.NotOwner):
        lock.release()
    assert lock.acquire(timeout=0)
    assert lock.fencing_token > token
    Waiter(lock.release_nowait).result()
    assert lock.state is LockState.FREE
    witness.wait_for(f"{path}/leases", 0)


def test_they_exclude_each_other(
    client: zklock.Client, other_client: zklock.Client, path: str, witness: Witness
) -> None:
    lock, other = client.semaphore_mutex(path), other_client.semaphore_mutex(path)
    with lock:
        waiter = Waiter(lambda: (other.acquire(), other.release()))
        witness.wait_for(f"{path}/leases", 2)
        assert [one.holds for one in lock.participants()] == [True, False]
        other.cancel()
        with pytest.raises(zklock.Canceled):
            waiter.result()
        waiter = Waiter(lambda: (other.acquire(timeout=10), other.release()))
        witness.wait_for(f"{path}/leases", 2)
    assert waiter.result() == (True, None)


def test_a_forgotten_one_releases(client: zklock.Client, path: str, witness: Witness) -> None:
    lock = client.semaphore_mutex(path)
    lock.acquire()
    del lock
    witness.wait_for(f"{path}/leases", 0)


def test_a_lost_one_is_reported(client: zklock.Client, path: str, witness: Witness) -> None:
    lock = client.semaphore_mutex(path)
    with pytest.raises(zklock.LockLost, match="deleted"), lock:
        witness.kazoo.delete(lock.node_path)
        wait_until(lambda: lock.state is LockState.LOST)
        assert not lock.is_held
    with lock:
        assert lock.is_held
