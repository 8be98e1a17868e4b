"""What a client reports about a queue: the participants of all processes, and the waiting calls of this process.

At run time, this file must not import the native module, because the native module imports this file.
"""

from dataclasses import dataclass
from typing import Optional

from zklock._states import WaitsFor


@dataclass(frozen=True, repr=False)
class Participant:
    """A participant of a lock: the node of a holder or a waiter in the lock's queue. Participants are immutable,
    comparable and hashable.
    """

    node_path: str
    """The path of the node, without the client's chroot."""
    holds: bool
    """Whether this participant holds the lock. The value is False for a waiter."""
    session_id: int
    """The id of the session that owns the node."""
    czxid: int
    """The zxid of the transaction that created the node. For a holder, the czxid is the fencing token."""
    data: bytes
    """The data of the node. By default, the data is the host address of the participant."""

    def __repr__(self) -> str:
        word = "holds" if self.holds else "waits"
        return f"<zklock.Participant {self.node_path!r} {word} session={self.session_id:#x}>"


@dataclass(frozen=True, repr=False)
class Waiting:
    """The description of a call that waits for a lock or for leases; see ``Lock.waiting()``. Waitings are immutable,
    comparable and hashable.
    """

    waits_for: WaitsFor
    """The reason why the call waits, as a WaitsFor."""
    node_path: Optional[str]
    """The path of the node that the call has created, or None if the call has no node. ``participants()`` returns the
    same path for the node. If the call has created several nodes, the field is the path of the first node that has to
    wait.
    """
    ahead: Optional[str]
    """The path of the node for which the call waits, or None if the path is not known. If the call waits in a queue,
    this node is the nearest node ahead. If the call waits for leases, this node is the directory of the leases. If the
    call waits for a shared count, this node contains the count. Without a connection, the field is the last known path.
    """
    session_id: int
    """The id of the session that owns the node ahead, or 0 if the id is not known."""
    count: int
    """The number of nodes ahead in the queue. If ``waits_for`` is LEASES, ``count`` is the number of leases that other
    holders must release first. If ``waits_for`` is COUNT, the shared count must first increase by ``count``. The client
    reports the last known number, or zero if no number is known.
    """
    waited: float
    """The number of seconds for which the call has waited."""
    left: Optional[float]
    """The number of seconds until the call times out, or None if the call has no time limit."""

    def __repr__(self) -> str:
        ahead = "" if self.ahead is None else f" {self.ahead!r}"
        return f"<zklock.Waiting for {self.waits_for.name}{ahead} since {self.waited:.3f} s>"


# Give the classes their public names, for instance zklock.Participant.
for _class in (Participant, Waiting):
    _class.__module__ = "zklock"
del _class
