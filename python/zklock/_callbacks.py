"""The threads that call a program's ``set_revocable()``, ``on_event()`` and ``on_lost()`` callbacks, and the threads
that call the ``auth`` callables. While ``zklock-events`` calls a callback of one client, ``zklock-losses`` calls the
callbacks of a client that has a loss in its queue.

When the interpreter ends, Python ends all daemon threads. If a daemon thread ends while native code is calling a
callback on the thread, the process crashes. Python code therefore starts the threads and calls the callbacks. An
exception of a callback must not end the thread.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from zklock._errors import Exhausted
from zklock._threads import start_thread
from zklock._zklock import _next_call, _report_unraisable

if TYPE_CHECKING:
    from collections.abc import Callable


class AuthCall(Protocol):
    """One call to a callable in ``auth``. After ``begin()``, the calling thread must do only the work of this call."""

    def begin(self) -> Callable[[], object]: ...
    def finish(self, result: object) -> None: ...
    def fail(self, error: BaseException) -> None: ...


def start() -> None:
    """Start the threads that call the callbacks. Raises Exhausted if the process cannot start a thread."""
    try:
        start_thread(partial(_run, losses=False), "zklock-events")
        start_thread(partial(_run, losses=True), "zklock-losses")
    except RuntimeError as error:
        raise Exhausted(f"the thread that calls the callbacks cannot be started: {error}") from error


def _run(*, losses: bool) -> None:
    while _call_next(losses=losses):
        pass


def _call_next(*, losses: bool) -> bool:
    """Call the next callback. While the function waits for the next callback, it has no reference to the previous
    callback.
    """
    call = _next_call(losses=losses)
    if call is None:
        return False
    _call(*call)
    return True


def _call(callback: Callable[[Any], object], argument: object) -> None:
    try:
        callback(argument)
    except BaseException as error:
        _report_unraisable(error, callback)


def start_auth_call(call: AuthCall) -> None:
    """Start a new thread that makes the call. The call needs its own thread, because the callable may block."""
    start_thread(partial(_run_auth_call, call), "zklock-auth")


def _run_auth_call(call: AuthCall) -> None:
    try:
        call.finish(call.begin()())
    except BaseException as error:
        call.fail(error)
