#!/usr/bin/env python3
"""Let the tasks of several programs take turns on one lock: aio.py SERVERS PATH NAME TASKS ROUNDS

Start the program several times with the same PATH, on one machine or on several. Each task does ROUNDS rounds. Each
round prints one line after it acquires the lock, and one line before it releases the lock. At any time, at most one
task of all the programs works. The times of two rounds therefore never overlap. The fencing token grows with each hold.
If Ctrl-C ends the program, it leaves no node in the queue.

    NAME/TASK acquired TOKEN <fencing token> <monotonic ns>
    NAME/TASK released TOKEN <fencing token> <monotonic ns>
"""

import asyncio
import contextlib
import sys
import time

import zklock
import zklock.aio


def say(name: str, what: str, token: int) -> None:
    print(f"{name} {what} TOKEN {token} {time.monotonic_ns()}", flush=True)


async def work(client: zklock.aio.Client, path: str, name: str, rounds: int) -> None:
    lock = client.mutex(path)
    for _ in range(rounds):
        # If the lock is not acquired within 30 seconds, hold() raises LockTimeout. If the lock is lost, the library
        # cancels the block, and the block raises LockLost.
        async with lock.hold(timeout=30.0) as hold, hold.while_held():
            say(name, "acquired", hold.token)
            await asyncio.sleep(0.1)  # the work, which only one task does at a time
            say(name, "released", hold.token)


async def main(servers: str, path: str, name: str, tasks: str, rounds: str) -> None:
    async with zklock.aio.Client(servers) as client:
        await asyncio.gather(*(work(client, path, f"{name}/{task}", int(rounds)) for task in range(int(tasks))))


if __name__ == "__main__":
    if len(sys.argv) != 6:
        sys.exit("usage: aio.py SERVERS PATH NAME TASKS ROUNDS")
    with contextlib.suppress(KeyboardInterrupt):
        try:
            asyncio.run(main(*sys.argv[1:]))
        except zklock.Error as error:
            sys.exit(f"aio.py: {error}")
