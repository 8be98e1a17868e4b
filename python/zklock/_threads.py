"""Functions about the threads of the operating system, also for programs in which gevent or eventlet replaces them.

This file must not import the native module, because the native module imports this file.
"""

from __future__ import annotations

import _thread
import sys
import threading
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


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


def is_main_thread() -> bool:
    """Return whether the calling thread is the main thread of the interpreter."""
    return threading.get_ident() == threading.main_thread().ident


def thread_name() -> str | None:
    """Return the calling thread's name for use in messages, or None if native code started the thread. Whenever such a
    thread detaches from the interpreter, Python drops the thread-local storage of the thread.
    """
    thread = threading.current_thread()
    return None if type(thread).__name__ == "_DummyThread" else f"thread {thread.name!r}"
