"""The events that callbacks receive.

At run time, this file must not import the native module, because the native module imports this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

if TYPE_CHECKING:
    from zklock._states import ClientState, LockState
    from zklock._zklock import Lock


@dataclass(frozen=True)
class ClientEvent:
    """A change in the state of a session. ClientEvents are immutable and comparable."""

    state: ClientState
    """The state of the session after the change."""
    previous: ClientState
    """The state before the change."""


@dataclass(frozen=True)
class LockEvent:
    """A change in the state of a hold or of leases. For a multi-lock, the client reports separate events for each
    member lock.

    LockEvents are immutable and comparable.
    """

    lock: Lock | None
    """The lock. The field is None for leases, and for a lock object that was garbage-collected."""
    path: str
    """The path of the lock or of the semaphore."""
    state: LockState
    """The state of the hold after the change."""
    previous: LockState
    """The state before the change."""
    token: int
    """The fencing token of the hold. Two holds have the same token only if local hand-overs passed the lock from one
    hold to the other.
    """
    fencing_pass: int = 0
    """The number of local hand-overs under the hold's fencing token before the hold began."""


Event = Union[ClientEvent, LockEvent]
"""The argument of an event callback: a ClientEvent or a LockEvent."""

# Give the classes their public names, for instance zklock.LockEvent.
for _class in (ClientEvent, LockEvent):
    _class.__module__ = "zklock"
del _class
