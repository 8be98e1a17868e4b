"""The fixtures of zklock for pytest, which finds them by itself wherever zklock is installed.

A package of its own, so that a run of pytest which uses no fixture of it does not import zklock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zklock import Client
    from zklock.testing import StandaloneServer


@pytest.fixture
def zklock_server() -> Iterator[StandaloneServer]:
    """A ZooKeeper server in memory, of the test's own: connect to ``zklock_server.address``."""
    from zklock.testing import StandaloneServer

    with StandaloneServer() as server:
        yield server


@pytest.fixture
def zklock_client(zklock_server: StandaloneServer) -> Iterator[Client]:
    """A client of ``zklock_server``, for what the test itself does: to hold a lock that the program wants."""
    from zklock import Client

    with Client(zklock_server.address) as client:
        yield client
