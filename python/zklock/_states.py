"""How clients and locks stand, and what is waited for. The numbers are those of the C interface."""

from enum import IntEnum


class ClientState(IntEnum):
    """How a client's session stands."""

    CONNECTING = 0
    """No session yet."""
    CONNECTED = 1
    """The session has a connection."""
    SUSPENDED = 2
    """The session's connection is gone; another one is being sought."""
    LOST = 3
    """The session ended, and the next one has not begun."""
    CLOSED = 4
    """The client was closed."""


class LockState(IntEnum):
    """How a hold stands."""

    FREE = 0
    """Not held."""
    HELD = 1
    """Held, and safe."""
    SUSPENDED = 2
    """Safe while the lease runs, but the connection is gone or the hold is not confirmed since it came back."""
    UNCERTAIN = 3
    """The lease is over: it may be lost."""
    LOST = 4
    """Lost for good."""


class WaitsFor(IntEnum):
    """What an acquire waits for."""

    CONNECTION = 0
    """A connection to a server. Its place in the queue is kept as long as the session lives."""
    SERVER = 1
    """An answer of the server."""
    NODE = 2
    """The node ahead, and those before that one."""
    LEASES = 3
    """Leases that are out."""
    COUNT = 4
    """The count, to say that there are enough leases at all."""
    OWN_HOLD = 5
    """A hold of its own thread, whose lease is over, to be safe again or lost."""
