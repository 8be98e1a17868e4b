#!/usr/bin/env python3
"""Many tasks take turns on one lock, with everybody else: aio.py SERVERS PATH NAME TASKS ROUNDS

Start it several times, here or elsewhere, with the same PATH. Each task does so many rounds, and each prints two lines

    NAME/TASK acquired TOKEN <fencing token> <monotonic ns>
    NAME/TASK released TOKEN <fencing token> <monotonic ns>

and between the two no other task's or program's lines have a time: only one works at a time, and the token grows.
Ctrl-C ends it, and leaves nothing in the queue.
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
    lock = client.mutex(path, timeout=30.0)
    for _ in range(rounds):
        # The work is cancelled if the lock is lost meanwhile, and LockLost raised.
        async with lock, lock.while_held():
            token = lock.fencing_token
            say(name, "acquired", token)
            await asyncio.sleep(0.1)  # the work that only one may do at a time
            say(name, "released", token)


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
