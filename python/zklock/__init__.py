"""Distributed locks on Apache ZooKeeper, on the znodes of Apache Curator.

    import zklock

    with zklock.Client("host1:2181,host2:2181/chroot") as client:
        with client.mutex("/locks/nightly-report", timeout=5.0) as lock:    # LockTimeout after 5 seconds
            work(fence=lock.fencing_token)

        lock = client.mutex("/locks/other")
        if lock.acquire(timeout=0):                                         # one look: True or False
            try:
                while lock.is_held and more_to_do():
                    do_a_little()
            finally:
                lock.release()

Curator's other recipes, on its znodes, are made in the same way. All that are locks have the same methods (``Lock``):

        rw = client.rwlock("/locks/table")                                  # rw.read is shared, rw.write is not
        both = client.multi([client.mutex("/a"), rw.write])                 # several locks as one
        any_thread_releases = client.semaphore_mutex("/locks/job")
        with client.semaphore("/pool", max_leases=3).acquire(2, timeout=1.0) as leases:
            work(fence=leases.fencing_token)
        rw.write.set_revocable(lambda node: please_stop.set())              # client.revoke(node) asks for it
        client.set_count("/pool-size", 5)                                   # of client.semaphore(path, count_path=...)

A ``Client`` is one ZooKeeper session, shared by any number of locks and threads. A ``Mutex`` belongs to the thread that
acquired it, excludes every other thread, process and machine that uses the same path, and may be entered again by its
holder. All durations are seconds, as int or float. All classes may be used from any thread, blocking calls release the
interpreter's lock, and Ctrl-C interrupts a wait without leaving anything behind.

In a program with greenlets (gevent, eventlet) each greenlet is what a thread is here, and the others run while one
waits. A greenlet without a hub, and the hub itself, cannot wait for a lock: ``acquire()`` raises an error that says
what to do. Callbacks run on a thread of the system.

A lock is a lease. It is held while the session that made it is surely alive, by a clock of zklock's own: ``is_held``,
``remaining`` and ``state`` know at once when it is over, even in a process that was stopped meanwhile. What no lock can
do is to stop a program that goes on after it lost the lock; a store that is given the ``fencing_token`` can. A client
that was given ``on_event`` tells of every change, and a ``with`` block that ends after the loss raises ``LockLost``:

        def on_event(event):                                                # on a thread of zklock's
            if isinstance(event, zklock.LockEvent) and event.state is zklock.LockState.LOST:
                please_stop.set()

        client = zklock.Client("host:2181", on_event=on_event)

What a client does it counts (``client.metrics()``, ``client.prometheus()``), and tells ``logging``: the loggers
``zklock.session``, ``zklock.lock`` and ``zklock.request``, whose records have a dict of what they are about,
``record.zklock``.

Every failure is a ``zklock.Error`` with a ``status``, except wrong arguments: ``ValueError`` and ``TypeError``.

``zklock.aio`` has all of it for asyncio: there a task is what a thread is here.

``zklock.testing`` has a ZooKeeper server in memory, for programs to be tested on, and for pytest the fixtures
``zklock_server`` and ``zklock_client``.
"""

import atexit
import typing

from zklock._errors import (
    AuthFailed,
    Canceled,
    ClientClosed,
    ConnectionLost,
    Deadlock,
    Error,
    Exhausted,
    ForeignContender,
    Forked,
    LockLost,
    LockTimeout,
    NotOwner,
    PermissionDenied,
    ServerError,
)
from zklock._events import ClientEvent, Event, LockEvent
from zklock._metrics import Histogram, Metrics
from zklock._states import ClientState, LockState, WaitsFor
from zklock._zklock import (
    Client,
    Leases,
    Lock,
    MultiLock,
    Mutex,
    Participant,
    ReadLock,
    RwLock,
    Semaphore,
    SemaphoreMutex,
    Waiting,
    WriteLock,
    __version__,
    _check_interpreter,
    _close_all,
)

if typing.TYPE_CHECKING:
    from types import ModuleType

    from zklock import aio as aio

_check_interpreter()
atexit.register(_close_all)

__all__ = [
    "AuthFailed",
    "Canceled",
    "Client",
    "ClientClosed",
    "ClientEvent",
    "ClientState",
    "ConnectionLost",
    "Deadlock",
    "Error",
    "Event",
    "Exhausted",
    "ForeignContender",
    "Forked",
    "Histogram",
    "Leases",
    "Lock",
    "LockEvent",
    "LockLost",
    "LockState",
    "LockTimeout",
    "Metrics",
    "MultiLock",
    "Mutex",
    "NotOwner",
    "Participant",
    "PermissionDenied",
    "ReadLock",
    "RwLock",
    "Semaphore",
    "SemaphoreMutex",
    "ServerError",
    "Waiting",
    "WaitsFor",
    "WriteLock",
    "__version__",
]


def __getattr__(name: str) -> "ModuleType":
    """``zklock.aio`` is imported when it is first used: who does without it does without asyncio."""
    if name != "aio":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return importlib.import_module("zklock.aio")


def __dir__() -> "list[str]":
    return [*globals(), "aio"]
