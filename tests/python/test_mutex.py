"""Tests of a mutex in one process."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import zklock
from conftest import Inspector, Waiter, ends_at_limit, wait_until
from zklock import LockState


def test_acquire_and_release(client: zklock.Client, path: str, inspector: Inspector) -> None:
    lock = client.mutex(path)
    assert lock.path == path
    assert (lock.is_held, lock.is_held_in_process, lock.state, lock.remaining) == (False, False, LockState.FREE, 0.0)
    assert lock.acquire() is True
    assert (lock.is_held, lock.is_held_in_process, lock.state) == (True, True, LockState.HELD)
    assert 0 < lock.remaining <= 10
    assert len(inspector.nodes(path)) == 1
    lock.release()
    assert inspector.nodes(path) == []
    assert not lock.is_held


def test_with(client: zklock.Client, path: str) -> None:
    lock = client.mutex(path)
    with lock as held:
        assert held is lock
        assert lock.is_held
    assert not lock.is_held


def test_a_with_block_has_a_deadline_if_it_was_given_one(
    client: zklock.Client, other_client: zklock.Client, path: str
) -> None:
    def enter() -> zklock.LockTimeout:
        with pytest.raises(zklock.LockTimeout, match="not acquired within") as raised, client.mutex(path, timeout=0.2):
            pytest.fail("two holders")
        return raised.value

    with other_client.mutex(path):
        error = ends_at_limit(0.2, enter)
        assert isinstance(error, TimeoutError)
        assert error.status == -3
    with client.mutex(path, timeout=60):
        pass


def test_timeout_zero_does_not_wait(
    client: zklock.Client, other_client: zklock.Client, path: str, inspector: Inspector
) -> None:
    lock, other = client.mutex(path), other_client.mutex(path)
    assert lock.acquire(timeout=0)
    assert ends_at_limit(0, lambda: other.acquire(timeout=0)) is False
    inspector.wait_for(path, 1)
    lock.release()
    assert other.acquire(timeout=0.0)
    other.release()


@pytest.mark.parametrize("timeout", [1e-12, 0.0004, 0.05, 0.3, 1])
def test_timeouts_are_neither_early_nor_late(
    client: zklock.Client, other_client: zklock.Client, path: str, inspector: Inspector, timeout: float
) -> None:
    with other_client.mutex(path):
        lock = client.mutex(path)
        assert ends_at_limit(timeout, lambda: lock.acquire(timeout=timeout)) is False
        inspector.wait_for(path, 1)


@pytest.mark.parametrize("timeout", [None, float("inf"), 1e300, 10**400, 1e10])
def test_waits_without_a_limit(
    client: zklock.Client, other_client: zklock.Client, path: str, inspector: Inspector, timeout: float
) -> None:
    with other_client.mutex(path):
        waiter = Waiter(lambda: client.mutex(path).acquire(timeout=timeout))
        inspector.wait_for(path, 2)
    assert waiter.result() is True


def test_the_holder_enters_again(client: zklock.Client, path: str, inspector: Inspector) -> None:
    lock = client.mutex(path)
    with lock, lock:
        token = lock.fencing_token
        assert lock.acquire(timeout=0)
        assert lock.fencing_token == token
        assert len(inspector.nodes(path)) == 1
        lock.release()
        assert lock.is_held
    assert not lock.is_held
    with pytest.raises(zklock.NotOwner):
        lock.release()


def test_threads_exclude_each_other_on_one_handle(client: zklock.Client, path: str) -> None:
    lock = client.mutex(path)
    inside: list[int] = []
    crowds: list[int] = []

    def work() -> None:
        for _ in range(20):
            with lock:
                inside.append(threading.get_ident())
                crowds.append(len(inside))
                inside.remove(threading.get_ident())

    with ThreadPoolExecutor(4) as pool:
        for thread in [pool.submit(work) for _ in range(4)]:
            thread.result()
    assert crowds == [1] * 80


def test_other_threads_go_on_while_one_waits(client: zklock.Client, path: str, inspector: Inspector) -> None:
    lock = client.mutex(path)
    with lock:
        waiter = Waiter(lambda: (lock.acquire(), lock.is_held, lock.release()))
        inspector.wait_for(path, 2)
        assert Waiter(lambda: lock.is_held).result() is False
        assert Waiter(lambda: lock.is_held_in_process).result() is True
        assert Waiter(lambda: lock.state).result() is LockState.FREE
        assert Waiter(lambda: lock.state_in_process).result() is LockState.HELD
    assert waiter.result() == (True, True, None)


def test_only_the_holder_releases(client: zklock.Client, path: str) -> None:
    lock = client.mutex(path)
    with pytest.raises(zklock.NotOwner, match=path) as raised:
        lock.release()
    assert raised.value.status == -5
    with pytest.raises(zklock.NotOwner):
        lock.release_nowait()
    with pytest.raises(zklock.NotOwner):
        lock.fencing_token  # noqa: B018
    with lock:
        with pytest.raises(zklock.NotOwner):
            Waiter(lock.release).result()
        assert lock.is_held


def test_release_nowait(client: zklock.Client, path: str, inspector: Inspector) -> None:
    lock = client.mutex(path)
    for _ in range(3):
        lock.acquire()
        lock.release_nowait()
        assert not lock.is_held
    inspector.wait_for(path, 0)


def test_cancel_wakes_waiters(
    client: zklock.Client, other_client: zklock.Client, path: str, inspector: Inspector
) -> None:
    lock = client.mutex(path)
    lock.cancel()  # no call waits
    with other_client.mutex(path):
        waiter = Waiter(lock.acquire)
        inspector.wait_for(path, 2)
        lock.cancel()
        with pytest.raises(zklock.Canceled):
            waiter.result()
        inspector.wait_for(path, 1)
    assert lock.acquire(timeout=60)
    lock.release()


def test_a_second_handle_in_one_thread_would_wait_for_itself(client: zklock.Client, path: str) -> None:
    with client.mutex(path), pytest.raises(zklock.Deadlock):
        client.mutex(path).acquire()


def test_participants(client: zklock.Client, other_client: zklock.Client, path: str, inspector: Inspector) -> None:
    lock = client.mutex(path)
    assert lock.participants() == []
    other = other_client.mutex(path, data="später".encode())
    with lock:
        waiter = Waiter(lambda: (other.acquire(), other.release()))
        nodes = inspector.wait_for(path, 2)
        queue = lock.participants()
        assert [one.node_path for one in queue] == nodes
        assert [one.holds for one in queue] == [True, False]
        assert [one.session_id for one in queue] == [client.session_id, other_client.session_id]
        assert [one.czxid for one in queue] == [inspector.kazoo.get(node)[1].czxid for node in nodes]
        assert [one.data for one in queue] == [b"127.0.0.1", "später".encode()]
        assert queue[0].czxid == lock.fencing_token
        assert queue == other.participants()
        assert queue[0] != queue[1]
        assert nodes[0] in repr(queue[0])
        assert "holds" in repr(queue[0])
        assert "waits" in repr(queue[1])
    waiter.result()


def test_data(client: zklock.Client, path: str, inspector: Inspector) -> None:
    lock = client.mutex(path, data=b"\0first")
    for data, expected in [(b"\0first", b"\0first"), (b"", b""), (b"x" * 1000, b"x" * 1000), (None, b"127.0.0.1")]:
        lock.set_data(data)
        with lock:
            assert inspector.kazoo.get(inspector.nodes(path)[0])[0] == expected
    with pytest.raises(ValueError, match="node data"):
        lock.set_data(b"x" * (1 << 20))
    with pytest.raises(ValueError, match="node data"):
        client.mutex(path, data=b"x" * (1 << 20))


def test_tokens_grow(client: zklock.Client, other_client: zklock.Client, path: str, inspector: Inspector) -> None:
    tokens = []
    for lock in [client.mutex(path), other_client.mutex(path), client.mutex(path)]:
        with lock:
            tokens.append(lock.fencing_token)
        inspector.kazoo.delete(path)  # sequence numbers start again
    assert tokens == sorted(set(tokens))


def test_exception_in_the_block_propagates(client: zklock.Client, path: str, inspector: Inspector) -> None:
    with pytest.raises(KeyError), client.mutex(path):
        raise KeyError("mine")
    assert inspector.nodes(path) == []


def lose(lock: zklock.Mutex, inspector: Inspector) -> None:
    inspector.kazoo.delete(inspector.nodes(lock.path)[0])
    wait_until(lambda: not lock.is_held)


def test_a_lost_lock_is_reported(client: zklock.Client, path: str, inspector: Inspector) -> None:
    lock = client.mutex(path)
    with pytest.raises(zklock.LockLost, match="deleted") as raised, lock:
        lose(lock, inspector)
        assert (lock.state, lock.remaining, lock.is_held_in_process) == (LockState.LOST, 0.0, False)
        assert "LOST" in repr(lock)
        with pytest.raises(zklock.LockLost):
            lock.fencing_token  # noqa: B018
        with pytest.raises(zklock.LockLost):
            lock.acquire()
    assert raised.value.status == -6
    assert lock.state is LockState.FREE
    with lock:
        assert lock.is_held


def test_a_lost_lock_does_not_mask_the_exception_of_the_block(
    client: zklock.Client, path: str, inspector: Inspector
) -> None:
    lock = client.mutex(path)
    error = KeyError("mine")
    with pytest.raises(KeyError) as raised, lock:
        lose(lock, inspector)
        raise error
    assert raised.value is error
    if hasattr(error, "add_note"):
        assert "another client or an operator deleted" in error.__notes__[0]
    else:
        assert isinstance(error.__context__, zklock.LockLost)


def test_repr(client: zklock.Client, path: str) -> None:
    lock = client.mutex(path)
    assert repr(lock) == f"<zklock.Mutex '{path}' FREE>"
    with lock:
        assert repr(lock) == f"<zklock.Mutex '{path}' HELD token={lock.fencing_token}>"
    client.close()
    assert repr(lock) == f"<zklock.Mutex '{path}' CLOSED>"
