"""Tests of multi-locks."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import zklock
from conftest import Inspector, Waiter, ends_at_limit, wait_until
from server import ZooKeeper
from zklock import LockState


def test_all_or_nothing(client: zklock.Client, other_client: zklock.Client, path: str, inspector: Inspector) -> None:
    a, b = client.mutex(f"{path}/a"), client.mutex(f"{path}/b")
    multi = client.multi([a, b])
    assert isinstance(multi, zklock.MultiLock)
    assert isinstance(multi, zklock.Lock)
    assert multi.locks == (a, b)
    assert repr(multi) == f"<zklock.MultiLock '{path}/a' '{path}/b' FREE>"
    with multi as held:
        assert held is multi
        assert (multi.is_held, multi.is_held_in_process, multi.state) == (True, True, LockState.HELD)
        assert a.is_held
        assert b.is_held
        assert a.fencing_token == b.fencing_token == multi.fencing_token
        assert multi.node_paths == [a.node_path, b.node_path]
        assert [one.node_path for one in multi.participants()] == multi.node_paths
        assert 0 < multi.remaining <= 10
        assert repr(multi) == f"<zklock.MultiLock '{path}/a' '{path}/b' HELD token={multi.fencing_token}>"
    assert inspector.nodes(a.path) == inspector.nodes(b.path) == []
    with other_client.mutex(b.path):
        assert multi.acquire(timeout=0) is False
        inspector.wait_for(a.path, 0)
        waiter = Waiter(lambda: (multi.acquire(), multi.release()))
        inspector.wait_for(a.path, 1)
        multi.cancel()
        with pytest.raises(zklock.Canceled):
            waiter.result()
        inspector.wait_for(a.path, 0)


def test_multi_lock_has_node_paths_but_no_single_path(client: zklock.Client, path: str) -> None:
    multi = client.multi([client.mutex(path)])
    with multi:
        assert len(multi.node_paths) == 1
        with pytest.raises(AttributeError, match="node_paths"):
            multi.node_path  # noqa: B018
        with pytest.raises(AttributeError, match="the paths of its member locks"):
            multi.path  # noqa: B018


def test_of_all_kinds_of_locks_and_clients(
    client: zklock.Client, other_client: zklock.Client, path: str, inspector: Inspector
) -> None:
    rw = other_client.rwlock(f"{path}/rw")
    inner = client.multi(iter([client.mutex(f"{path}/a"), other_client.mutex(f"{path}/b")]))
    locks = (client.semaphore_mutex(f"{path}/c"), rw.read, inner)
    multi = client.multi(lock for lock in locks)
    assert multi.locks == locks
    with multi:
        assert all(lock.is_held for lock in locks)
        assert len(multi.node_paths) == 4
        assert len(multi.participants()) == 4
        assert multi.fencing_token == min(lock.fencing_token for lock in locks)
        assert Waiter(lambda: client.rwlock(f"{path}/rw").write.acquire(timeout=0)).result() is False
    for name in ["a", "b", "c/leases", "rw"]:
        inspector.wait_for(f"{path}/{name}", 0)
    with client.multi([rw.write, *inner.locks]) as held:
        assert rw.write.is_held
        assert held.is_held


@pytest.mark.parametrize("timeout", [0.0004, 0.3])
def test_one_deadline_for_all(
    client: zklock.Client, other_client: zklock.Client, path: str, inspector: Inspector, timeout: float
) -> None:
    def enter(multi: zklock.MultiLock) -> None:
        with pytest.raises(zklock.LockTimeout), multi:
            pytest.fail("one is taken")

    paths = [f"{path}/{name}" for name in "abc"]
    with other_client.mutex(paths[1]), other_client.semaphore_mutex(paths[2]):
        locks = [client.mutex(paths[0]), client.mutex(paths[1]), client.semaphore_mutex(paths[2])]
        for multi in [client.multi(locks[:2], timeout=timeout), client.multi([locks[0], locks[2]], timeout=timeout)]:
            assert ends_at_limit(timeout, partial(multi.acquire, timeout=timeout)) is False
            ends_at_limit(timeout, partial(enter, multi))
            inspector.wait_for(paths[0], 0)


def test_opposite_orders_do_not_deadlock(client: zklock.Client, other_client: zklock.Client, path: str) -> None:
    def work(client: zklock.Client, names: str) -> None:
        multi = client.multi([client.mutex(f"{path}/{name}") for name in names], timeout=60)
        for _ in range(50):
            with multi:
                pass

    for waiter in [Waiter(lambda: work(client, "ab")), Waiter(lambda: work(other_client, "ba"))]:
        waiter.result()


def test_a_member_that_is_lost(client: zklock.Client, path: str, inspector: Inspector) -> None:
    a, b = client.mutex(f"{path}/a"), client.mutex(f"{path}/b")
    multi = client.multi([a, b])
    with pytest.raises(zklock.LockLost, match="deleted"), multi:
        inspector.kazoo.delete(a.node_path)
        wait_until(lambda: multi.state is LockState.LOST)
        assert (multi.is_held, multi.remaining, b.is_held) == (False, 0.0, True)
    assert multi.state is LockState.FREE
    assert not b.is_held


def test_re_entrance(client: zklock.Client, path: str) -> None:
    a, b = client.mutex(f"{path}/a"), client.mutex(f"{path}/b")
    multi = client.multi([a, b])
    with a, multi, multi:
        assert multi.is_held
    assert not a.is_held
    with pytest.raises(zklock.NotOwner):
        multi.release()


def test_data(client: zklock.Client, path: str) -> None:
    multi = client.multi([client.mutex(f"{path}/a"), client.semaphore_mutex(f"{path}/b")])
    multi.set_data(b"mine")
    with multi:
        assert [one.data for one in multi.participants()] == [b"mine", b"mine"]


def test_collected_multi_lock_keeps_its_members(server: ZooKeeper, path: str, inspector: Inspector) -> None:
    with zklock.Client(server.address) as client:
        multi = client.multi([client.mutex(f"{path}/a"), client.mutex(f"{path}/b")])
        gc.collect()
        multi.acquire()
        kept = multi.locks[0]
        del multi
        gc.collect()
        assert kept.is_held
        kept.release()
        assert len(inspector.nodes(f"{path}/b")) == 1
    assert inspector.nodes(f"{path}/b") == []


@pytest.mark.parametrize(
    ("make", "raised", "message"),
    [
        (lambda client, path: [], ValueError, "no member locks"),
        (lambda client, path: [client.mutex(path), client.mutex(path)], ValueError, "the same path"),
        (lambda client, path: [client.rwlock(path).read, client.rwlock(path).write], ValueError, "the same path"),
        (lambda client, path: client.mutex(path), TypeError, "expected paths and locks of zklock.*not Mutex"),
        (lambda client, path: None, TypeError, "not NoneType"),
        (lambda client, path: path, TypeError, "not str"),
        (lambda client, path: path.encode(), TypeError, "not bytes"),
        (lambda client, path: [client.mutex(path), 1], TypeError, "not int"),
        (lambda client, path: [client.rwlock(path)], TypeError, r"not RwLock; use its \.read or \.write"),
        (lambda client, path: [client.semaphore(path, 1)], TypeError, "not Semaphore"),
    ],
)
def test_wrong_locks(
    client: zklock.Client,
    path: str,
    make: Callable[[zklock.Client, str], Any],
    raised: type[Exception],
    message: str,
) -> None:
    with pytest.raises(raised, match=message):
        client.multi(make(client, path))


def test_paths_become_mutexes(client: zklock.Client, other_client: zklock.Client, path: str) -> None:
    own = other_client.mutex(f"{path}/b")
    multi = client.multi([f"{path}/a", own, f"{path}/c"], timeout=60)
    assert [(type(lock).__name__, lock.path) for lock in multi.locks] == [
        ("Mutex", f"{path}/a"),
        ("Mutex", f"{path}/b"),
        ("Mutex", f"{path}/c"),
    ]
    assert multi.locks[1] is own
    with multi:
        assert all(lock.is_held for lock in multi.locks)
        assert not client.mutex(f"{path}/a").is_held
        assert not Waiter(lambda: other_client.mutex(f"{path}/c").acquire(timeout=0)).result()
    with pytest.raises(ValueError, match="the same path"):
        client.multi([f"{path}/a", client.mutex(f"{path}/a")])
    with pytest.raises(ValueError, match="no slash"):
        client.multi(["no slash"])


def test_exception_of_the_iterable_propagates(client: zklock.Client, path: str) -> None:
    def locks() -> Any:
        yield client.mutex(path)
        raise KeyError("mine")

    class Broken:
        def __iter__(self) -> Any:
            raise KeyError("mine")

    for iterable in (locks(), Broken()):
        with pytest.raises(KeyError):
            client.multi(iterable)


def test_closed_clients(client: zklock.Client, other_client: zklock.Client, path: str) -> None:
    locks = [client.mutex(f"{path}/a"), other_client.mutex(f"{path}/b")]
    multi = client.multi(locks)
    other_client.close()
    with pytest.raises(zklock.ClientClosed):
        multi.acquire()
    with pytest.raises(zklock.ClientClosed):
        client.multi(locks)


def test_in_order(client: zklock.Client, path: str) -> None:
    locks = [client.mutex(f"{path}/b"), client.mutex(f"{path}/a")]
    with client.multi(locks, timeout=60, in_order=True):
        assert locks[0].fencing_token < locks[1].fencing_token
    with client.multi(locks, timeout=60):
        assert locks[0].fencing_token == locks[1].fencing_token
