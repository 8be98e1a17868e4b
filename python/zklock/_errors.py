"""What zklock raises. The native module finds the classes here by the names in the core's table of statuses."""


class Error(Exception):
    """Any failure of zklock. Its message names the lock, the value or the server that it is about."""

    status: int = -17
    """The number that C programs see, for instance -3 for ``ZKL_E_TIMEOUT``."""


class LockTimeout(Error, TimeoutError):
    """Time ran out before the lock was got."""

    status = -3


class Canceled(Error):
    """Another thread cancelled the wait."""

    status = -4


class NotOwner(Error):
    """The caller does not hold the lock."""

    status = -5


class LockLost(Error):
    """The lock was lost while it was held: its session ended or its node was deleted. Others may have held it since."""

    status = -6


class Deadlock(Error):
    """The caller would wait for itself."""

    status = -7


class ClientClosed(Error):
    """The client was closed."""

    status = -8


class ConnectionLost(Error, ConnectionError):
    """No ZooKeeper server answered in time."""

    status = -9


class AuthFailed(Error):
    """A server refused the credentials."""

    status = -10


class PermissionDenied(Error):
    """An access control list forbids the operation."""

    status = -11


class Forked(Error):
    """The client or lock belongs to the parent of this forked process. Make a client in the child."""

    status = -12


class Exhausted(Error):
    """A limit was reached: file descriptors, threads, or the sequence numbers of a path. The text says which."""

    status = -14


class ForeignContender(Error):
    """A contender of another family of locks is on this path."""

    status = -15


class ServerError(Error):
    """The ZooKeeper server answered with an error that has no class of its own."""

    status = -16


# Programs see these as zklock.LockTimeout and so on, in tracebacks too.
for _class in [value for value in vars().values() if isinstance(value, type)]:
    _class.__module__ = "zklock"
