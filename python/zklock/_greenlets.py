"""How a greenlet of gevent or eventlet waits for a descriptor while the other greenlets of its thread run.

Nothing here imports a framework: whoever calls from a greenlet has imported one.
"""

from __future__ import annotations

import _thread
import sys
import threading
import types
from typing import TYPE_CHECKING, Any

from zklock._errors import Deadlock, Error

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


def hub_wait(current: Any, awaited: str) -> Callable[[int], object] | None:
    """What waits until a descriptor is readable, while other greenlets run; None if the call may block its thread.

    ``current`` is the calling greenlet. ``awaited`` is what the call waits for: a ``"server"``, other ``"contenders"``
    or the ``"end"`` of a client. Raises Deadlock in a hub, which may only wait for the end of a client. Raises Error in
    a greenlet without a hub that waits for other contenders.
    """
    gevent_hub, eventlet_hub = _gevent_hub(), _eventlet_hub()
    if gevent_hub is not None and eventlet_hub is not None:
        # The greenlets of a hub are below it.
        if _is_below(current, eventlet_hub.greenlet):
            gevent_hub = None
        else:
            eventlet_hub = None
    if gevent_hub is not None:
        return _in_hub(awaited) if current is gevent_hub else _wait_with_gevent(gevent_hub)
    if eventlet_hub is not None:
        return _in_hub(awaited) if current is eventlet_hub.greenlet else _wait_with_eventlet
    if awaited == "contenders" and not _is_alone(current):
        error = Error(_NO_HUB)
        error.status = -18  # ZKL_E_UNSUPPORTED
        raise error
    return None


def _gevent_hub() -> Any:
    module = sys.modules.get("gevent._hub_local")
    return None if module is None else module.get_hub_if_exists()


def _wait_with_gevent(hub: Any) -> Callable[[int], object]:
    def wait(fd: int) -> None:
        watcher = hub.loop.io(fd, 1)
        try:
            hub.wait(watcher)
        finally:
            watcher.close()

    return wait


def _eventlet_hub() -> Any:
    hubs = sys.modules.get("eventlet.hubs")
    return None if hubs is None else getattr(getattr(hubs, "_threadlocal", None), "hub", None)


def _wait_with_eventlet(fd: int) -> None:
    sys.modules["eventlet.hubs"].trampoline(fd, read=True)


def _in_hub(awaited: str) -> Callable[[int], object] | None:
    """A handler of signals may run in the hub, and closes its client."""
    if awaited != "end":
        raise Deadlock(_IN_HUB)
    return None


def _is_below(greenlet: Any, ancestor: Any) -> bool:
    while greenlet is not None and greenlet is not ancestor:
        greenlet = greenlet.parent
    return greenlet is ancestor


def _is_alone(current: Any) -> bool:
    """Whether it is the one greenlet that runs in its thread: the main one, or that of a thread in gevent's pool."""
    worker = getattr(sys.modules.get("gevent.threadpool"), "_WorkerGreenlet", None)
    return current.parent is None or (worker is not None and isinstance(current, worker))


def start_thread(target: Callable[[], object], name: str) -> None:
    """Starts a daemon thread of the system, also if gevent or eventlet has put greenlets in the place of threads."""
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
