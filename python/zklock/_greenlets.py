"""Lets a greenlet of gevent or eventlet wait for the library while the other greenlets of its thread run.

All waiting greenlets of a hub share one wake queue, and the hub watches the descriptor of this queue.

This module imports neither gevent nor eventlet. A program that makes calls from a greenlet has already imported one of
these frameworks. This file must not import the native module, because the native module imports this file.
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

from zklock._errors import Deadlock, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable

_IN_HUB = (
    "the hub cannot wait, because it runs the greenlets for which the call waits: spawn a greenlet for this call; "
    "to release a lock, release_nowait() does not wait"
)
_NO_HUB = (
    "this greenlet cannot wait for a lock, since no hub of gevent or eventlet runs in its thread: the wait would stop "
    "all greenlets of the thread, and one of them may hold the lock; spawn it with gevent or eventlet, "
    "use zklock.aio with asyncio, acquire with timeout=0, or acquire in a thread"
)


_LONGEST_WAIT = 86400.0
"""The longest wait in a hub, in seconds. The timers of the hubs fail with longer times."""


class WakeQueue(Protocol):
    """A queue of keys. Each key identifies a greenlet that another thread has woken."""

    def fileno(self) -> int:
        """Return a descriptor that is readable while the queue contains a key."""
        ...

    def take(self) -> list[int]:
        """Remove all keys from the queue, and return the keys."""
        ...


class HubWaits(ABC):
    """The waiting greenlets of one hub. Only the hub's thread may use this object.

    Ctrl-C may interrupt the methods between any two instructions. The native module therefore removes each key from
    ``waiting``, and this class asks the hub whether it watches the descriptor.
    """

    def __init__(self, hub: Any, queue: WakeQueue) -> None:
        self.hub = hub
        self.queue = queue
        self._process = os.getpid()
        self.waiting: dict[int, Any] = {}

    def is_forked(self) -> bool:
        """Return whether this process is a forked child and the object belongs to its parent."""
        return self._process != os.getpid()

    def wait(self, key: int, seconds: float | None) -> None:
        """Let other greenlets run until the queue contains ``key``, or until ``seconds`` have passed. The wait may also
        end earlier, and ends after ``_LONGEST_WAIT``. The caller checks the deadline again, and removes the key from
        ``waiting``.
        """
        if not self._is_watched():
            self._watch()
        if seconds is not None:
            seconds = min(seconds, _LONGEST_WAIT)
        self._switch_to_hub(key, seconds)

    def unwatch_if_idle(self) -> None:
        """Stop watching the descriptor if no greenlet waits."""
        if not self.waiting and self._is_watched():
            self._unwatch()

    def _wake(self, *_: object) -> None:
        """Resume the greenlets whose keys are in the queue. The hub calls this method."""
        try:
            # A forked child process must not read from the queue, because parent and child share the descriptor.
            for key in list(self.waiting) if self.is_forked() else self.queue.take():
                if key in self.waiting:
                    self._resume(key)
        except BaseException:
            # Ctrl-C interrupted this method, and the keys are no longer in the queue.
            for key in self.waiting:
                self._resume(key)
            raise

    @abstractmethod
    def _is_watched(self) -> bool:
        """Return whether the hub watches the descriptor of the queue."""

    @abstractmethod
    def _watch(self) -> None:
        """Make the hub call `_wake()` when the descriptor is readable."""

    @abstractmethod
    def _unwatch(self) -> None: ...

    @abstractmethod
    def _switch_to_hub(self, key: int, seconds: float | None) -> None:
        """Add the calling greenlet to `waiting`, and let other greenlets run until `_resume()`."""

    @abstractmethod
    def _resume(self, key: int) -> None:
        """Make the hub resume a waiting greenlet soon."""


class _GeventWaits(HubWaits):
    _watcher: Any = None

    def _is_watched(self) -> bool:
        return self._watcher is not None and self._watcher.active

    def _watch(self) -> None:
        self._watcher = self.hub.loop.io(self.queue.fileno(), 1)
        # If the function of a watcher raises an exception, gevent stops the watcher. Ctrl-C cannot interrupt
        # `run_callback()`, which is not written in Python.
        self._watcher.start(self.hub.loop.run_callback, self._wake)

    def _unwatch(self) -> None:
        self._watcher.close()

    def _switch_to_hub(self, key: int, seconds: float | None) -> None:
        waiter = self.waiting[key] = sys.modules["gevent.hub"].Waiter(self.hub)
        with sys.modules["gevent.timeout"].Timeout(seconds, False):
            waiter.get()

    def _resume(self, key: int) -> None:
        self.hub.loop.run_callback(self.waiting[key].switch, None)


class _EventletWaits(HubWaits):
    def _is_watched(self) -> bool:
        return self._listener() is not None

    def _watch(self) -> None:
        self.hub.add(self.hub.READ, self.queue.fileno(), self._wake, self._throw, None)

    def _unwatch(self) -> None:
        self.hub.remove(self._listener())

    def _listener(self) -> Any:
        # If the program has closed the descriptor, a listener of the program may have the same number.
        listener = self.hub.listeners[self.hub.READ].get(self.queue.fileno())
        return listener if listener is not None and listener.cb == self._wake else None

    def _switch_to_hub(self, key: int, seconds: float | None) -> None:
        self.waiting[key] = sys.modules["greenlet"].getcurrent()
        with sys.modules["eventlet.timeout"].Timeout(seconds, False):
            self.hub.switch()

    def _resume(self, key: int) -> None:
        # The hub resumes each greenlet in a separate call. If a greenlet raises an exception, the hub still resumes the
        # other greenlets.
        self.hub.schedule_call_global(0, self._switch_if_waiting, key)

    def _switch_if_waiting(self, key: int) -> None:
        if key in self.waiting:
            self.waiting[key].switch()

    def _throw(self, error: BaseException) -> None:
        """Raise an error in all waiting greenlets, because the program has closed the descriptor."""
        for key in self.waiting:
            self.hub.schedule_call_global(0, self._throw_if_waiting, key, error)

    def _throw_if_waiting(self, key: int, error: BaseException) -> None:
        if key in self.waiting:
            self.waiting[key].throw(error)


_hub_waits: weakref.WeakValueDictionary[Any, HubWaits] = weakref.WeakValueDictionary()


def _waits_of(kind: type[HubWaits], hub: Any, make_queue: Callable[[], WakeQueue]) -> HubWaits:
    waits = _hub_waits.get(hub)
    if waits is None or waits.is_forked():
        waits = _hub_waits[hub] = kind(hub, make_queue())
    return waits


def hub_waits(current: Any, target: str) -> Callable[[Callable[[], WakeQueue]], HubWaits] | None:
    """Return a function that returns the ``HubWaits`` of the calling greenlet's hub. If the hub has no ``HubWaits``
    yet, the returned function makes one.

    Return None if the call is allowed to block the whole thread.

    ``current`` is the calling greenlet. ``target`` is what the call waits for: a ``"server"``, other ``"contenders"``
    or the ``"close"`` of a client. If the calling greenlet is a hub, only the target ``"close"`` is allowed, and the
    function raises Deadlock for every other target. If a greenlet without a hub tries to wait for other contenders, the
    function raises Unsupported.
    """
    gevent_hub, eventlet_hub = _gevent_hub(), _eventlet_hub()
    if gevent_hub is not None and eventlet_hub is not None:
        # The program uses both frameworks. The hub that runs a greenlet is an ancestor of the greenlet.
        if _is_below(current, eventlet_hub.greenlet):
            gevent_hub = None
        else:
            eventlet_hub = None
    if gevent_hub is not None:
        return _waits_unless_in_hub(_GeventWaits, gevent_hub, current is gevent_hub, target)
    if eventlet_hub is not None:
        return _waits_unless_in_hub(_EventletWaits, eventlet_hub, current is eventlet_hub.greenlet, target)
    if target == "contenders" and not _is_alone(current):
        raise Unsupported(_NO_HUB)
    return None


def _waits_unless_in_hub(
    kind: type[HubWaits], hub: Any, is_in_hub: bool, target: str
) -> Callable[[Callable[[], WakeQueue]], HubWaits] | None:
    if not is_in_hub:
        return functools.partial(_waits_of, kind, hub)
    # If a signal handler runs in the hub and closes a client, the close must block the thread.
    if target == "close":
        return None
    raise Deadlock(_IN_HUB)


def _gevent_hub() -> Any:
    module = sys.modules.get("gevent._hub_local")
    return None if module is None else module.get_hub_if_exists()


def _eventlet_hub() -> Any:
    hubs = sys.modules.get("eventlet.hubs")
    return None if hubs is None else getattr(getattr(hubs, "_threadlocal", None), "hub", None)


def _is_below(greenlet: Any, ancestor: Any) -> bool:
    while greenlet is not None and greenlet is not ancestor:
        greenlet = greenlet.parent
    return greenlet is ancestor


def _is_alone(current: Any) -> bool:
    """Return whether ``current`` is the main greenlet of its thread, or the only greenlet of a thread in gevent's
    thread pool.
    """
    worker = getattr(sys.modules.get("gevent.threadpool"), "_WorkerGreenlet", None)
    return current.parent is None or (worker is not None and isinstance(current, worker))


def greenlet_name(greenlet: Any) -> str:
    """Return a greenlet's name for use in messages."""
    name = getattr(greenlet, "name", None)
    return f"greenlet {name!r}" if isinstance(name, str) else f"greenlet {greenlet!r}"


def call_at_end(greenlet: Any, call: Callable[[], object]) -> None:
    """Call ``call`` when the greenlet ends. The function does nothing if neither gevent nor eventlet has spawned the
    greenlet.
    """
    link = getattr(greenlet, "rawlink", None) or getattr(greenlet, "link", None)
    if link is not None:
        link(lambda *_: call())
