"""To hear that a hold is lost: a block that is cancelled then."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol

from zklock._errors import LockLost
from zklock.aio._owner import current_task

if TYPE_CHECKING:
    from types import TracebackType


class Watchable(Protocol):
    """What is held, and may be lost."""

    def _watch(self) -> asyncio.Future[bool]: ...
    def _loss(self) -> LockLost: ...


class WhileHeld(AbstractAsyncContextManager[None]):
    """A block that is cancelled when a hold is safe no more, and raises LockLost then. Not for more than one block."""

    def __init__(self, held: Watchable) -> None:
        self._held = held
        self._watch: asyncio.Future[bool] | None = None
        self._task: asyncio.Task[object] | None = None
        self._cancels = False
        self._cancelling = 0

    async def __aenter__(self) -> None:
        if self._watch is not None:
            raise RuntimeError("while_held() is for one block; call it again for another")
        self._task = current_task()
        if self._task is None:
            raise RuntimeError("while_held() is for a task")
        self._watch = self._held._watch()
        if self._watch.done():
            raise self._held._loss()
        if sys.version_info >= (3, 11):
            self._cancelling = self._task.cancelling()
        self._watch.add_done_callback(self._cancel)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        watch, task, self._task = self._watch, self._task, None
        assert watch is not None
        assert task is not None
        is_lost = watch.done() and not watch.cancelled() and watch.result()
        watch.cancel()
        is_mine = self._cancels and self._takes_back(task)
        if is_lost and (exc_value is None or (is_mine and isinstance(exc_value, asyncio.CancelledError))):
            raise self._held._loss() from exc_value

    def _cancel(self, watch: asyncio.Future[bool]) -> None:
        # It is called a turn after the watch was resolved: the block may have been left by then.
        if self._task is not None and not watch.cancelled() and watch.result():
            self._cancels = True
            self._task.cancel()

    def _takes_back(self, task: asyncio.Task[object]) -> bool:
        """The cancellation. Whether nobody else has cancelled the task besides."""
        return sys.version_info < (3, 11) or task.uncancel() <= self._cancelling
