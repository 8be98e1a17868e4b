"""Protocols for locks and holds, for use in type annotations. The package itself must not use the protocols."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from zklock._protocols import check_members_on_class

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from typing_extensions import Self

    from zklock._states import LockState


class HoldLike(Protocol):
    """The type of the object that a block with ``LockLike.hold()`` receives. The object is a Hold, or an object that
    replaces a Hold in the tests of a program.
    """

    @property
    def token(self) -> int:
        """The fencing token of the hold."""
        ...

    @property
    def remaining(self) -> float:
        """The number of seconds for which the hold stays safe even if no server answers."""
        ...

    @property
    def state(self) -> LockState:
        """The state of the hold."""
        ...

    @property
    def is_lost(self) -> bool:
        """Whether the hold is unsafe and the program has not yet released the hold."""
        ...

    def wait_lost(self, timeout: float | None = None) -> Awaitable[bool]:
        """Wait until the hold is no longer safe."""
        ...

    def release(self) -> Awaitable[None]:
        """Release the lock."""
        ...

    async def __aenter__(self) -> Self:
        """Enter a block. The end of the block releases the lock."""
        ...

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None, /
    ) -> bool | None:
        """Release the lock."""
        ...


@runtime_checkable
class LockLike(Protocol):
    """Any lock of this package: a Mutex, SemaphoreMutex, ReadLock, WriteLock or MultiLock.

    If a function has a parameter of type LockLike, tests of the function can pass any object with these members::

        async def nightly_report(lock: zklock.aio.LockLike) -> None:
            async with lock.hold(timeout=5.0) as hold:
                await write(fence=hold.token)

    ``isinstance(lock, LockLike)`` also works.
    """

    def acquire(self, *, timeout: float | None = ...) -> Awaitable[bool]:
        """Acquire or re-enter the lock for the current task."""
        ...

    def hold(self, *, timeout: float | None = ...) -> AbstractAsyncContextManager[HoldLike, Any]:
        """Acquire the lock for a block, and return a hold."""
        ...

    def release(self) -> Awaitable[None]:
        """Release the lock once for the current task."""
        ...

    def cancel(self) -> None:
        """Cancel all calls that wait for this lock. The cancelled calls raise Canceled."""
        ...

    def wait_lost(self, timeout: float | None = None) -> Awaitable[bool]:
        """Wait until the current task's hold is no longer safe."""
        ...

    @property
    def is_held(self) -> bool:
        """Whether the current task holds the lock and the hold is safe at this moment."""
        ...

    @property
    def state(self) -> LockState:
        """The state of the current task's hold."""
        ...

    @property
    def remaining(self) -> float:
        """The number of seconds for which the current task's hold stays safe even if no server answers."""
        ...

    @property
    def fencing_token(self) -> int:
        """The fencing token of the current task's hold."""
        ...

    async def __aenter__(self) -> object:
        """Acquire the lock."""
        ...

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None, /
    ) -> bool | None:
        """Release the lock."""
        ...


check_members_on_class(LockLike)
