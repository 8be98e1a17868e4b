"""Closes all clients at the end of a child process of ``multiprocessing``.

This file must not import the native module at import time, because the native module imports this file.
"""

from __future__ import annotations

import sys
import threading


def register_child() -> None:
    """Close all clients when this process ends, if the process is a child of ``multiprocessing``. A process calls this
    function when it makes its first client.

    The children of the start methods "fork" and "forkserver" end with ``os._exit()``, which calls no ``atexit``
    handlers.
    """
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing.util import Finalize

        # multiprocessing calls the finalizers in descending order of their priorities. The program's finalizers may
        # still use a client.
        Finalize(None, _close_clients, exitpriority=-100)


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
