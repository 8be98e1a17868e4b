"""What zklock logs goes to ``logging``: to ``zklock.session``, ``zklock.lock`` and ``zklock.request``.

The core writes no more than what somebody listens to. Whether anybody does is looked at when a client is made and
whenever something is acquired, since ``logging`` tells nobody when it is set up anew.
"""

from __future__ import annotations

import logging
from typing import Any

_base = logging.getLogger("zklock")
_loggers = (_base, *(logging.getLogger(f"zklock.{name}") for name in ("session", "lock", "request", "log")))
# Lest a program that has set up nothing sees warnings on its standard error.
_nobody = logging.NullHandler()
_base.addHandler(_nobody)


def level() -> int | None:
    """The least level that anybody listens to; None where nobody does."""
    for logger in (logging.root, *_loggers):
        for handler in logger.handlers:
            if handler is not _nobody:
                return min([logger.getEffectiveLevel() for logger in _loggers])
    return None


def deliver(line: tuple[int, float, str, str, dict[str, Any]]) -> None:
    """Logs a line of the core's, as of the time at which that wrote it. Called on the thread of callbacks."""
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
