"""What a client's ``on_event`` is called with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zklock._states import ClientState, LockState
    from zklock._zklock import Lock


@dataclass(frozen=True)
class Event:
    """Something stands differently: a ClientEvent or a LockEvent says what. Immutable and comparable."""


@dataclass(frozen=True)
class ClientEvent(Event):
    """A client's session stands differently."""

    state: ClientState
    """How it stands now."""
    previous: ClientState
    """How it stood before."""


@dataclass(frozen=True)
class LockEvent(Event):
    """A hold of a lock, or of leases, stands differently. What is held by a multi-lock is told of each of its locks."""

    lock: Lock | None
    """The lock; None of leases, and where nobody has the lock any more."""
    path: str
    """The path of the lock, or of the leases' semaphore."""
    state: LockState
    """How the hold stands now."""
    previous: LockState
    """How it stood before."""
    token: int
    """Its fencing token, which tells one hold from the next, but for those that were passed on in this process."""
    passes: int = 0
    """How often the lock had been passed on in this process when the hold began: its ``fencing_pass``."""


# Programs see these as zklock.LockEvent and so on.
for _class in (Event, ClientEvent, LockEvent):
    _class.__module__ = "zklock"
del _class
