"""What a client's ``metrics()`` gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zklock._states import ClientState


@dataclass(frozen=True)
class Histogram:
    """How long things took. Immutable and comparable."""

    count: int
    """How often something was measured."""
    sum: float
    """How many seconds it took in all."""
    buckets: tuple[tuple[float, int], ...]
    """Bounds in seconds, and how often it took at most so long. As Prometheus has it, each count includes those before
    it, and the last bound is infinity. The bounds are 50 microseconds and twice as much from one to the next, up to
    209.7152 s."""


@dataclass(frozen=True)
class Metrics:
    """What a client has done since it was made, and how it stands, at one moment. Counters only grow. Immutable and
    comparable.

    A multi-lock that is joined in one transaction is one acquire, and a hold for each of its locks; one that is taken
    step by step is an acquire for each step, in the client of that step. Calls that are refused for their arguments are
    not counted.
    """

    acquires_ok: int
    """Acquires that got their lock or leases, by a hold of their own."""
    acquires_timeout: int
    """Acquires that timed out: others were ahead until their time was over, or at their one look."""
    acquires_canceled: int
    """Acquires that the program itself ended: Canceled, or ClientClosed. An interrupted one (Ctrl-C) is among them."""
    acquires_connection: int
    """Acquires that ended with ConnectionLost: no server answered in time."""
    acquires_failed: int
    """Acquires that failed in another way."""
    reentries: int
    """Times that a hold was entered once more by its owner."""
    waits: Histogram
    """How long acquires that got what they wanted took, from the call to the grant."""
    holds: Histogram
    """How long holds lasted that are over, from the grant to the release or the loss."""
    handovers: int
    """Acquires that got their lock after they had waited for another contender, those that it was passed on to in this
    process among them."""
    local_passes: int
    """Times that a lock was passed on to another thread of this process, without a server."""
    releases: int
    """Holds that the program gave back, or that ended with their lock or client."""
    losses_session: int
    """Holds that were lost since their session ended."""
    losses_deleted: int
    """Holds that were lost since somebody else deleted their node."""
    suspensions: int
    """Times that a hold became SUSPENDED."""
    uncertainties: int
    """Times that a hold became UNCERTAIN."""
    deletes_refused: int
    """Times that a server refused to delete a node of ours. It is asked again until it does."""
    connection_attempts: int
    """Attempts to connect to a server."""
    connections: int
    """Connections that came to stand: the server took the session and the credentials."""
    reconnects: int
    """Those of them that took the place of one before."""
    connections_lost: int
    """Connections that stood and were lost."""
    sessions: int
    """Sessions that were begun."""
    sessions_lost: int
    """Sessions that ended, and were not closed: what was held was lost with them."""
    requests: int
    """Requests that were sent to servers; neither pings nor handshakes."""
    answers: int
    """Requests that were answered."""
    pings: int
    """Pings that were sent to servers."""
    watch_events: int
    """Changes of watched nodes that servers told of."""
    bytes_sent: int
    """Bytes that were sent to servers, or are about to be."""
    bytes_received: int
    """Bytes that came from servers."""
    round_trips: Histogram
    """How long servers took to answer requests, from the sending to the moment at which the answer was read."""
    held: int
    """Holds that there are now, safe or not; those that were lost are not among them."""
    waiting: int
    """Acquires that wait now."""
    leaving: int
    """Contenders whose nodes are to go, and no server has confirmed it yet."""
    watches: int
    """Watches that a server is believed to keep for the session."""
    session_timeout: float
    """The session timeout in force, in seconds."""
    state: ClientState
    """How the session stands."""


# Programs see these as zklock.Metrics and so on.
for _class in (Histogram, Metrics):
    _class.__module__ = "zklock"
del _class
