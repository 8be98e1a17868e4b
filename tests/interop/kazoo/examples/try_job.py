"""Runs a job only if no other process runs it now, with kazoo: try_job.py SERVERS PATH

The job lasts until a line of input arrives.
"""

import sys

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError


def job() -> None:
    print("running", flush=True)
    sys.stdin.readline()


def main(servers: str, path: str) -> None:
    client = KazooClient(servers)
    client.start()
    try:
        lock = client.Lock(path)
        if not lock.acquire(blocking=False):
            print("skipped: another process runs it")
            return
        try:
            job()
        finally:
            lock.release()
        print("done")
    finally:
        client.stop()
        client.close()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: try_job.py SERVERS PATH")
    try:
        main(*sys.argv[1:])
    except (KazooException, KazooTimeoutError) as error:
        sys.exit(f"try_job.py: {error}")
