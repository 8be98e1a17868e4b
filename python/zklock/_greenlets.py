"""Lets a greenlet of gevent or eventlet wait for a descriptor while the other greenlets of its thread run.

This module imports neither gevent nor eventlet. A program that makes calls from a greenlet has already imported one of
these frameworks. This file must not import the native module, because the native module imports this file.
"""

from __future__ import annotations

import _thread
import sys
import threading
import types
from typing import TYPE_CHECKING, Any

from zklock._errors import Deadlock, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable

_IN_HUB = (
    "the hub cannot wait, since it runs the greenlets that are waited for: spawn a greenlet for this call; "
    "to release a lock, release_nowait() does not wait"
)
_NO_HUB = (
    "this greenlet cannot wait for a lock, since no hub of gevent or eventlet runs in its thread: the wait would stop "
    "all greenlets of the thread, and one of them may hold the lock; spawn it with gevent or eventlet, "
    "use zklock.aio with asyncio, acquire with timeout=0, or acquire in a thread"
)


def wait_function(current: Any, target: str) -> Callable[[int, float | None], object] | None:
    """Return a function that lets other greenlets run until a descriptor is readable or a number of seconds has passed.

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
        return _check_allowed_in_hub(target) if current is gevent_hub else _wait_with_gevent(gevent_hub)
    if eventlet_hub is not None:
        return _check_allowed_in_hub(target) if current is eventlet_hub.greenlet else _wait_with_eventlet
    if target == "contenders" and not _is_alone(current):
        raise Unsupported(_NO_HUB)
    return None


def _gevent_hub() -> Any:
    module = sys.modules.get("gevent._hub_local")
    return None if module is None else module.get_hub_if_exists()


def _wait_with_gevent(hub: Any) -> Callable[[int, float | None], object]:
    def wait(fd: int, seconds: float | None) -> None:
        watcher = hub.loop.io(fd, 1)
        try:
            with sys.modules["gevent.timeout"].Timeout(seconds, False):
                hub.wait(watcher)
        finally:
            watcher.close()

    return wait


def _eventlet_hub() -> Any:
    hubs = sys.modules.get("eventlet.hubs")
    return None if hubs is None else getattr(getattr(hubs, "_threadlocal", None), "hub", None)


def _wait_with_eventlet(fd: int, seconds: float | None) -> None:
    with sys.modules["eventlet.timeout"].Timeout(seconds, False):
        sys.modules["eventlet.hubs"].trampoline(fd, read=True)


def _check_allowed_in_hub(target: str) -> Callable[[int, float | None], object] | None:
    """Raise Deadlock, unless the call closes a client. A call that closes a client may wait in the hub, because a
    signal handler may run in the hub and close a client.
    """
    if target != "close":
        raise Deadlock(_IN_HUB)
    return None


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


def start_thread(target: Callable[[], object], name: str) -> None:
    """Start a daemon thread of the operating system, even if gevent or eventlet has replaced threads with greenlets."""
    if isinstance(_thread.start_new_thread, types.BuiltinFunctionType):
        threading.Thread(target=target, name=name, daemon=True).start()
    else:
        _original_start()(target, ())


def _original_start() -> Callable[..., object]:
    monkey, patcher = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if monkey is not None and monkey.is_module_patched("_thread"):
        start: Callable[..., object] = monkey.get_original("_thread", "start_new_thread")
    elif patcher is not None:
        start = patcher.original("_thread").start_new_thread
    else:
        start = _thread.start_new_thread
    return start


def greenlet_name(greenlet: Any) -> str:
    """Return the name of a greenlet for messages."""
    name = getattr(greenlet, "name", None)
    return f"greenlet {name!r}" if isinstance(name, str) else f"greenlet {greenlet!r}"


def call_at_end(greenlet: Any, call: Callable[[], object]) -> None:
    """Call ``call`` when the greenlet ends. The function does nothing if neither gevent nor eventlet has spawned the
    greenlet.
    """
    link = getattr(greenlet, "rawlink", None) or getattr(greenlet, "link", None)
    if link is not None:
        link(lambda *_: call())
