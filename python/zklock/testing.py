"""A ZooKeeper server that runs in memory, for tests of programs that use zklock. A test can cause faults on the server,
for instance a lost reply.

    def test_a_job_stops_when_it_loses_its_lock(zklock_server):        # a pytest fixture that zklock installs
        with zklock.Client(zklock_server.address) as client:
            job = Job(client)
            zklock_server.expire(client)
            assert job.wait() == "lock lost"

The server does not replicate data, and writes nothing to disk. Use a real ZooKeeper ensemble in production.
Without pytest, use ``StandaloneServer`` in a ``with`` block:

    with StandaloneServer() as server, zklock.Client(server.address) as client:
        server.lose_reply(Op.CREATE2, client)
        client.mutex("/a").acquire()
"""

from enum import IntEnum

from zklock._zklock import Session, StandaloneServer

__all__ = ["Op", "Session", "StandaloneServer"]


class Op(IntEnum):
    """Request kinds for the ``op`` argument of ``lose_reply()``. ``lose_reply()`` drops the reply to a request of this
    kind. The values of the members are ZooKeeper's request numbers.
    """

    CREATE = 1
    """Create a node; only older clients send this request."""
    DELETE = 2
    """Delete a node. The client sends this request to remove a lock's node from the queue."""
    GET_DATA = 4
    """Read a node and watch it. The client sends this request to watch the node ahead in the queue."""
    PING = 11
    """Keep an idle session alive."""
    GET_CHILDREN2 = 12
    """List the nodes of a directory. The client sends this request to read a lock's queue."""
    MULTI = 14
    """Execute several requests as one transaction. The client sends this request to renew its session lease."""
    CREATE2 = 15
    """Create a node. The client sends this request to add a lock's node to the queue."""
    CREATE_CONTAINER = 19
    """Create a directory that the server removes when the directory is empty."""
