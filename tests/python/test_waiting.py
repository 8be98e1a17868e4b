"""Tests of waiting(), which reports what pending calls wait for, as far as this process knows."""

from __future__ import annotations

import re

import pytest

import zklock
from conftest import Waiter, wait_until
from server import ZooKeeper
from zklock import WaitsFor


def test_a_waiter_names_the_node_ahead(client: zklock.Client, other_client: zklock.Client, path: str) -> None:
    held, wanted = client.mutex(path, data=b"host-a"), other_client.mutex(path)
    assert wanted.waiting() == []
    with held:
        waiter = Waiter(lambda: wanted.acquire(timeout=60.0))
        wait_until(lambda: wanted.waiting() and wanted.waiting()[0].session_id)
        [seen] = wanted.waiting()
        assert (seen.waits_for, seen.ahead, seen.count) == (WaitsFor.NODE, held.node_path, 1)
        assert seen.session_id == client.session_id
        assert 0.0 <= seen.waited < 60.0
        assert seen.left is not None
        assert 0.0 < seen.left <= 60.0
        assert repr(seen).startswith(f"<zklock.Waiting for NODE '{held.node_path}' since ")
        # Together with participants(), it shows which participant owns the node ahead.
        people = {participant.node_path: participant for participant in held.participants()}
        assert seen.ahead is not None
        assert people[seen.ahead].data == b"host-a"
        assert seen.node_path is not None
        assert not people[seen.node_path].holds
    assert waiter.result()
    assert wanted.waiting() == []


def test_a_time_out_says_who_holds(client: zklock.Client, other_client: zklock.Client, path: str) -> None:
    with client.mutex(path, data=b"host-a") as held:
        who = f'held by {held.node_path} (session {client.session_id:#x}, data "host-a")'
        with pytest.raises(zklock.LockTimeout) as raised, other_client.mutex(path, timeout=1.0):
            pass
        # The message has the unit of the call.
        assert re.fullmatch(rf"{path}: not acquired within 1(\.\d+)? s; {re.escape(who)}", str(raised.value))


def test_leases_and_counts(client: zklock.Client, path: str) -> None:
    semaphore = client.semaphore(f"{path}/pool", count_path=f"{path}/size", initial=2)
    with semaphore.acquire(2):
        waiter = Waiter(lambda: semaphore.acquire(3).release())
        [seen] = wait_until(lambda: [one for one in semaphore.waiting() if one.waits_for == WaitsFor.COUNT])
        assert (seen.ahead, seen.count, seen.node_path, seen.left) == (f"{path}/size", 1, None, None)
        client.shared_count_set(f"{path}/size", 3)
        [seen] = wait_until(lambda: [one for one in semaphore.waiting() if one.waits_for == WaitsFor.LEASES])
        assert (seen.ahead, seen.count) == (f"{path}/pool/leases", 2)
    waiter.result()


def test_waiting_works_without_server(own_server: ZooKeeper, path: str) -> None:
    with zklock.Client(own_server.address, session_timeout=4) as client:
        lock = client.rwlock(path).read
        own_server.pause()
        waiter = Waiter(lambda: lock.acquire())
        wait_until(lambda: [one.waits_for for one in lock.waiting()] == [WaitsFor.SERVER])
        wait_until(lambda: [one.waits_for for one in lock.waiting()] == [WaitsFor.CONNECTION])
        assert [one.ahead for one in lock.waiting()] == [None]
        lock.cancel()
        with pytest.raises(zklock.Canceled):
            waiter.result()
