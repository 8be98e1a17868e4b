"""A ZooKeeper server in memory, for tests of programs that use zklock. It fails when it is told to.

    def test_a_job_stops_when_it_loses_its_lock(zklock_server):        # the fixture is there where zklock is installed
        with zklock.Client(zklock_server.address) as client:
            job = Job(client)
            zklock_server.expire(client)
            assert job.wait() == "lock lost"

Without pytest, ``StandaloneServer`` is for a ``with`` block:

    with StandaloneServer() as server, zklock.Client(server.address) as client:
        server.lose_reply(Op.CREATE2, client)
        client.mutex("/a").acquire()

It does not replicate, and writes nothing to disk: production runs on a real ZooKeeper ensemble.
"""

from enum import IntEnum

from zklock._zklock import Session, StandaloneServer

__all__ = ["Op", "Session", "StandaloneServer"]


class Op(IntEnum):
    """Requests whose reply can be lost, by ZooKeeper's numbers for them."""

    CREATE = 1
    """Creates a node; older clients do."""
    DELETE = 2
    """Deletes a node: how a lock leaves the queue."""
    GET_DATA = 4
    """Reads a node, and watches it: how a lock waits."""
    PING = 11
    """Keeps an idle session alive."""
    GET_CHILDREN2 = 12
    """Lists the nodes of a directory: how a lock finds its place."""
    MULTI = 14
    """Does several things at once: how a hold is kept alive."""
    CREATE2 = 15
    """Creates a node: how a lock joins the queue."""
    CREATE_CONTAINER = 19
    """Creates a directory that goes when it is empty."""
