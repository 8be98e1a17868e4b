"""The thread that calls what programs gave to ``set_revocable()`` and to a client's ``on_event``.

It is one of Python's: when the interpreter ends, Python ends daemon threads wherever they are, and one with native
frames below the program's callback would take the process down with it.
"""

from collections.abc import Callable
from typing import Any

from zklock._greenlets import start_thread
from zklock._zklock import _next_call, _report


def start() -> None:
    start_thread(_serve, "zklock-events")


def _serve() -> None:
    while _call_next():
        pass


def _call_next() -> bool:
    """Keeps nothing of a callback while it waits for the next one."""
    call = _next_call()
    if call is None:
        return False
    _call(*call)
    return True


def _call(callback: Callable[[Any], object], argument: object) -> None:
    try:
        callback(argument)
    except BaseException as error:
        _report(error, callback)
