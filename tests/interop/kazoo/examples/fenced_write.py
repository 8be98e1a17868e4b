"""Writes to a store that rejects stale holders, with kazoo: fenced_write.py SERVERS PATH FILE

Each line of input is a value.
"""

import fcntl
import sys

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError


def store(file: str, token: int, value: str) -> bool:
    """The store: a file with the largest token so far and a value. It compares and writes in one step, like a database
    in a transaction. Returns False and writes nothing if a later holder has written before."""
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
    client = KazooClient(servers)
    client.start()
    try:
        lock = client.Lock(path)
        lock.acquire(timeout=30.0)
        node = f"{path}/{lock.node}"
        token = client.get(node)[1].czxid
        print("holds with token", token, flush=True)
        for line in sys.stdin:
            print("written" if store(file, token, line.rstrip("\n")) else "refused", flush=True)
        try:
            client.delete(node)  # release() does not report that the node is gone
            print("released")
        except NoNodeError:
            print("lost")
    finally:
        client.stop()
        client.close()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: fenced_write.py SERVERS PATH FILE")
    try:
        main(*sys.argv[1:])
    except (KazooException, KazooTimeoutError, OSError) as error:
        sys.exit(f"fenced_write.py: {error}")
