#!/usr/bin/env python3
"""Write to a store that refuses writes from a former holder of the lock: fenced_write.py SERVERS PATH FILE

Each line of input is a value to write.
"""

import fcntl
import sys

import zklock


def store(file: str, token: int, value: str) -> bool:
    """Write to the store: a file with the largest token so far, and a value. The lock on the file makes the comparison
    and the write one step, like a transaction in a database. Return False and write nothing if a later holder has
    already written."""
    with open(file, "a+") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        opened.seek(0)
        largest, _, _ = opened.read().partition(" ")
        if largest and token < int(largest):
            return False
        opened.truncate(0)
        opened.write(f"{token} {value}\n")
        return True


def main(servers: str, path: str, file: str) -> None:
    with zklock.Client(servers) as client:
        try:
            with client.mutex(path).hold(timeout=30.0) as hold:
                print("holds with token", hold.token, flush=True)
                for line in sys.stdin:
                    print("written" if store(file, hold.token, line.rstrip("\n")) else "refused", flush=True)
            print("released")
        except zklock.LockLost:
            print("lost")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: fenced_write.py SERVERS PATH FILE")
    try:
        main(*sys.argv[1:])
    except (zklock.Error, OSError) as error:
        sys.exit(f"fenced_write.py: {error}")
