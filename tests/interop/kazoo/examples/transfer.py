"""Moves an amount between two accounts under the locks of both, with kazoo: transfer.py SERVERS FROM TO AMOUNT SECONDS

An account is a file in the current directory.
"""

import sys
import time
from contextlib import ExitStack
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, LockTimeout
from kazoo.handlers.threading import KazooTimeoutError


def transfer(source: Path, target: Path, amount: int) -> str:
    available = int(source.read_text())
    if available < amount:
        return "not enough"
    source.write_text(f"{available - amount}\n")
    target.write_text(f"{int(target.read_text()) + amount}\n")
    return "transferred"


def main(servers: str, source: str, target: str, amount: str, seconds: str) -> None:
    client = KazooClient(servers)
    client.start()
    try:
        deadline = time.monotonic() + float(seconds)
        with ExitStack() as held:
            try:
                for account in sorted([source, target]):  # one order for all programs, so that they do not deadlock
                    lock = client.Lock(f"/accounts/{account}")
                    lock.acquire(timeout=max(0.0, deadline - time.monotonic()))
                    held.callback(lock.release)
            except LockTimeout:
                print("not in time")
                return
            print(transfer(Path(source), Path(target), int(amount)))
    finally:
        client.stop()
        client.close()


if __name__ == "__main__":
    if len(sys.argv) != 6:
        sys.exit("usage: transfer.py SERVERS FROM TO AMOUNT SECONDS")
    try:
        main(*sys.argv[1:])
    except (KazooException, KazooTimeoutError, OSError, ValueError) as error:
        sys.exit(f"transfer.py: {error}")
