"""Operators that change a lock's nodes while the lock is in use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError

import zklock
from conftest import SLACK, Inspector, Waiter, wait_until
from server import ZooKeeper
from zklock import LockState

Make = Callable[[zklock.Client, str], Any]


def multi(client: zklock.Client, path: str) -> zklock.MultiLock:
    return client.multi([client.mutex(f"{path}/a"), client.mutex(f"{path}/b")])


LOCKS: list[Make] = [
    zklock.Client.mutex,
    lambda client, path: client.rwlock(path).read,
    lambda client, path: client.rwlock(path).write,
    zklock.Client.semaphore_mutex,
    multi,
    lambda client, path: client.semaphore(path, 3).acquire(3),
]
NAMES = ["mutex", "read", "write", "semaphore_mutex", "multi", "leases"]


@pytest.fixture
def client(server: ZooKeeper) -> Iterator[zklock.Client]:
    """The heartbeat interval is half a second."""
    with zklock.Client(server.address, session_timeout=3.0) as client:
        yield client


def test_a_deleted_node_is_noticed_within_a_heartbeat(server: ZooKeeper, path: str, inspector: Inspector) -> None:
    # A client that notices the loss only at the end of the session would exceed the limit. All kinds of locks wait for
    # the same heartbeat.
    session = 2 * SLACK
    with zklock.Client(server.address, session_timeout=session) as client, ExitStack() as stack:
        holds = [make(client, f"{path}/{name}") for make, name in zip(LOCKS, NAMES)]
        for hold in holds:
            stack.enter_context(pytest.raises(zklock.LockLost, match="deleted"))
            stack.enter_context(hold)
            assert hold.state is LockState.HELD
        start = time.monotonic()
        for hold in holds:
            inspector.kazoo.delete(hold.node_paths[-1])
        wait_until(lambda: all(hold.state is LockState.LOST for hold in holds))
        assert time.monotonic() - start < session / 6 + SLACK  # a heartbeat is a sixth of the session timeout
        for hold in holds:
            assert not hold.is_held
            assert hold.remaining == 0.0
            with pytest.raises(zklock.LockLost):
                hold.fencing_token  # noqa: B018
    wait_until(lambda: inspector.below(path) == [])


@pytest.mark.parametrize("make", LOCKS[:-1], ids=NAMES[:-1])
def test_waiter_acquires_after_the_tree_is_removed(
    client: zklock.Client, other_client: zklock.Client, path: str, inspector: Inspector, make: Make
) -> None:
    held = make(client, path)
    # Readers do not wait for each other.
    wanted = other_client.rwlock(path).write if isinstance(held, zklock.ReadLock) else make(other_client, path)
    with pytest.raises(zklock.LockLost, match="deleted"), held:
        waiter = Waiter(lambda: (wanted.acquire(timeout=60.0), wanted.is_held, wanted.release()))
        wait_until(lambda: any(one.ahead for one in wanted.waiting()))
        # Remove the waiter's node first. Otherwise the waiter would get the lock and then lose it.
        for node in sorted(inspector.below(path), key=lambda node: node[-10:], reverse=True):
            remove(inspector, node)
        assert waiter.result() == (True, True, None)
        wait_until(lambda: held.state is LockState.LOST)
    wait_until(lambda: inspector.below(path) == [])
    remove(inspector, path)
    with held:
        assert held.is_held


def remove(inspector: Inspector, path: str) -> None:
    """Remove everything below the path. Some nodes may disappear by themselves in the meantime."""
    with suppress(NoNodeError):
        inspector.kazoo.delete(path, recursive=True)
