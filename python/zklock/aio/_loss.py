"""Two ways to notice the loss of a hold: ``wait_lost()`` waits for the loss, and ``while_held()`` cancels a block after
the loss. This file must not import locks or leases.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from zklock._errors import ClientClosed, Error, LockLost, NotOwner
from zklock._zklock import _timeout
from zklock.aio._owner import current_task

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from zklock import _zklock as native
    from zklock._zklock import _TaskLock
    from zklock.aio._loop_bridge import LoopBridge


class LossTarget:
    """A hold or leases that may be lost."""

    def __init__(
        self, bridge: LoopBridge, held: _TaskLock | native.Hold | native.Leases, paths: Callable[[], str]
    ) -> None:
        """``paths`` returns the paths of the lock as text for an error message. ``paths`` is a method of the lock or
        the semaphore, so the LossTarget keeps this object and its client alive.
        """
        self._bridge = bridge
        self._held = held
        self.paths = paths

    def start_wait(self) -> asyncio.Future[bool]:
        """Return a future. The future resolves to True when the hold is no longer safe, and to False if the hold is
        released first. Raises NotOwner if no hold exists, and ClientClosed if the client is closed.
        """
        return self._bridge.loss_future(self._bridge.queue_for_call().wait_lost(self._held))

    def is_safe(self) -> bool:
        """Return whether the hold is safe at this moment, according to the session lease."""
        return self._held.is_held

    def check(self) -> None:
        """Raise LockLost if the state of the hold is LOST, NotOwner if the hold was released, or ClientClosed if the
        client is closed.
        """
        self._held._check()

    def loss_error(self) -> LockLost:
        """Return the exception that a block raises after the loss, with the reason for the loss."""
        try:
            self.check()
        except LockLost as loss:
            return loss
        except ClientClosed as closed:
            return LockLost(str(closed))
        except Error:
            pass
        return LockLost(f"{self.paths()}: the session lease has ended, and the lock may be lost")


async def wait_lost(bridge: LoopBridge, held: LossTarget, timeout: float | None) -> bool:
    """Wait until a hold or leases are lost. Every ``wait_lost()`` method calls this function."""
    bridge.queue_for_call()
    limit = _timeout(timeout)
    wait = held.start_wait()
    try:
        if not wait.done() and limit != 0:
            await asyncio.wait({wait}, timeout=limit)
        if not wait.done():
            # Check the session lease after a timeout, because the process may have been stopped during the wait.
            try:
                held.check()
            except LockLost:
                return True
            return not held.is_safe()
        if not wait.result():
            raise NotOwner(f"{held.paths()}: the hold was released, so it cannot be lost any more")
        with contextlib.suppress(LockLost, NotOwner):
            held.check()
        return True
    finally:
        _abandon(wait)


def _abandon(wait: asyncio.Future[bool]) -> None:
    """Cancel a wait for a loss. A coroutine can end after its loop was closed, for example at the exit of the
    interpreter. In this case, ``cancel()`` would raise an exception.
    """
    if not wait.get_loop().is_closed():
        wait.cancel()


class WhileHeld(AbstractAsyncContextManager[None]):
    """A context manager for an ``async with`` block. When the hold is no longer safe, the WhileHeld cancels the block,
    and the block raises LockLost. A program may enter a WhileHeld only once.
    """

    def __init__(self, held: LossTarget) -> None:
        self._held = held
        self._wait: asyncio.Future[bool] | None = None
        self._task: asyncio.Task[object] | None = None
        self._has_cancelled = False
        self._cancelling_before = 0

    async def __aenter__(self) -> None:
        if self._wait is not None:
            raise RuntimeError(
                "each result of while_held() guards only one block; call while_held() again for the next block"
            )
        self._task = current_task()
        if self._task is None:
            raise RuntimeError("while_held() needs a task")
        self._wait = self._held.start_wait()
        if self._wait.done():
            raise self._held.loss_error()
        if sys.version_info >= (3, 11):
            self._cancelling_before = self._task.cancelling()
        self._wait.add_done_callback(self._cancel)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        wait, task, self._task = self._wait, self._task, None
        assert wait is not None
        assert task is not None
        # The block may end after the loss but before the wait has ended. For example, a callback may have reported the
        # loss.
        is_lost = not wait.cancelled() and (wait.result() if wait.done() else self._is_lost_now())
        # If the loop is closed, the wait remains, and must not keep the hold alive.
        wait.remove_done_callback(self._cancel)
        _abandon(wait)
        is_mine = self._has_cancelled and self._uncancel(task)
        if is_lost and (exc_value is None or (is_mine and isinstance(exc_value, asyncio.CancelledError))):
            raise self._held.loss_error() from exc_value

    def _is_lost_now(self) -> bool:
        try:
            self._held.check()
        except LockLost:
            return True
        except Error:
            return False
        return not self._held.is_safe()

    def _cancel(self, wait: asyncio.Future[bool]) -> None:
        # After the wait has ended, the loop calls this method in its next iteration. The block may have ended
        # meanwhile.
        if self._task is not None and not wait.cancelled() and wait.result():
            self._has_cancelled = True
            self._task.cancel()

    def _uncancel(self, task: asyncio.Task[object]) -> bool:
        """Withdraw the cancellation of the task. Return True if no other code has cancelled the task."""
        return sys.version_info < (3, 11) or task.uncancel() <= self._cancelling_before
