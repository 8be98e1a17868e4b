"""The thread that calls what programs gave to ``set_revocable()``.

It is one of Python's: when the interpreter ends, Python ends daemon threads wherever they are, and one with native
frames below the program's callback would take the process down with it.
"""

import threading
from collections.abc import Callable

from zklock._zklock import _next_revocation, _report


def start() -> None:
    threading.Thread(target=_serve, name="zklock-revoked", daemon=True).start()


def _serve() -> None:
    while True:
        _call(*_next_revocation())


def _call(callback: Callable[[str], object], node_path: str) -> None:
    try:
        callback(node_path)
    except BaseException as error:
        _report(error, callback)
