"""Protocol classes of locks and holds. A program can use the protocols as parameter types.

The package itself must not use the protocols.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from zklock._states import LockState


class HoldLike(Protocol):
    """The type that ``LockLike.hold()`` returns. The result is a Hold, or an object that replaces a Hold in the tests
    of a program.
    """

    def release(self) -> None:
        """Release the lock."""

    def wait_lost(self, timeout: float | None = None) -> bool:
        """Wait until the hold is no longer safe."""
        ...

    @property
    def token(self) -> int:
        """The fencing token of the hold."""
        ...

    @property
    def state(self) -> LockState:
        """The state of the hold."""
        ...

    @property
    def remaining(self) -> float:
        """The number of seconds for which the hold stays safe even if no server answers."""
        ...

    @property
    def is_lost(self) -> bool:
        """Whether the hold is unsafe and the program has not yet released the hold."""
        ...

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...


@runtime_checkable
class LockLike(Protocol):
    """Any lock of this package: a Mutex, SemaphoreMutex, ReadLock, WriteLock or MultiLock.

    A function can have a parameter of type LockLike. Tests of the function can then pass any object that has the
    members of LockLike. ``isinstance(lock, LockLike)`` also works, except for a mock, because it checks the class of
    the object.
    """

    def acquire(self, *, timeout: float | None = ...) -> bool:
        """Acquire or re-enter the lock for the calling thread."""
        ...

    def hold(self, *, timeout: float | None = ...) -> HoldLike:
        """Acquire the lock, and return a hold."""
        ...

    def release(self) -> None:
        """Release the lock once for the calling thread."""

    def cancel(self) -> None:
        """Cancel all calls that wait for this lock. The cancelled calls raise Canceled."""

    def wait_lost(self, timeout: float | None = None) -> bool:
        """Wait until the calling thread's hold is no longer safe."""
        ...

    @property
    def is_held(self) -> bool:
        """Whether the calling thread holds the lock and the hold is safe at this moment."""
        ...

    @property
    def state(self) -> LockState:
        """The state of the calling thread's hold."""
        ...

    @property
    def remaining(self) -> float:
        """The number of seconds for which the calling thread's hold stays safe even if no server answers."""
        ...

    @property
    def fencing_token(self) -> int:
        """The fencing token of the calling thread's hold."""
        ...

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...


def check_members_on_class(protocol: Any) -> None:
    """Make ``isinstance()`` check whether an object's class has the protocol's members. Before Python 3.12,
    ``isinstance()`` reads every property of the object itself, and some properties raise an exception if the lock is
    not held.
    """
    members = [name for name in vars(protocol) if not name.startswith("_") or name.endswith(("enter__", "exit__"))]
    metaclass: Any = type(protocol)

    def instancecheck(cls: Any, instance: object) -> bool:
        if cls is not protocol:
            return bool(metaclass.__instancecheck__(cls, instance))
        return all(hasattr(type(instance), name) for name in members)

    protocol.__class__ = type("_ChecksMembersOnClass", (metaclass,), {"__instancecheck__": instancecheck})


check_members_on_class(LockLike)

# Give the classes their public names, for instance zklock.LockLike.
for _class in (HoldLike, LockLike):
    _class.__module__ = "zklock"
del _class
