"""The events that callbacks receive.

At run time, this file must not import the native module, because the native module imports this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Union

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from zklock._states import ClientState, LockState

    LockT_co = TypeVar("LockT_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    LockT_co = TypeVar("LockT_co", covariant=True)


@dataclass(frozen=True)
class ClientEvent:
    """A change in the state of a session. ClientEvents are immutable and comparable."""

    state: ClientState
    """The state of the session after the change."""
    previous: ClientState
    """The state before the change."""


@dataclass(frozen=True)
class LockEvent(Generic[LockT_co]):
    """A change in the state of a hold or leases. For a multi-lock, the client reports separate events for each
    member lock.

    LockEvents are immutable and comparable. In an annotation, ``LockEvent`` means an event of any lock, so type
    checkers do not check the uses of ``lock``. ``LockEvent[zklock.Lock]`` is the type of the events of a
    ``zklock.Client``, and ``LockEvent[zklock.aio.Lock]`` is the type of the events of a ``zklock.aio.Client``.
    """

    lock: LockT_co | None
    """The lock: a ``zklock.Lock``, or a ``zklock.aio.Lock`` if the client belongs to ``zklock.aio``. The field is None
    for leases, and for a lock object that was garbage-collected.
    """
    path: str
    """The path of the lock or semaphore."""
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
