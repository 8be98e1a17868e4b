"""Uses a pool of at most three users at a time, with kazoo: pool.py SERVERS PATH SECONDS

A use lasts until a line of input arrives.
"""

import sys

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, LockTimeout
from kazoo.handlers.threading import KazooTimeoutError


def use() -> None:
    print("using", flush=True)
    sys.stdin.readline()


def main(servers: str, path: str, seconds: str) -> None:
    client = KazooClient(servers)
    client.start()
    try:
        pool = client.Semaphore(path, max_leases=3)
        try:
            pool.acquire(timeout=float(seconds))
        except LockTimeout:
            print("full")
            return
        try:
            use()
        finally:
            pool.release()
        print("returned")
    finally:
        client.stop()
        client.close()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: pool.py SERVERS PATH SECONDS")
    try:
        main(*sys.argv[1:])
    except (KazooException, KazooTimeoutError, ValueError) as error:
        sys.exit(f"pool.py: {error}")
