"""The ``zklock`` locks for asyncio tasks. No thread blocks while a task waits for a lock.

    import asyncio
    import zklock

    async def main():
        async with zklock.aio.Client("host1:2181,host2:2181/chroot") as client:
            lock = client.mutex("/locks/nightly-report")
            async with lock.hold(timeout=5.0) as hold:                                # LockTimeout after 5 seconds
                await work(fence=hold.token)

            async with client.mutex("/locks/b") as lock, lock.while_held():           # cancelled if the lock is lost
                await work()

            lock = client.mutex("/locks/other")
            if await lock.acquire(timeout=0):                                         # one attempt: True or False
                try:
                    while lock.is_held and more_to_do():
                        await do_a_little()
                finally:
                    await lock.release()

            async with client.semaphore("/pool", max_leases=3).acquire(2, timeout=1.0) as leases:
                await work(fence=leases.fencing_token)

    asyncio.run(main())

Classes, methods and arguments have the same names and meanings as in ``zklock``. In ``zklock.aio``, each method that
waits or sends a request to a server is a coroutine. The methods raise the same exceptions as in ``zklock``. All
durations are in seconds.

In this module, a hold belongs to a **task** and not to a thread. The task that holds a lock may re-enter the lock. All
other tasks, threads and processes wait. If a task tries to release a lock that another task holds, ``release()`` raises
NotOwner. Only a SemaphoreMutex has no owner, so any task may release it. The properties of a lock describe the hold of
the current task. In a task without a hold, ``is_held`` is False and ``fencing_token`` raises NotOwner. Any task may use
a ``Hold``. The owner is the task that makes the call, also if another task runs the coroutine, as with
``asyncio.shield(lock.release())``, ``create_task()``, ``gather()`` and ``wait_for()``.

If a task ends without releasing a lock, **the library does not release the lock**. After the owner of a hold has ended,
no other task can release the lock. The library issues a ResourceWarning that names the lock of the ended task. These
sentences do not apply to a ``Hold`` and to a SemaphoreMutex, because any task may release them. If a Hold
or a Leases object is garbage-collected during a hold, the library ends the hold, issues a ResourceWarning and logs it.
Python shows ResourceWarnings with ``-X dev`` or ``-W default``. If a program abandons an asynchronous generator inside
an ``async with`` block, another task exits the block. In an asynchronous generator, use ``async with lock.hold()``. Any
task may exit such a block. As an alternative, use ``contextlib.aclosing()``, which closes the generator in the task
that uses the generator.

If a task is **cancelled** while it waits for a lock, the task leaves no node and no hold behind. The library removes
the node from the queue. If the task has just acquired the lock, the library releases the lock. A cancelled task does
not wait for a server, except in ``Client.close()``. If a task is cancelled during a release, the library completes the
release.

A program can notice the **loss** of a lock in several ways. ``hold.is_lost`` shows whether a hold is lost.
``lock.wait_lost()`` and ``hold.wait_lost()`` wait for a loss. After a loss, the library cancels a ``lock.while_held()``
block, calls the ``lock.on_lost()`` callbacks, and raises LockLost at the end of an ``async with`` block. ``async for
event in client.events()`` and ``client.on_event()`` report all changes in the state of the session and of all holds.

A client belongs to the event loop in which the client connected. The loop watches only one descriptor for each client,
even if the client has many tasks. A client works with every event loop that has ``add_reader()``, such as the loops of
asyncio and uvloop. The library calls callbacks only on the thread of the loop, and no call blocks that thread. Handlers
of ``logging`` and the callables of ``auth`` run on other threads, except that the end of a block itself logs a failed
release.
"""

from zklock.aio._client import Client
from zklock.aio._events import EventStream
from zklock.aio._locks import Hold, Lock, MultiLock, Mutex, OncePer, ReadLock, Run, RwLock, SemaphoreMutex, WriteLock
from zklock.aio._protocols import HoldLike, LockLike
from zklock.aio._semaphore import Leases, Semaphore

__all__ = [
    "Client",
    "EventStream",
    "Hold",
    "HoldLike",
    "Leases",
    "Lock",
    "LockLike",
    "MultiLock",
    "Mutex",
    "OncePer",
    "ReadLock",
    "Run",
    "RwLock",
    "Semaphore",
    "SemaphoreMutex",
    "WriteLock",
]

# Give the classes their public names, for instance zklock.aio.Client.
for _class in (
    Client,
    EventStream,
    Hold,
    HoldLike,
    Leases,
    Lock,
    LockLike,
    MultiLock,
    Mutex,
    OncePer,
    ReadLock,
    Run,
    RwLock,
    Semaphore,
    SemaphoreMutex,
    WriteLock,
):
    _class.__module__ = "zklock.aio"
del _class
