#!/usr/bin/env python3
"""Work as the leader until the lock is lost, then stop and acquire it again: leader.py SERVERS PATH NAME"""

import sys

import zklock


def main(servers: str, path: str, name: str) -> None:
    with zklock.Client(servers) as client:
        lock = client.mutex(path)
        while True:
            try:
                with lock.hold() as hold:  # also waits while no server answers
                    print(name, "leads", flush=True)
                    while not hold.wait_lost(0.2):
                        print(name, "works", flush=True)  # a step must be short compared with the session timeout
                    print(name, "stops", flush=True)
            except (zklock.LockLost, zklock.ConnectionLost):
                pass  # the hold has ended, even if no server can confirm this


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: leader.py SERVERS PATH NAME")
    try:
        main(*sys.argv[1:])
    except zklock.Error as error:
        sys.exit(f"leader.py: {error}")
