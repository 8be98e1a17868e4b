#!/usr/bin/env python3
"""Hold a lock, and write to a znode with kazoo: fenced_znode.py SERVERS LOCK DATA SESSION

The lock and the data are in the same ensemble. The transaction that writes the data can therefore check that the lock's
node still exists; see docs/fencing.md. The program writes each line of its input to the znode DATA. SESSION is the
session timeout in seconds.

To see a refused write, stop the program (kill -STOP), and let a second program acquire the lock and write. Then
continue the first program (kill -CONT). ZooKeeper refuses the next write of the first program.
"""

from __future__ import annotations

import sys

from kazoo.client import KazooClient  # type: ignore[import-untyped]
from kazoo.exceptions import NoNodeError  # type: ignore[import-untyped]

import zklock


def put(kazoo: KazooClient, node_path: str, path: str, value: bytes) -> bool:
    """Write the value if the lock's node exists. If the node does not exist, return False and write nothing."""
    transaction = kazoo.transaction()
    # With version -1, the check accepts every version. A revocation request changes the version of the node.
    transaction.check(node_path, -1)
    transaction.set_data(path, value)
    guard, written = transaction.commit()
    if isinstance(guard, NoNodeError):
        return False
    for result in (guard, written):
        if isinstance(result, Exception):
            raise result
    return True


def main(servers: str, path: str, data: str, session: str) -> None:
    kazoo = KazooClient(servers, timeout=30.0)
    kazoo.start()
    kazoo.ensure_path(data)
    with zklock.Client(servers, session_timeout=float(session)) as client:
        lock = client.mutex(path)
        if not lock.acquire(timeout=30.0):
            sys.exit("fenced_znode.py: another participant holds the lock")
        node_path = lock.node_path
        print("acquired TOKEN", lock.fencing_token, flush=True)
        for line in sys.stdin:
            is_written = put(kazoo, node_path, data, line.rstrip("\n").encode())
            print("written" if is_written else "refused", flush=True)
        try:
            lock.release()
            print("released")
        except zklock.LockLost:
            print("lost")
    kazoo.stop()


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit("usage: fenced_znode.py SERVERS LOCK DATA SESSION")
    main(*sys.argv[1:])
