#!/usr/bin/env python3
"""Writes to a znode under a lock, by kazoo: fenced_znode.py SERVERS LOCK DATA SESSION

The data is in the ensemble that has the lock, so a check of the lock's node in the transaction that writes is enough;
see docs/fencing.md. Each line of the program's input is written. Stop it (kill -STOP), let another one acquire and
write, and let it go on (kill -CONT): what it writes then is refused.
"""

from __future__ import annotations

import sys

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

import zklock


def put(kazoo: KazooClient, node_path: str, path: str, value: bytes) -> bool:
    """Writes as long as the lock's node is there. False where it is not: nothing was written."""
    transaction = kazoo.transaction()
    # Version -1: whatever its data. Its version changes when somebody asks for the lock back.
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
            sys.exit("fenced_znode.py: somebody else holds it")
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
