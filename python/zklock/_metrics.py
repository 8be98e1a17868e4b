"""The classes of the metrics that ``Client.metrics()`` returns. This file must not import the native module, because
the native module imports this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zklock._states import ClientState


@dataclass(frozen=True)
class Histogram:
    """A distribution of durations. Histograms are immutable and comparable."""

    count: int
    """The number of durations."""
    sum: float
    """The sum of all durations, in seconds."""
    buckets: tuple[tuple[float, int], ...]
    """Each bucket is a pair: an upper bound in seconds, and the number of durations up to this bound. As in Prometheus,
    a bucket also counts the durations of all smaller buckets. The first bound is 50 microseconds. Each later bound is
    twice the previous bound, and the last bound is infinity. The largest finite bound is 209.7152 s.
    """


@dataclass(frozen=True)
class Metrics:
    """The activity of a client since the program made the client, and the state of the client at one moment. Counters
    never decrease. Metrics objects are immutable and comparable.

    If a multi-lock acquires its member locks in one transaction, the metrics count one acquire call, and one hold for
    each member lock. If a multi-lock acquires its member locks in several steps, each step counts as one acquire call
    for the client that performs the step. The metrics do not count calls with invalid arguments.
    """

    acquires_ok: int
    """Acquire calls that succeeded and began a new hold."""
    acquires_timeout: int
    """Acquire calls that timed out because other participants were ahead in the queue. This number includes calls with
    a timeout of zero.
    """
    acquires_canceled: int
    """Acquire calls that raised Canceled or ClientClosed, or that Ctrl-C interrupted."""
    acquires_connection: int
    """The number of acquire calls that raised ConnectionLost, because no server answered within the timeout."""
    acquires_failed: int
    """Acquire calls that failed for another reason."""
    reentries: int
    """Acquire calls by an owner that already held the lock."""
    waits: Histogram
    """The durations of successful acquire calls. A duration begins with the call and ends when the lock is granted."""
    holds: Histogram
    """The durations of past holds. A duration begins when the lock is granted, and ends with the release or the loss.
    """
    handovers: int
    """Acquire calls that waited for another participant and then succeeded. This number includes local hand-overs."""
    local_passes: int
    """Local hand-overs. A local hand-over passes a lock to another thread of this process without a request to a
    server.
    """
    releases: int
    """Holds that ended without a loss. Such a hold ends when the program releases the lock, closes the client, or no
    longer uses the lock object.
    """
    losses_session: int
    """Holds that were lost because their session ended."""
    losses_deleted: int
    """Holds that were lost because another client deleted their node."""
    suspensions: int
    """The number of times that a hold became SUSPENDED."""
    uncertainties: int
    """The number of times that a hold became UNCERTAIN."""
    deletes_refused: int
    """The number of times that a server refused to delete a node of this client. The client repeats the request until
    the server deletes the node.
    """
    connection_attempts: int
    """Attempts to connect to a server."""
    connections: int
    """Established connections. A connection is established when the server has accepted the session and the
    credentials.
    """
    reconnects: int
    """Established connections that replaced an earlier connection."""
    connections_lost: int
    """Established connections that were lost."""
    sessions: int
    """Sessions that began."""
    sessions_lost: int
    """Sessions that ended before the client was closed. When a client loses its session, it also loses all holds of the
    session.
    """
    requests: int
    """Requests that the client sent to servers, except pings and handshakes."""
    answers: int
    """Requests that a server has answered."""
    pings: int
    """Pings that the client sent to servers."""
    watch_events: int
    """Notifications from a server that a watched node has changed."""
    bytes_sent: int
    """Bytes that the client has sent or queued for sending to servers."""
    bytes_received: int
    """Bytes that the client has received from servers."""
    round_trips: Histogram
    """The durations of requests. A duration begins when the client sends the request, and ends when the client reads
    the answer.
    """
    held: int
    """The current number of holds that are not lost. This number includes UNCERTAIN holds."""
    waiting: int
    """The current number of acquire calls that are waiting."""
    leaving: int
    """The current number of participants whose nodes the client is removing. No server has confirmed the removal of
    these nodes yet.
    """
    watches: int
    """The number of watches that the session currently has on the servers, as far as the client knows."""
    session_timeout: float
    """The session timeout that is in effect, in seconds."""
    state: ClientState
    """The state of the session."""


def metrics_of(fields: dict[str, Any]) -> Metrics:
    """Return a Metrics object with these fields."""
    return Metrics(**fields)


# Give the classes their public names, for instance zklock.Metrics.
for _class in (Histogram, Metrics):
    _class.__module__ = "zklock"
del _class
