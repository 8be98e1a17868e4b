"""The states of clients and holds, the reasons why an acquire call waits, and the results of runs. The value of each
member is the member's name in lower case. This file must not import the native module, because the native module
imports this file.
"""

from enum import Enum


class ClientState(Enum):
    """The state of the session of a client. A member of ``ClientState`` never equals a member of ``LockState``."""

    CONNECTING = "connecting"
    """The client has no session yet."""
    CONNECTED = "connected"
    """The session has a connection."""
    SUSPENDED = "suspended"
    """The session has lost its connection, and the client is trying to reconnect."""
    LOST = "lost"
    """The session has ended, and the next session has not begun."""
    CLOSED = "closed"
    """The client was closed."""


class LockState(Enum):
    """The state of a hold. A member of ``LockState`` never equals a member of ``ClientState``."""

    FREE = "free"
    """The lock is not held."""
    HELD = "held"
    """The lock is held, and the hold is safe."""
    SUSPENDED = "suspended"
    """The hold is safe until the session lease ends. Either the client has no connection, or no server has confirmed
    the hold since the client reconnected.
    """
    UNCERTAIN = "uncertain"
    """The session lease is over, and the lock may be lost. An UNCERTAIN hold becomes HELD or LOST later."""
    LOST = "lost"
    """The hold is lost, and can never become safe again."""


class WaitsFor(Enum):
    """The reason why an acquire call waits."""

    CONNECTION = "connection"
    """The call waits for a connection to a server. The call's node stays in the queue until the session ends."""
    SERVER = "server"
    """The call waits for an answer from the server."""
    NODE = "node"
    """The call waits for participants that are ahead in the queue."""
    LEASES = "leases"
    """The call waits until other holders release leases."""
    COUNT = "count"
    """The call waits until the shared count allows enough leases."""
    OWN_HOLD = "own_hold"
    """The owner already has an UNCERTAIN hold of the lock. The call waits until this hold is safe again or lost."""


class RunResult(Enum):
    """How the run of a job ended."""

    RUNNING = "running"
    """The run has not ended, or it was interrupted: its process died or lost the lock."""
    SUCCEEDED = "succeeded"
    """The job succeeded."""
    FAILED = "failed"
    """The job failed."""


# Give the classes their public names, for instance zklock.LockState.
for _class in (ClientState, LockState, WaitsFor, RunResult):
    _class.__module__ = "zklock"
del _class
