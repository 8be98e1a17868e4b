"""The class Acquiring. ``Lock.hold()`` and ``Semaphore.acquire()`` return an Acquiring. A program may await an
Acquiring, or use it in ``async with``. The class must not depend on the kind of the acquired object.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from types import TracebackType

OWN_TIMEOUT: Any = ...
"""The default of the argument ``timeout``: the timeout of the lock or the semaphore."""

Held = TypeVar("Held", bound="AbstractAsyncContextManager[Any] | None")
"""The type of the acquired object. If a program uses the object in ``async with``, the end of the block releases the
lock or the leases. The object is None if ``try_hold()`` has found a busy lock.
"""


class Acquiring(Coroutine[Any, Any, Held]):
    """An acquire call in progress. An Acquiring is both a coroutine and an asynchronous context manager."""

    def __init__(self, coroutine: Coroutine[Any, Any, Held]) -> None:
        """The lock or the semaphore calls this constructor."""
        self._coroutine = coroutine
        self._held: Held | None = None

    def send(self, value: Any) -> Any:
        """Forward the call to the underlying coroutine."""
        return self._coroutine.send(value)

    def throw(self, *args: Any) -> Any:
        """Forward the call to the underlying coroutine."""
        return self._coroutine.throw(*args)

    def close(self) -> None:
        """Forward the call to the underlying coroutine."""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Held]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> Held:
        """Acquire the lock or the leases."""
        self._held = await self._coroutine
        return self._held

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Release the acquired lock or leases."""
        if self._held is not None:
            await self._held.__aexit__(exc_type, exc_value, traceback)
