#!/usr/bin/env python3
"""Take turns on a lock with other programs: mutex.py SERVERS PATH NAME ROUNDS

Start the program several times with the same PATH, on one machine or on several. Each round prints one line after it
acquires the lock, and one line before it releases the lock. Only one program works at a time. The times of two rounds
therefore never overlap. The fencing token grows with each hold.

    NAME acquired TOKEN <fencing token> <monotonic ns>
    NAME released TOKEN <fencing token> <monotonic ns>
"""

import sys
import time

import zklock


def say(name: str, what: str, token: int) -> None:
    print(f"{name} {what} TOKEN {token} {time.monotonic_ns()}", flush=True)


def main(servers: str, path: str, name: str, rounds: str) -> None:
    with zklock.Client(servers) as client:
        lock = client.mutex(path, timeout=30.0)
        for _ in range(int(rounds)):
            with lock:
                token = lock.fencing_token
                say(name, "acquired", token)
                time.sleep(0.1)  # the work, which only one program does at a time
                say(name, "released", token)


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit("usage: mutex.py SERVERS PATH NAME ROUNDS")
    try:
        main(*sys.argv[1:])
    except zklock.Error as error:
        sys.exit(f"mutex.py: {error}")
