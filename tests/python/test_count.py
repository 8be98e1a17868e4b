"""Tests of shared counts: Curator's SharedCount."""

from __future__ import annotations

from typing import Any

import pytest

import zklock
from conftest import Inspector

EXTREMES = [0, 1, -1, 2**31 - 1, -(2**31)]


@pytest.mark.parametrize("value", EXTREMES)
def test_set_and_get(
    client: zklock.Client, other_client: zklock.Client, path: str, inspector: Inspector, value: int
) -> None:
    client.shared_count_set(path, value)
    assert other_client.shared_count_get(path) == value
    assert inspector.kazoo.get(path)[0] == value.to_bytes(4, "big", signed=True)
    client.shared_count_set(path, 5)
    assert other_client.shared_count_get(path) == 5


def test_a_count_that_is_not_there(client: zklock.Client, path: str, inspector: Inspector) -> None:
    with pytest.raises(zklock.ServerError, match="does not exist") as raised:
        client.shared_count_get(path)
    assert raised.value.status == -16
    client.shared_count_set(f"{path}/below/it", 7)
    assert client.shared_count_get(f"{path}/below/it") == 7


def test_a_node_that_is_no_count(client: zklock.Client, path: str, inspector: Inspector) -> None:
    inspector.kazoo.create(path, b"12345", makepath=True)
    with pytest.raises(ValueError, match="5 bytes"):
        client.shared_count_get(path)
    inspector.kazoo.set(path, b"\0\0\1\0")
    assert client.shared_count_get(path) == 256


@pytest.mark.parametrize(
    ("value", "raised", "message"),
    [
        (2**31, ValueError, "value: 2147483648; expected -2147483648 to 2147483647"),
        (-(2**31) - 1, ValueError, "value: -2147483649; expected"),
        (True, TypeError, "value: expected an int, not bool"),
        (1.0, TypeError, "value: expected an int, not float"),
        ("1", TypeError, "value: expected an int, not str"),
        (None, TypeError, "value: expected an int, not NoneType"),
    ],
)
def test_wrong_values(client: zklock.Client, path: str, value: Any, raised: type[Exception], message: str) -> None:
    with pytest.raises(raised, match=message):
        client.shared_count_set(path, value)


def test_wrong_paths(client: zklock.Client) -> None:
    path: Any
    for path in ["", "a", "/a/"]:
        with pytest.raises(ValueError, match="path"):
            client.shared_count_get(path)
        with pytest.raises(ValueError, match="path"):
            client.shared_count_set(path, 1)
    for path in [b"/a", None, 1]:
        with pytest.raises(TypeError):
            client.shared_count_get(path)


def test_a_closed_client(client: zklock.Client, path: str) -> None:
    client.close()
    with pytest.raises(zklock.ClientClosed):
        client.shared_count_get(path)
    with pytest.raises(zklock.ClientClosed):
        client.shared_count_set(path, 1)
