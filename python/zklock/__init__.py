"""Distributed locks on Apache ZooKeeper, compatible with Apache Curator.

    import zklock

    with zklock.Client("host1:2181,host2:2181/chroot") as client:
        lock = client.mutex("/locks/nightly-report")
        with lock.hold(timeout=5.0) as hold:                                # LockTimeout after 5 seconds
            work(fence=hold.token)

        lock = client.mutex("/locks/other")
        if lock.acquire(timeout=0):                                         # one attempt: True or False
            try:
                while lock.is_held and more_to_do():
                    do_a_little()
            finally:
                lock.release()

A client also provides the other recipes of Curator. All kinds of locks have the methods of ``Lock``:

        rw = client.rwlock("/locks/table")                                  # rw.read is shared, rw.write is not
        both = client.multi(["/a", rw.write])                               # several locks as one
        any_thread_releases = client.semaphore_mutex("/locks/job")
        with client.semaphore("/pool", max_leases=3).acquire(2, timeout=1.0) as leases:
            work(fence=leases.fencing_token)
        rw.write.set_revocable(lambda node: please_stop.set())              # client.revoke(node) asks for the lock
        client.shared_count_set("/pool-size", 5)                            # for client.semaphore(path, count_path=...)

A ``Client`` has one ZooKeeper session. Any number of locks and threads may share the client. A ``Mutex`` belongs to the
thread that acquired it. The owner of a mutex may re-enter it. No other thread, on any machine, can acquire a mutex with
the same path until the owner releases the mutex. All durations are in seconds, as an int or a float. Any thread may use
the objects of this package. Blocking calls release the global interpreter lock (GIL). Ctrl-C interrupts a wait. The
interrupted call leaves no hold and no node behind.

In a program with gevent or eventlet, each greenlet counts as a thread. While a greenlet waits, other greenlets run. If
the hub itself or a greenlet without a hub tries to wait for a lock, ``acquire()`` raises an error that explains the
alternatives. Callbacks run on an operating-system thread, not in a greenlet.

If the session of a client ends, the client loses all its holds. A hold is safe while the client is sure that the
session has not expired. The session lease is the time for which the client can be sure that its session has not
expired, as measured by the client's own clock. When the session lease ends, ``is_held``, ``remaining`` and ``state``
change at once, even if the process was stopped for some time. A lock cannot stop a program that keeps writing after it
has lost the lock. A store that compares fencing tokens can refuse writes of a program that has lost its lock. To be
notified of a loss, register a callback with ``lock.on_lost()``, or call ``hold.wait_lost()`` in a thread. If the lock
is lost during a ``with`` block, the end of the block raises ``LockLost``. ``client.on_event(callback)`` reports every
change in the state of the session and of all holds:

        def on_event(event):                                                # called on a thread of zklock
            match event:
                case zklock.LockEvent(state=zklock.LockState.LOST):
                    please_stop.set()
                case zklock.ClientEvent():
                    print(event.previous.value, "->", event.state.value)

Properties such as ``is_held``, ``state`` and ``fencing_token`` describe the hold of the calling thread. A lock that
``acquire()`` has acquired stays taken until its release or the end of its client, even if the program drops the lock
object. If a ``Hold`` or a ``Leases`` object is garbage-collected, the library ends the hold. When a thread ends, the
library does not release its holds. The library issues a ``ResourceWarning``, and logs a warning, if a thread ends while
it holds a lock that no other thread can release, or if a ``Hold`` or a ``Leases`` object is garbage-collected before
the release. ``python -X dev`` shows a ``ResourceWarning``.

A client provides metrics (``client.metrics()``, ``client.prometheus()``). The library writes log records with
``logging``. The loggers are ``zklock.session``, ``zklock.lock`` and ``zklock.request``. Each log record has an
attribute ``zklock``, a dict with details.

Every failure of an operation raises a ``zklock.Error`` with a ``status``, and each ``Status`` that a Python program can
receive has an exception class. Most exception classes are also subclasses of built-in exceptions: ``LockTimeout`` is a
``TimeoutError``, ``PermissionDenied`` is a ``PermissionError``, and a wrong argument raises a ``ValueError`` or
``TypeError``. Wrong use of the API, such as an unknown argument or a client of another event loop, raises a plain
``TypeError``, ``AttributeError`` or ``RuntimeError``.

``zklock.aio`` provides the classes of ``zklock`` for asyncio tasks. A hold of ``zklock.aio`` belongs to a task and not
to a thread.

``zklock.testing`` contains a ZooKeeper server that runs in memory, for the tests of a program. The pytest fixtures are
``zklock_server`` and ``zklock_client``.
"""

import atexit
import importlib
import typing

# The native module uses these modules. Tools that freeze a program, for example PyInstaller, find only the modules that
# Python code imports.
from zklock import _callbacks as _callbacks
from zklock import _exit as _exit
from zklock import _greenlets as _greenlets
from zklock import _logs as _logs
from zklock import _threads as _threads
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
    InternalError,
    InvalidArgument,
    InvalidType,
    LockLost,
    LockTimeout,
    NotOwner,
    PermissionDenied,
    ServerError,
    Status,
    Unsupported,
)
from zklock._events import ClientEvent, Event, LockEvent
from zklock._metrics import Histogram, Metrics
from zklock._once import PastRun
from zklock._protocols import HoldLike, LockLike
from zklock._queue import Participant, Waiting
from zklock._states import ClientState, LockState, RunResult, WaitsFor
from zklock._work import locked
from zklock._zklock import (
    Client,
    Hold,
    Leases,
    Listener,
    Lock,
    MultiLock,
    Mutex,
    OncePer,
    ReadLock,
    Run,
    RwLock,
    Semaphore,
    SemaphoreMutex,
    WriteLock,
    __version__,
    _check_interpreter,
    _close_all,
)

# isort: split
from zklock._lazy import LazyClient

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
    "Hold",
    "HoldLike",
    "InternalError",
    "InvalidArgument",
    "InvalidType",
    "LazyClient",
    "Leases",
    "Listener",
    "Lock",
    "LockEvent",
    "LockLike",
    "LockLost",
    "LockState",
    "LockTimeout",
    "Metrics",
    "MultiLock",
    "Mutex",
    "NotOwner",
    "OncePer",
    "Participant",
    "PastRun",
    "PermissionDenied",
    "ReadLock",
    "Run",
    "RunResult",
    "RwLock",
    "Semaphore",
    "SemaphoreMutex",
    "ServerError",
    "Status",
    "Unsupported",
    "Waiting",
    "WaitsFor",
    "WriteLock",
    "__version__",
    "aio",
    "locked",
]


def __getattr__(name: str) -> "ModuleType":
    """Import ``zklock.aio`` when a program first uses it, so that programs that do not use it do not import asyncio."""
    if name != "aio":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("zklock.aio")


def __dir__() -> "list[str]":
    return [*globals(), "aio"]
