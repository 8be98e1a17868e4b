#!/usr/bin/env python3
"""Write to a store with the fencing token of a lock: fenced_store.py SERVERS LOCK DATABASE RESOURCE SESSION

The store is a SQLite database. The store remembers the largest fencing token of each resource, and refuses a write with
a smaller token; see docs/fencing.md. The program writes each line of its input to the store. SESSION is the session
timeout in seconds.

To see a refused write, stop the program (kill -STOP), and let a second program acquire the lock and write. Then
continue the first program (kill -CONT). The store refuses the next write of the first program. The first program does
not know yet that it has lost the lock.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import zklock

SCHEMA = """
CREATE TABLE IF NOT EXISTS fence (resource TEXT PRIMARY KEY, token INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS item (resource TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
PASS_THE_FENCE = """
INSERT INTO fence (resource, token) VALUES (?, ?)
ON CONFLICT (resource) DO UPDATE SET token = excluded.token WHERE fence.token <= excluded.token
"""


class StaleToken(Exception):
    """The store has refused a write, because a later holder of the lock has already written to the store."""


def open_store(database: str) -> sqlite3.Connection:
    # With isolation_level=None, sqlite3 does not begin transactions on its own.
    connection = sqlite3.connect(database, timeout=10.0, isolation_level=None)
    connection.executescript(SCHEMA)
    return connection


@contextmanager
def fenced(connection: sqlite3.Connection, resource: str, token: int) -> Iterator[sqlite3.Connection]:
    """Run a block in a transaction on behalf of the holder with this token. An exception in the block rolls back the
    transaction.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        if connection.execute(PASS_THE_FENCE, (resource, token)).rowcount != 1:
            raise StaleToken(f"{resource}: a later holder than {token} was here before")
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def main(servers: str, path: str, database: str, resource: str, session: str) -> None:
    store = open_store(database)
    with zklock.Client(servers, session_timeout=float(session)) as client:
        lock = client.mutex(path)
        if not lock.acquire(timeout=30.0):
            sys.exit("fenced_store.py: another participant holds the lock")
        token = lock.fencing_token
        print("acquired TOKEN", token, flush=True)
        # A line may arrive long after the program acquired the lock. Meanwhile, the program may have lost the lock.
        for line in sys.stdin:
            try:
                with fenced(store, resource, token) as transaction:
                    transaction.execute("INSERT OR REPLACE INTO item VALUES (?, ?)", (resource, line.rstrip("\n")))
                print("written", flush=True)
            except StaleToken:
                print("refused", flush=True)
        try:
            lock.release()
            print("released")
        except zklock.LockLost:
            print("lost")


if __name__ == "__main__":
    if len(sys.argv) != 6:
        sys.exit("usage: fenced_store.py SERVERS LOCK DATABASE RESOURCE SESSION")
    main(*sys.argv[1:])
