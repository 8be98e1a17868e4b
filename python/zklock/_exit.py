"""Closes all clients at the end of a child process that ends with ``os._exit()``.

This file must not import the native module at import time, because the native module imports this file.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from typing import NoReturn

_is_forked = False


def _on_fork() -> None:
    global _is_forked
    _is_forked = True


os.register_at_fork(after_in_child=_on_fork)


def register_child() -> None:
    """Close all clients when this process ends, if the process is a forked child or a child of ``multiprocessing`` or
    billiard. A process calls this function when it makes its first client.

    Forked children often end with ``os._exit()``, which calls no ``atexit`` handlers: the children of
    ``multiprocessing`` and billiard do, if their start method is "fork" or "forkserver".
    """
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing.util import Finalize

        # multiprocessing calls the finalizers in descending order of their priorities. The program's finalizers may
        # still use a client.
        Finalize(None, _close_clients, exitpriority=-100)
    if _is_forked or _is_child_of_billiard():
        _close_before_exit()


def _is_child_of_billiard() -> bool:
    # The child may have imported this package only after the fork.
    process = sys.modules.get("billiard.process")
    return process is not None and getattr(process.current_process(), "_parent_pid", None) is not None


def _close_before_exit() -> None:
    """Replace ``os._exit()`` of this process by a function that closes all clients first."""
    if hasattr(os._exit, "__wrapped__"):
        return
    exit_now = os._exit

    @functools.wraps(exit_now)
    def close_and_exit(status: int) -> NoReturn:
        try:
            _close_all()
        finally:
            exit_now(status)

    os._exit = close_and_exit


def _close_clients() -> None:
    if threading.main_thread().is_alive():
        # This thread must not wait for other threads: the workers of an idle ThreadPoolExecutor end only after all
        # finalizers have returned. The interpreter then waits for all threads except daemon threads.
        threading.Thread(target=_close_after_threads, name="zklock-exit").start()
    else:
        # Since Python 3.13, the finalizers run after the interpreter has waited for these threads.
        _close_all()


def _close_after_threads() -> None:
    """Close all clients after all threads except daemon threads have ended, as with ``atexit``."""
    threading.main_thread().join()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    _close_all()


def _close_all() -> None:
    from zklock import _zklock

    _zklock._close_all()
