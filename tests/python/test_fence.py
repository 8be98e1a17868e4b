"""Tests of fence_check(): whether a token belongs to a holder, according to the ensemble."""

from __future__ import annotations

import pytest

import zklock
from conftest import Waiter, wait_until


def test_a_token_is_the_holders_until_it_is_released(
    client: zklock.Client, other_client: zklock.Client, path: str
) -> None:
    assert not other_client.fence_check(path, 1)
    rw = client.rwlock(path)
    for lock in [client.mutex(path), client.semaphore_mutex(path), rw.read, rw.write]:
        with lock:
            token = lock.fencing_token
            assert other_client.fence_check(path, token)
            assert not other_client.fence_check(path, token + 1)
        assert not other_client.fence_check(path, token)
    with client.semaphore(path, max_leases=2).acquire(2) as leases:
        token = leases.fencing_token
        assert other_client.fence_check(path, token)
    assert not other_client.fence_check(path, token)


def test_a_waiters_token_is_not_a_holders(client: zklock.Client, other_client: zklock.Client, path: str) -> None:
    held, wanted = client.mutex(path), other_client.mutex(path)
    with held:
        waiter = Waiter(lambda: wanted.acquire(timeout=60.0))
        wait_until(lambda: len(held.participants()) == 2)
        tokens = [participant.czxid for participant in held.participants()]
        assert [client.fence_check(path, token) for token in tokens] == [True, False]
    assert waiter.result()
    assert [client.fence_check(path, token) for token in tokens] == [False, True]


@pytest.mark.parametrize("token", [0, -1, -(2**63), 2**63, -(2**63) - 1])
def test_invalid_token_raises(client: zklock.Client, path: str, token: int) -> None:
    with pytest.raises(ValueError, match=f"token(:| is) {token}; "):
        client.fence_check(path, token)
