"""The pytest fixtures of zklock. If zklock is installed, pytest finds these fixtures automatically.

The fixtures are in a separate package, so that a test run without these fixtures does not import zklock.
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
    """A new ZooKeeper server in memory for each test. Connect to ``zklock_server.address``."""
    from zklock.testing import StandaloneServer

    with StandaloneServer() as server:
        yield server


@pytest.fixture
def zklock_client(zklock_server: StandaloneServer) -> Iterator[Client]:
    """A client of ``zklock_server`` for use in a test. For instance, this client can hold a lock while the tested
    program waits for the lock.
    """
    from zklock import Client

    with Client(zklock_server.address) as client:
        yield client
