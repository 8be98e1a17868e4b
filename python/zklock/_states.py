"""How clients and locks stand. The numbers are those of the C interface."""

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
