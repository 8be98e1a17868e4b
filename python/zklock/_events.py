"""The events that callbacks receive.

At run time, this file must not import the native module, because the native module imports this file.
"""

from dataclasses import InitVar, dataclass
from typing import TYPE_CHECKING, Any, Generic, Optional, Union

from zklock._states import ClientState, LockState

if TYPE_CHECKING:
    from typing_extensions import TypeVar

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

    if TYPE_CHECKING:
        lock: LockT_co | None
        """The lock: a ``zklock.Lock``, or a ``zklock.aio.Lock`` if the client belongs to ``zklock.aio``. The attribute
        is None for leases, for a lock object that was garbage-collected, and in a pickled event. It is no field of the
        dataclass: ``dataclasses.asdict()``, comparisons and ``repr()`` leave it out.
        """
    else:
        lock: InitVar[Optional[Any]]
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

    if not TYPE_CHECKING:

        def __post_init__(self, lock: Any) -> None:
            object.__setattr__(self, "lock", lock)

        def __getstate__(self) -> dict[str, Any]:
            return {**self.__dict__, "lock": None}


Event = Union[ClientEvent, LockEvent]
"""The argument of an event callback: a ClientEvent or a LockEvent."""

# Give the classes their public names, for instance zklock.LockEvent.
for _class in (ClientEvent, LockEvent):
    _class.__module__ = "zklock"
del _class
