"""Passes the core's log to the loggers ``zklock.session``, ``zklock.lock`` and ``zklock.request`` of ``logging``.

This file also logs the failed releases, and the failed closes of clients, at the end of blocks.

The core writes a log line only if a handler exists for the line's level. The library looks for handlers whenever a
program makes a client or acquires a lock, because ``logging`` does not report changes of its configuration.

This file must not import the native module, because the native module imports this file.
"""

from __future__ import annotations

import logging
from typing import Any

_base = logging.getLogger("zklock")
_loggers = (_base, *(logging.getLogger(f"zklock.{name}") for name in ("session", "lock", "request", "log")))
# Without this handler, a program that does not configure logging would print zklock's warnings to standard error.
_null_handler = logging.NullHandler()
_base.addHandler(_null_handler)


def effective_level() -> int | None:
    """Return the lowest level that has a handler, or None if there is no handler."""
    for logger in (logging.root, *_loggers):
        for handler in logger.handlers:
            if handler is not _null_handler:
                return min([logger.getEffectiveLevel() for logger in _loggers])
    return None


def emit(line: tuple[int, float, str, str, dict[str, Any]]) -> None:
    """Log a line of the core. The log record has the time at which the core wrote the line. The thread that calls
    callbacks also calls this function.
    """
    level, created, target, text, fields = line
    logger = logging.getLogger(target.replace("::", "."))
    if not logger.isEnabledFor(level):
        return
    record = logger.makeRecord(logger.name, level, "zklock", 0, text, (), None, extra={"zklock": fields})
    late = record.created - created
    record.created = created
    record.msecs = float(int(created * 1000) % 1000)
    record.relativeCreated -= late * 1000
    logger.handle(record)


def log_failed_end(is_unconfirmed: bool, doing: str, path: str | None, error: str) -> None:
    """Log a warning about the end of a block. ``doing`` is what the end of the block does, for example "releasing the
    lock". If ``is_unconfirmed`` is False, the end of the block failed when Python closed a generator. The calling
    thread calls the handlers. ``path`` is None for a multi-lock and for a client.
    """
    event = (
        "no server has confirmed the release yet"
        if is_unconfirmed
        else "the end of a block failed when a generator was closed"
    )
    fields = {"event": event, "error": error}
    if path is not None:
        fields["path"] = path
    logging.getLogger("zklock.lock").warning("%s: %s: %s", doing, event, error, extra={"zklock": fields})
