#!/usr/bin/env python3
"""Writes to a store under a lock, and proves its hold: fenced_store.py SERVERS LOCK DATABASE RESOURCE SESSION

The store is SQLite. It keeps the largest fencing token of each resource, and refuses smaller ones in the same
transaction in which it writes; see docs/fencing.md. Each line of the program's input is written. Stop it (kill -STOP),
let another one acquire and write, and let it go on (kill -CONT): what it writes then is refused, however sure it was
that it holds the lock.
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
ON CONFLICT (resource) DO UPDATE SET token = excluded.token WHERE token <= excluded.token
"""


class StaleToken(Exception):
    """A later holder was here before. Nothing was written."""


def open_store(database: str) -> sqlite3.Connection:
    # No transactions but those that are begun here.
    connection = sqlite3.connect(database, timeout=10.0, isolation_level=None)
    connection.executescript(SCHEMA)
    return connection


@contextmanager
def fenced(connection: sqlite3.Connection, resource: str, token: int) -> Iterator[sqlite3.Connection]:
    """A transaction for the holder with this token: committed at the end of the block, rolled back where it raises."""
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
            sys.exit("fenced_store.py: somebody else holds it")
        token = lock.fencing_token
        print("acquired TOKEN", token, flush=True)
        # The work that takes its time: here, until somebody has typed a line. What was looked up before may be over.
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
