"""Tests of semaphores and their leases."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

import zklock
from conftest import Inspector, Waiter, ends_at_limit, wait_until
from zklock import LockState


def test_leases(client: zklock.Client, path: str, inspector: Inspector) -> None:
    semaphore = client.semaphore(path, max_leases=3)
    assert semaphore.path == path
    assert repr(semaphore) == f"<zklock.Semaphore '{path}' max_leases=3>"
    leases = semaphore.acquire(2)
    assert isinstance(leases, zklock.Leases)
    assert (leases.quantity, leases.is_held, leases.state) == (2, True, LockState.HELD)
    assert 0 < leases.remaining <= 10
    assert sorted(leases.node_paths) == sorted(inspector.nodes(f"{path}/leases"))
    assert leases.fencing_token in [inspector.kazoo.get(node)[1].czxid for node in leases.node_paths]
    assert [one.holds for one in semaphore.participants()] == [True, True]
    assert repr(leases) == f"<zklock.Leases '{path}' quantity=2 HELD token={leases.fencing_token}>"
    leases.release()
    assert inspector.nodes(f"{path}/leases") == []
    assert (leases.quantity, leases.is_held, leases.state, leases.remaining) == (2, False, LockState.FREE, 0.0)
    assert repr(leases) == f"<zklock.Leases '{path}' quantity=2 FREE>"
    for call in [leases.release, leases.release_nowait, lambda: leases.fencing_token, lambda: leases.node_paths]:
        with pytest.raises(zklock.NotOwner):
            call()
    inspector.wait_for(f"{path}/locks", 0)


def test_with(client: zklock.Client, path: str, inspector: Inspector) -> None:
    with client.semaphore(path, max_leases=3).acquire(2, timeout=60.0) as leases:
        assert leases.is_held
        assert len(inspector.nodes(f"{path}/leases")) == 2
    assert inspector.nodes(f"{path}/leases") == []
    semaphore = client.semaphore(path, 3)
    for give_back in [zklock.Leases.release, zklock.Leases.release_nowait]:
        with semaphore.acquire() as leases:
            give_back(leases)
        leases.__exit__(None, None, None)
    with pytest.raises(zklock.NotOwner), leases:
        pytest.fail("it goes on without leases")
    with pytest.raises(KeyError), semaphore.acquire() as leases:
        raise KeyError("mine")
    inspector.wait_for(f"{path}/leases", 0)


def test_acquire_beyond_the_free_leases_waits(
    client: zklock.Client, other_client: zklock.Client, path: str, inspector: Inspector
) -> None:
    one, two = client.semaphore(path, 3), other_client.semaphore(path, 3)
    first = one.acquire(2, timeout=0)
    second = two.acquire(timeout=0)
    assert second.fencing_token > first.fencing_token
    with pytest.raises(zklock.LockTimeout) as raised:
        two.acquire(timeout=0)
    assert raised.value.status == -3
    waiter = Waiter(lambda: two.acquire(2, timeout=60))
    inspector.wait_for(f"{path}/leases", 5)
    assert [found.holds for found in one.participants()] == [True] * 3 + [False] * 2
    first.release()
    assert waiter.result().is_held
    inspector.wait_for(f"{path}/leases", 1 + 2)


@pytest.mark.parametrize("timeout", [1e-12, 0.0004, 0.05, 0.3, 1])
def test_timeouts_are_neither_early_nor_late(
    client: zklock.Client, other_client: zklock.Client, path: str, inspector: Inspector, timeout: float
) -> None:
    semaphore = client.semaphore(path, 1)

    def acquire() -> None:
        with pytest.raises(zklock.LockTimeout, match="not acquired within"):
            semaphore.acquire(timeout=timeout)

    with other_client.semaphore(path, 1).acquire():
        ends_at_limit(timeout, acquire)
        inspector.wait_for(f"{path}/leases", 1)
        inspector.wait_for(f"{path}/locks", 0)


@pytest.mark.parametrize("timeout", [None, float("inf"), 10**400])
def test_waits_without_a_limit(
    client: zklock.Client, other_client: zklock.Client, path: str, inspector: Inspector, timeout: float | None
) -> None:
    with other_client.semaphore(path, 1).acquire():
        waiter = Waiter(lambda: client.semaphore(path, 1).acquire(1, timeout=timeout).quantity)
        inspector.wait_for(f"{path}/leases", 2)
    assert waiter.result() == 1


def test_any_thread_may_use_and_release_leases(client: zklock.Client, path: str, inspector: Inspector) -> None:
    semaphore = client.semaphore(path, 2)
    leases = Waiter(semaphore.acquire).result()
    assert leases.is_held
    again = semaphore.acquire(timeout=0)
    Waiter(leases.release).result()
    assert again.is_held
    again.release_nowait()
    inspector.wait_for(f"{path}/leases", 0)


def test_forgotten_leases_are_given_back(client: zklock.Client, path: str, inspector: Inspector) -> None:
    leases = client.semaphore(path, 3).acquire(3)
    gc.collect()
    assert leases.is_held
    del leases
    inspector.wait_for(f"{path}/leases", 0)


def test_a_lost_lease_is_reported(client: zklock.Client, path: str, inspector: Inspector) -> None:
    leases = client.semaphore(path, 3).acquire(2)
    with pytest.raises(zklock.LockLost, match="deleted") as raised, leases:
        inspector.kazoo.delete(leases.node_paths[0])
        wait_until(lambda: leases.state is LockState.LOST)
        assert (leases.is_held, leases.remaining) == (False, 0.0)
        assert "LOST" in repr(leases)
        with pytest.raises(zklock.LockLost):
            leases.fencing_token  # noqa: B018
        with pytest.raises(zklock.LockLost), leases:
            pytest.fail("it goes on without leases")
    assert raised.value.status == -6
    inspector.wait_for(f"{path}/leases", 0)
    error = KeyError("mine")
    with pytest.raises(KeyError) as caught, client.semaphore(path, 3).acquire(2) as leases:
        inspector.kazoo.delete(leases.node_paths[0])
        wait_until(lambda: not leases.is_held)
        raise error
    assert caught.value is error
    if hasattr(error, "add_note"):
        assert "releasing the leases" in error.__notes__[0]


def test_cancel_and_close(client: zklock.Client, other_client: zklock.Client, path: str, inspector: Inspector) -> None:
    semaphore = client.semaphore(path, 2)
    leases = semaphore.acquire(1)
    other = other_client.semaphore(path, 2).acquire(1)
    for end, raised in [(semaphore.cancel, zklock.Canceled), (semaphore.close, zklock.ClientClosed)]:
        waiter = Waiter(semaphore.acquire)
        inspector.wait_for(f"{path}/leases", 3)
        end()
        with pytest.raises(raised):
            waiter.result()
        inspector.wait_for(f"{path}/leases", 2)
    semaphore.close()
    for call in [semaphore.acquire, semaphore.cancel, semaphore.participants, lambda: semaphore.set_data(b"")]:
        with pytest.raises(zklock.ClientClosed):
            call()
    with pytest.raises(zklock.ClientClosed):
        semaphore.set_revocable(print)
    assert leases.is_held
    leases.release()
    other.release()
    assert inspector.nodes(f"{path}/leases") == []


def test_a_closed_client(client: zklock.Client, path: str) -> None:
    semaphore = client.semaphore(path, 2)
    leases = semaphore.acquire()
    client.close()
    with pytest.raises(zklock.ClientClosed):
        semaphore.acquire()
    with pytest.raises(zklock.ClientClosed):
        leases.release()
    with pytest.raises(zklock.ClientClosed):
        leases.is_held  # noqa: B018
    assert repr(leases) == f"<zklock.Leases '{path}' quantity=1 CLOSED>"
    for call in [lambda: client.semaphore(path, 2), lambda: client.semaphore(path, count_path=path, initial=1)]:
        with pytest.raises(zklock.ClientClosed):
            call()


def test_data(client: zklock.Client, path: str, inspector: Inspector) -> None:
    semaphore = client.semaphore(path, 1)
    for data, expected in [(b"\0mine", b"\0mine"), (b"", b""), (None, b"127.0.0.1")]:
        semaphore.set_data(data)
        with semaphore.acquire() as leases:
            assert inspector.kazoo.get(leases.node_paths[0])[0] == expected


def test_shared_count_limits_the_leases(
    client: zklock.Client, other_client: zklock.Client, path: str, inspector: Inspector
) -> None:
    count_path = f"{path}-count"
    semaphore = client.semaphore(path, count_path=count_path, initial=1)
    assert repr(semaphore) == f"<zklock.Semaphore '{path}' count_path='{count_path}'>"
    assert other_client.shared_count_get(count_path) == 1
    assert inspector.kazoo.get(count_path)[0] == b"\0\0\0\1"
    # The count exists, so the initial value has no effect.
    other = other_client.semaphore(path, count_path=count_path, initial=7)
    assert client.shared_count_get(count_path) == 1
    with semaphore.acquire():
        with pytest.raises(zklock.LockTimeout):
            other.acquire(timeout=0)
        with pytest.raises(zklock.LockTimeout):
            other.acquire(2, timeout=0)
        waiter = Waiter(lambda: other.acquire(2, timeout=60).quantity)
        other_client.shared_count_set(count_path, 3)
        assert waiter.result() == 2


@pytest.mark.parametrize(
    ("arguments", "raised", "message"),
    [
        ({}, TypeError, "expected max_leases, or count_path and initial"),
        ({"initial": 1}, TypeError, "expected max_leases, or count_path and initial"),
        ({"max_leases": 1, "count_path": "/a"}, TypeError, "not both"),
        ({"max_leases": 1, "count_path": "/a", "initial": 1}, TypeError, "not both"),
        ({"max_leases": 1, "initial": 1}, TypeError, "expected initial only with count_path"),
        ({"count_path": "/a"}, TypeError, "expected initial with count_path"),
        ({"max_leases": 0}, ValueError, "max_leases is 0; expected 1 or more"),
        ({"max_leases": -1}, ValueError, "max_leases is -1; expected 1 or more"),
        ({"max_leases": 1 << 31}, ValueError, "max_leases: 2147483648; expected"),
        ({"max_leases": 10**400}, ValueError, "max_leases: 1"),
        ({"max_leases": True}, TypeError, "max_leases: expected an int, not bool"),
        ({"max_leases": 1.0}, TypeError, "max_leases: expected an int, not float"),
        ({"max_leases": "1"}, TypeError, "max_leases: expected an int, not str"),
        ({"count_path": "a", "initial": 1}, ValueError, "path"),
        ({"count_path": b"/a", "initial": 1}, TypeError, "count_path"),
        ({"count_path": "/a", "initial": "1"}, TypeError, "initial: expected an int, not str"),
        ({"count_path": "/a", "initial": 1 << 31}, ValueError, "initial: 2147483648; expected"),
    ],
)
def test_semaphore_requires_exactly_one_maximum(
    client: zklock.Client, path: str, arguments: dict[str, Any], raised: type[Exception], message: str
) -> None:
    with pytest.raises(raised, match=message):
        client.semaphore(path, **arguments)


@pytest.mark.parametrize(
    ("quantity", "raised", "message"),
    [
        (0, ValueError, "quantity is 0; expected 1 or more"),
        (4, ValueError, "only 3"),
        (-1, ValueError, "quantity is -1; expected 1 or more"),
        (1 << 40, ValueError, "quantity: 1099511627776; expected 1 to 2147483647"),
        (10**400, ValueError, "quantity"),
        (None, TypeError, "quantity: expected an int, not NoneType"),
        (True, TypeError, "quantity: expected an int, not bool"),
        (1.0, TypeError, "quantity: expected an int, not float"),
        ("1", TypeError, "quantity: expected an int, not str"),
    ],
)
def test_wrong_quantities(
    client: zklock.Client, path: str, quantity: Any, raised: type[Exception], message: str
) -> None:
    semaphore = client.semaphore(path, 3)
    with pytest.raises(raised, match=message):
        semaphore.acquire(quantity)


def test_an_index_is_an_int(client: zklock.Client, path: str) -> None:
    class Two:
        def __index__(self) -> int:
            return 2

    class Mine:
        def __index__(self) -> int:
            raise KeyError("mine")

    quantity: Any = Two()
    assert client.semaphore(path, quantity).acquire(quantity).quantity == 2
    broken: Any = Mine()
    with pytest.raises(KeyError):
        client.semaphore(path, broken)


def test_threads_never_exceed_the_maximum(client: zklock.Client, path: str) -> None:
    semaphore = client.semaphore(path, 2)
    inside: list[int] = []
    crowds: list[int] = []

    def work() -> None:
        for _ in range(10):
            with semaphore.acquire():
                inside.append(1)
                crowds.append(len(inside))
                inside.pop()

    for waiter in [Waiter(work) for _ in range(4)]:
        waiter.result()
    assert len(crowds) == 40
    assert max(crowds) <= 2


@pytest.mark.parametrize("make", [lambda semaphore: semaphore, lambda semaphore: semaphore.acquire()])
def test_attributes_are_fixed(client: zklock.Client, path: str, make: Callable[[zklock.Semaphore], Any]) -> None:
    thing = make(client.semaphore(path, 1))
    for name in ["path", "quantity", "new"]:
        with pytest.raises(AttributeError):
            setattr(thing, name, 1)
