#!/usr/bin/env python3
"""Limit a pool to three users at a time, and wait for a turn: pool.py SERVERS PATH SECONDS

A use ends when a line of input arrives.
"""

import sys

import zklock


def use() -> None:
    print("using", flush=True)
    sys.stdin.readline()


def main(servers: str, path: str, seconds: str) -> None:
    with zklock.Client(servers) as client:
        pool = client.semaphore(path, max_leases=3)
        try:
            with pool.acquire(timeout=float(seconds)):
                use()
        except zklock.LockTimeout:
            print("full")
        else:
            print("returned")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: pool.py SERVERS PATH SECONDS")
    try:
        main(*sys.argv[1:])
    except (zklock.Error, ValueError) as error:
        sys.exit(f"pool.py: {error}")
