"""Statuses and exceptions. The native module looks up these classes by the names in the core's status table.

This file must not import the native module, because the native module imports this file.
"""

from enum import IntEnum


class Status(IntEnum):
    """The result of a call. The C interface has the same names and numbers: ``ZKL_E_TIMEOUT`` is ``Status.TIMEOUT``."""

    OK = 0
    """Success."""
    INVALID = -1
    """An argument is invalid. The exceptions are InvalidArgument and InvalidType."""
    HANDLE = -2
    """The handle is stale, or belongs to another kind of object. Only C programs receive this status."""
    TIMEOUT = -3
    """The deadline passed before the lock was acquired. The exception is LockTimeout."""
    CANCELED = -4
    """The wait was canceled. The exception is Canceled."""
    NOT_OWNER = -5
    """The caller does not hold the lock. The exception is NotOwner."""
    LOST = -6
    """The lock was lost during a hold. The exception is LockLost."""
    DEADLOCK = -7
    """The caller would wait for itself. The exception is Deadlock."""
    CLOSED = -8
    """The client or the handle was closed. The exception is ClientClosed."""
    CONNECTION = -9
    """No server answered within the time limit. The exception is ConnectionLost."""
    AUTH = -10
    """A server refused the credentials, or the client or a server refused a certificate. The exception is AuthFailed.
    """
    DENIED = -11
    """An access control list forbids the operation. The exception is PermissionDenied."""
    FORKED = -12
    """The handle belongs to the parent of this forked process. The exception is Forked."""
    BUFFER = -13
    """The caller's buffer is too small. Only C programs receive this status."""
    EXHAUSTED = -14
    """A limit was reached. The exception is Exhausted."""
    FOREIGN = -15
    """An incompatible kind of lock uses the same path. The exception is ForeignContender."""
    SERVER = -16
    """A server returned an error that no other status describes. The exception is ServerError."""
    INTERNAL = -17
    """An internal error of zklock occurred. The exception is InternalError."""
    UNSUPPORTED = -18
    """This kind of lock, or this server, does not support the operation. The exception is Unsupported."""
    PENDING = -19
    """The operation is still running. Only C programs receive this status."""


class Error(Exception):
    """The base class of all exceptions of zklock. The message of an Error names the lock, value or server that caused
    the failure.
    """

    status: Status = Status.INTERNAL
    """The status of the failure. Each status that a Python program can receive has an exception class."""


class InvalidArgument(Error, ValueError):
    """The value of an argument is invalid."""

    status = Status.INVALID


class InvalidType(Error, TypeError):
    """The type of an argument is wrong. If an argument is missing or unknown, Python raises a plain TypeError."""

    status = Status.INVALID


class LockTimeout(Error, TimeoutError):
    """The timeout passed before the lock was acquired."""

    status = Status.TIMEOUT


class Canceled(Error):
    """The wait was canceled by ``cancel()``."""

    status = Status.CANCELED


class NotOwner(Error, RuntimeError):
    """The caller does not hold the lock."""

    status = Status.NOT_OWNER


class LockLost(Error):
    """The holder has lost the lock, because the session ended or another client deleted the node. Another client may
    hold the lock now.
    """

    status = Status.LOST


class Deadlock(Error, RuntimeError):
    """The caller would wait for itself."""

    status = Status.DEADLOCK


class ClientClosed(Error, RuntimeError):
    """The client was closed."""

    status = Status.CLOSED


class ConnectionLost(Error, ConnectionError):
    """No ZooKeeper server answered within the time limit."""

    status = Status.CONNECTION


class AuthFailed(Error, PermissionError):
    """A server refused the credentials, or the client or a server refused a certificate."""

    status = Status.AUTH


class PermissionDenied(Error, PermissionError):
    """An access control list forbids the operation."""

    status = Status.DENIED


class Forked(Error, RuntimeError):
    """The client or lock belongs to the parent of this forked process. A forked child must make a new client."""

    status = Status.FORKED


class Exhausted(Error, OSError):
    """The process cannot open a descriptor or start a thread, or all sequence numbers of the path are used up. The
    message names the limit.
    """

    status = Status.EXHAUSTED


class ForeignContender(Error):
    """An incompatible kind of lock uses the same path."""

    status = Status.FOREIGN


class ServerError(Error):
    """A ZooKeeper server returned an error that no other exception class describes."""

    status = Status.SERVER


class InternalError(Error, RuntimeError):
    """An internal error of zklock."""

    status = Status.INTERNAL


class Unsupported(Error, NotImplementedError):
    """This kind of lock, this server or this greenlet does not support the operation."""

    status = Status.UNSUPPORTED


# Set the public class names that tracebacks show, for instance zklock.LockTimeout.
for _class in [value for value in vars().values() if isinstance(value, type) and value is not IntEnum]:
    _class.__module__ = "zklock"
