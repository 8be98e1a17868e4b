"""Tests of local hand-over: the threads of a process pass a mutex to each other."""

from __future__ import annotations

import threading

import pytest

import zklock
from conftest import Waiter, wait_until
from server import ZooKeeper


def test_threads_hand_the_lock_over(client: zklock.Client, other_client: zklock.Client, path: str) -> None:
    lock = client.mutex(path, local_handover=3)
    pairs: list[tuple[int, int]] = []

    def take_turns() -> None:
        for _ in range(20):
            with lock:
                pairs.append((lock.fencing_token, lock.fencing_pass))

    threads = [threading.Thread(target=take_turns) for _ in range(8)]
    for thread in threads:
        thread.start()
    with other_client.mutex(path, timeout=60.0) as theirs:
        assert theirs.fencing_pass == 0
    for thread in threads:
        thread.join()
    assert len(pairs) == 160
    assert all(before < after for before, after in zip(pairs, pairs[1:])), "a store can tell them apart"
    assert {passes for _, passes in pairs} == {0, 1, 2, 3}


def test_local_waiters_share_one_node(client: zklock.Client, path: str) -> None:
    lock = client.mutex(path)
    lock.set_local_handover(9)
    with lock:
        (node,) = lock.node_paths
        waiter = Waiter(lambda: lock.acquire(timeout=60.0) and lock.release() is None)
        wait_until(lock.waiting)
        (waiting,) = lock.waiting()
        assert (waiting.ahead, waiting.node_path) == (node, None)
        assert len(lock.participants()) == 1
    assert waiter.result()


def test_events_have_the_fencing_pass(server: ZooKeeper, path: str) -> None:
    heard: list[tuple[int, str]] = []

    def hear(event: zklock.Event) -> None:
        if isinstance(event, zklock.LockEvent):
            heard.append((event.fencing_pass, event.state.name))

    with zklock.Client(server.address, on_event=hear) as own:
        lock = own.mutex(path, local_handover=9)
        with lock:
            waiter = Waiter(lambda: lock.acquire(timeout=60.0) and lock.release() is None)
            wait_until(lock.waiting)
        assert waiter.result()
    assert heard == [(0, "HELD"), (0, "FREE"), (1, "HELD"), (1, "FREE")]


def test_local_handover_is_refused_for_other_locks_and_negative_limits(client: zklock.Client, path: str) -> None:
    rw = client.rwlock(path)
    for lock in [rw.read, rw.write, client.semaphore_mutex(path), client.multi([client.mutex(path)])]:
        with pytest.raises(zklock.Error, match=r"only a mutex|not supported"):
            lock.set_local_handover(1)
    with pytest.raises(ValueError, match="max_passes: -1; expected 0"):
        client.mutex(path).set_local_handover(-1)
    with pytest.raises(ValueError, match="local_handover: -1; expected 0"):
        client.mutex(path, local_handover=-1)
    with pytest.raises(zklock.NotOwner):
        _ = client.mutex(path).fencing_pass
