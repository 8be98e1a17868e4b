#!/usr/bin/env python3
"""Run a job unless another process is running it: try_job.py SERVERS PATH

The job ends when a line of input arrives.
"""

import sys

import zklock


def job() -> None:
    print("running", flush=True)
    sys.stdin.readline()


def main(servers: str, path: str) -> None:
    with zklock.Client(servers) as client:
        lock = client.mutex(path)
        if not lock.acquire(timeout=0):  # one attempt, which does not wait
            print("skipped: another process runs it")
            return
        try:
            job()
        finally:
            lock.release()  # raises LockLost if the lock was lost during the job
        print("done")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: try_job.py SERVERS PATH")
    try:
        main(*sys.argv[1:])
    except zklock.Error as error:
        sys.exit(f"try_job.py: {error}")
