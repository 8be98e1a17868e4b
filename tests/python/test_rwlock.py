"""A lock with a half for many readers and one for a single writer."""

from __future__ import annotations

import gc
import time

import pytest

import zklock
from conftest import Waiter, Witness, wait_until
from zklock import LockState


def test_readers_share_and_a_writer_excludes(
    client: zklock.Client, other_client: zklock.Client, path: str, witness: Witness
) -> None:
    rw, other = client.rwlock(path), other_client.rwlock(path)
    assert rw.path == rw.read.path == rw.write.path == path
    with rw.read, other.read:
        assert rw.read.is_held
        assert other.read.is_held
        assert ["__READ__" in node for node in witness.nodes(path)] == [True, True]
        assert Waiter(lambda: rw.write.acquire(timeout=0)).result() is False
        assert other_client.rwlock(path).read.acquire(timeout=0) is True
    gc.collect()
    witness.wait_for(path, 0)
    with rw.write:
        assert rw.write.node_path == witness.nodes(path)[0]
        assert "__WRIT__" in rw.write.node_path
        assert other.read.acquire(timeout=0) is False
        assert other.write.acquire(timeout=0) is False
    assert witness.nodes(path) == []


def test_the_halves_are_locks(client: zklock.Client, path: str) -> None:
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


def test_a_half_outlives_its_lock(client: zklock.Client, path: str, witness: Witness) -> None:
    read = client.rwlock(path).read
    gc.collect()
    assert read.acquire()
    assert len(witness.nodes(path)) == 1
    del read
    witness.wait_for(path, 0)


def test_a_forgotten_one_releases(client: zklock.Client, path: str, witness: Witness) -> None:
    rw = client.rwlock(path)
    rw.write.acquire()
    rw.read.acquire()
    assert len(witness.nodes(path)) == 2
    del rw
    witness.wait_for(path, 0)


def test_a_writer_goes_on_reading(
    client: zklock.Client, other_client: zklock.Client, path: str, witness: Witness
) -> None:
    rw, other = client.rwlock(path), other_client.rwlock(path)
    rw.write.acquire()
    writer = Waiter(lambda: (other.write.acquire(timeout=5), other.write.release()))
    witness.wait_for(path, 2)
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
    client: zklock.Client, other_client: zklock.Client, path: str, witness: Witness
) -> None:
    rw, other = client.rwlock(path, data=b"first"), other_client.rwlock(path, data=b"second")
    assert rw.participants() == []
    with rw.read:
        writer = Waiter(lambda: (other.write.acquire(), other.write.release()))
        nodes = witness.wait_for(path, 2)
        queue = rw.participants()
        assert [one.node_path for one in queue] == nodes
        assert [one.holds for one in queue] == [True, False]
        assert [one.data for one in queue] == [b"first", b"second"]
        assert rw.read.participants() == queue[:1]
        assert rw.write.participants() == queue[1:]
        # First come, first served: no reader overtakes a writer.
        assert other.read.acquire(timeout=0) is False
    writer.result()
    rw.read.set_data(b"reader")
    with rw.read, other.read:
        assert [one.data for one in rw.participants()] == [b"reader", b"second"]


@pytest.mark.parametrize("half", ["read", "write"])
@pytest.mark.parametrize("timeout", [0.0004, 0.3])
def test_time_outs_are_neither_early_nor_late(
    client: zklock.Client, other_client: zklock.Client, path: str, witness: Witness, half: str, timeout: float
) -> None:
    with other_client.rwlock(path).write:
        lock = getattr(client.rwlock(path, timeout), half)
        started = time.monotonic()
        assert lock.acquire(timeout=timeout) is False
        assert timeout <= time.monotonic() - started < timeout + 0.1
        started = time.monotonic()
        with pytest.raises(zklock.LockTimeout), lock:
            pytest.fail("it is taken")
        assert timeout <= time.monotonic() - started < timeout + 0.1
        witness.wait_for(path, 1)


def test_cancel_wakes_one_half(client: zklock.Client, other_client: zklock.Client, path: str, witness: Witness) -> None:
    rw = client.rwlock(path)
    with other_client.rwlock(path).write:
        reader, writer = Waiter(rw.read.acquire), Waiter(rw.write.acquire)
        witness.wait_for(path, 3)
        rw.read.cancel()
        with pytest.raises(zklock.Canceled):
            reader.result()
        witness.wait_for(path, 2)
        rw.write.cancel()
        with pytest.raises(zklock.Canceled):
            writer.result()


def test_a_lost_half_is_reported(client: zklock.Client, path: str, witness: Witness) -> None:
    rw = client.rwlock(path)
    with pytest.raises(zklock.LockLost, match="deleted"), rw.read:
        witness.kazoo.delete(rw.read.node_path)
        wait_until(lambda: rw.read.state is LockState.LOST)
        with pytest.raises(zklock.LockLost):
            rw.read.node_path  # noqa: B018
    assert rw.read.state is LockState.FREE
