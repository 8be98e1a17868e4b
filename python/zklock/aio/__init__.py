"""zklock for asyncio: the locks of ``zklock`` for tasks, without a thread that waits.

    import asyncio
    import zklock

    async def main():
        async with zklock.aio.Client("host1:2181,host2:2181/chroot") as client:
            async with client.mutex("/locks/nightly-report", timeout=5.0) as lock:    # LockTimeout after 5 seconds
                await work(fence=lock.fencing_token)

            async with client.mutex("/locks/b") as lock, lock.while_held():           # cancelled where it is lost
                await work()

            lock = client.mutex("/locks/other")
            if await lock.acquire(timeout=0):                                         # one look: True or False
                try:
                    while lock.is_held and more_to_do():
                        await do_a_little()
                finally:
                    await lock.release()

            async with client.semaphore("/pool", max_leases=3).acquire(2, timeout=1.0) as leases:
                await work(fence=leases.fencing_token)

    asyncio.run(main())

Classes, methods and arguments have the names that they have in ``zklock``, and mean the same: what asks a server, or
waits, is a coroutine here. What raises there raises here, and durations are seconds.

A hold belongs to a **task**, where it belongs to a thread there: a task that holds enters again, other tasks are
excluded like threads and processes, and release of what another task holds raises NotOwner. A task that ends with a
hold keeps it, as a thread does, and a ResourceWarning says so. ``asyncio.wait_for(lock.acquire(), 5)`` acquires for the
task that awaits it; ``create_task()``, ``gather()`` and ``shield()`` make tasks of their own. An asynchronous generator
that is left in the midst of an ``async with`` block is ended by a task of the loop's, which does not hold: end it where
it is used, by ``contextlib.aclosing()``.

**Cancellation** leaves nothing behind, wherever it comes. An acquire that is cancelled is taken out of the queue, and
given back where it had just won; no task that is cancelled waits for a server before it goes on, but for
``Client.close()``. A release that is cancelled goes on.

Who wants to hear that a lock was **lost** asks ``lock.is_held``, awaits ``lock.lost()``, works in a block of
``lock.while_held()``, which is cancelled then, or gives its client an ``on_event``. The end of an ``async with`` block
raises LockLost in any case.

A client belongs to the event loop that it connected in, and has one descriptor there, however many tasks use it. It
works with every loop that has ``add_reader()``: asyncio's, and uvloop. No thread of the library's runs Python, and no
call blocks the loop's.
"""

from zklock.aio._client import Client
from zklock.aio._locks import Lock, MultiLock, Mutex, ReadLock, RwLock, SemaphoreMutex, WriteLock
from zklock.aio._semaphore import Leases, Semaphore

__all__ = [
    "Client",
    "Leases",
    "Lock",
    "MultiLock",
    "Mutex",
    "ReadLock",
    "RwLock",
    "Semaphore",
    "SemaphoreMutex",
    "WriteLock",
]

# Programs see these as zklock.aio.Client and so on.
for _class in (Client, Leases, Lock, MultiLock, Mutex, ReadLock, RwLock, Semaphore, SemaphoreMutex, WriteLock):
    _class.__module__ = "zklock.aio"
del _class
