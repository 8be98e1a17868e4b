"""Tests of read/write locks."""

from __future__ import annotations

import gc

import pytest

import zklock
from conftest import Inspector, Waiter, ends_at_limit, wait_until
from server import ZooKeeper
from zklock import LockState


def test_readers_share_and_a_writer_excludes(
    client: zklock.Client, other_client: zklock.Client, path: str, inspector: Inspector
) -> None:
    rw, other = client.rwlock(path), other_client.rwlock(path)
    assert rw.path == rw.read.path == rw.write.path == path
    with rw.read, other.read:
        assert rw.read.is_held
        assert other.read.is_held
        assert ["__READ__" in node for node in inspector.nodes(path)] == [True, True]
        assert Waiter(lambda: rw.write.acquire(timeout=0)).result() is False
        assert other.read.acquire(timeout=0) is True
        other.read.release()
    inspector.wait_for(path, 0)
    with rw.write:
        assert rw.write.node_path == inspector.nodes(path)[0]
        assert "__WRIT__" in rw.write.node_path
        assert other.read.acquire(timeout=0) is False
        assert other.write.acquire(timeout=0) is False
    assert inspector.nodes(path) == []


def test_read_and_write_are_lock_objects(client: zklock.Client, path: str) -> None:
    rw = client.rwlock(path)
    assert rw.read is rw.read
    assert rw.write is rw.write
    for half, name in [(rw.read, "ReadLock"), (rw.write, "WriteLock")]:
        assert isinstance(half, zklock.Lock)
        assert not isinstance(half, zklock.Mutex)
        assert (half.is_held, half.state, half.remaining) == (False, LockState.FREE, 0.0)
        with half as held:
            assert held is half
            assert (half.is_held, half.is_held_in_process, half.state) == (True, True, LockState.HELD)
            assert 0 < half.remaining <= 10
            assert half.node_paths == [half.node_path]
            assert half.participants()[0].czxid == half.fencing_token
            with half:
                assert len(half.participants()) == 1
            assert repr(half) == f"<zklock.{name} '{path}' HELD token={half.fencing_token}>"
        assert repr(half) == f"<zklock.{name} '{path}' FREE>"
        assert half.acquire()
        half.release_nowait()
        with pytest.raises(zklock.NotOwner):
            half.release()
    assert repr(rw) == f"<zklock.RwLock '{path}'>"


def test_read_lock_outlives_its_rwlock_object(client: zklock.Client, path: str, inspector: Inspector) -> None:
    read = client.rwlock(path).read
    gc.collect()
    assert read.acquire()
    assert len(inspector.nodes(path)) == 1
    read.release()
    assert inspector.nodes(path) == []


def test_collected_rwlock_stays_held_until_its_client_ends(server: ZooKeeper, path: str, inspector: Inspector) -> None:
    with zklock.Client(server.address) as client:
        rw = client.rwlock(path)
        rw.write.acquire()
        rw.read.acquire()
        del rw
        gc.collect()
        assert len(inspector.nodes(path)) == 2
    assert inspector.nodes(path) == []


def test_a_writer_goes_on_reading(
    client: zklock.Client, other_client: zklock.Client, path: str, inspector: Inspector
) -> None:
    rw, other = client.rwlock(path), other_client.rwlock(path)
    rw.write.acquire()
    writer = Waiter(lambda: (other.write.acquire(timeout=60), other.write.release()))
    inspector.wait_for(path, 2)
    assert rw.read.acquire(timeout=0)
    rw.write.release()
    assert rw.read.is_held
    assert other.read.acquire(timeout=0) is False
    rw.read.release()
    assert writer.result() == (True, None)


def test_a_reader_must_not_write(client: zklock.Client, path: str) -> None:
    rw = client.rwlock(path)
    with rw.read, pytest.raises(zklock.Deadlock, match="read lock"):
        rw.write.acquire()
    with rw.write:
        pass


def test_participants_are_of_one_kind_or_of_both(
    client: zklock.Client, other_client: zklock.Client, path: str, inspector: Inspector
) -> None:
    rw, other = client.rwlock(path, data=b"first"), other_client.rwlock(path, data=b"second")
    assert rw.queue() == []
    with rw.read:
        writer = Waiter(lambda: (other.write.acquire(), other.write.release()))
        nodes = inspector.wait_for(path, 2)
        queue = rw.queue()
        assert [one.node_path for one in queue] == nodes
        assert [one.holds for one in queue] == [True, False]
        assert [one.data for one in queue] == [b"first", b"second"]
        assert rw.read.queue() == rw.write.queue() == queue
        assert rw.read.participants() == queue[:1]
        assert rw.write.participants() == queue[1:]
        # The queue is served in order: no reader overtakes a writer.
        assert other.read.acquire(timeout=0) is False
    writer.result()
    rw.read.set_data(b"reader")
    with rw.read, other.read:
        assert [one.data for one in rw.queue()] == [b"reader", b"second"]


@pytest.mark.parametrize("half", ["read", "write"])
@pytest.mark.parametrize("timeout", [0.0004, 0.3])
def test_timeouts_are_neither_early_nor_late(
    client: zklock.Client, other_client: zklock.Client, path: str, inspector: Inspector, half: str, timeout: float
) -> None:
    lock = getattr(client.rwlock(path, timeout=timeout), half)

    def enter() -> None:
        with pytest.raises(zklock.LockTimeout), lock:
            pytest.fail("it is taken")

    with other_client.rwlock(path).write:
        assert ends_at_limit(timeout, lambda: lock.acquire(timeout=timeout)) is False
        ends_at_limit(timeout, enter)
        inspector.wait_for(path, 1)


def test_cancel_wakes_only_that_lock(
    client: zklock.Client, other_client: zklock.Client, path: str, inspector: Inspector
) -> None:
    rw = client.rwlock(path)
    with other_client.rwlock(path).write:
        reader, writer = Waiter(rw.read.acquire), Waiter(rw.write.acquire)
        inspector.wait_for(path, 3)
        rw.read.cancel()
        with pytest.raises(zklock.Canceled):
            reader.result()
        inspector.wait_for(path, 2)
        rw.write.cancel()
        with pytest.raises(zklock.Canceled):
            writer.result()


def test_lost_read_or_write_lock_is_reported(client: zklock.Client, path: str, inspector: Inspector) -> None:
    rw = client.rwlock(path)
    with pytest.raises(zklock.LockLost, match="deleted"), rw.read:
        inspector.kazoo.delete(rw.read.node_path)
        wait_until(lambda: rw.read.state is LockState.LOST)
        with pytest.raises(zklock.LockLost):
            rw.read.node_path  # noqa: B018
    assert rw.read.state is LockState.FREE
