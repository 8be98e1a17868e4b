#!/usr/bin/env python3
"""Takes turns with everybody else on a lock: mutex.py SERVERS PATH NAME ROUNDS

Start it several times, here or elsewhere, with the same PATH. Each round prints two lines

    NAME acquired TOKEN <fencing token> <monotonic ns>
    NAME released TOKEN <fencing token> <monotonic ns>

and between the two no other program's lines have a time: only one works at a time, and the token grows.
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
                time.sleep(0.1)  # the work that only one may do at a time
                say(name, "released", token)


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit("usage: mutex.py SERVERS PATH NAME ROUNDS")
    try:
        main(*sys.argv[1:])
    except zklock.Error as error:
        sys.exit(f"mutex.py: {error}")
