"""The tasks that own holds. Each task has a unique number. This file must not keep a task or a lock object alive."""

from __future__ import annotations

import asyncio
import itertools
import threading
import warnings
from typing import Any, Protocol
from weakref import WeakKeyDictionary

Task = asyncio.Task[Any]

NO_OWNER_NUMBER = 0
"""The number that means "no task"."""


class TrackedLock(Protocol):
    """A lock that a task may still hold when the task ends."""

    def _release_lost_and_check_held(self, owner: Owner) -> bool:
        """Return whether the owner still has a hold that is not lost. The method does not raise exceptions."""
        ...

    def _describe_for(self, owner: Owner) -> str:
        """Return the ``repr()`` of the lock with the state of this owner's hold."""
        ...


class Owner:
    """The owner number of a task, and the locks that the task has acquired."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._locks: WeakKeyDictionary[TrackedLock, int] | None = None

    def track(self, lock: TrackedLock, task: Task) -> None:
        """Record that a task has acquired a lock. If the task ends while it still holds the lock, the library issues a
        warning, because no other task can release the lock.
        """
        if self._locks is None:
            self._locks = WeakKeyDictionary()
            task.add_done_callback(self._on_task_done)
        self._locks[lock] = self._locks.get(lock, 0) + 1

    def leaves(self, lock: TrackedLock, *, is_over: bool) -> None:
        """Decrement the hold count of a lock, or remove the count if the hold is over. The count does not include Hold
        objects, because any task may release a Hold.
        """
        if self._locks is None:
            return
        entries = self._locks.pop(lock, 0)
        if entries > 1 and not is_over:
            self._locks[lock] = entries - 1

    def _on_task_done(self, task: Task) -> None:
        for lock in list(self._locks or ()):
            if lock._release_lost_and_check_held(self):
                what = lock._describe_for(self)
                message = f"task {task.get_name()!r} ended while it holds {what}, which no other task can release"
                try:
                    warnings.warn(message, ResourceWarning, stacklevel=1)
                except ResourceWarning as error:
                    # With -W error, warn() raises an exception. Catch the exception, so that the loop continues with
                    # the task's other locks.
                    task.get_loop().call_exception_handler({"message": message, "exception": error, "task": task})


_owners: WeakKeyDictionary[Task, Owner] = WeakKeyDictionary()
_numbers = itertools.count(NO_OWNER_NUMBER + 1)
_owners_lock = threading.Lock()


def current_task() -> Task | None:
    """Return the task that runs in this thread, or None if no task runs."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def current_number() -> int:
    """Return the number of the current task, or NO_OWNER_NUMBER."""
    task = current_task()
    owner = None if task is None else _owners.get(task)
    return NO_OWNER_NUMBER if owner is None else owner.number


def owning_task(caller: Task | None) -> Task:
    """Return the task to which a hold belongs. This is ``caller``, the task that called ``acquire()``, ``hold()`` or
    ``release()``, whichever task runs the coroutine that the call has returned. If the caller was not a task, for
    example a callback of the event loop, the hold belongs to the task that runs the coroutine.
    """
    task = current_task() if caller is None else caller
    if task is None:
        raise RuntimeError("only a task can hold a lock of zklock.aio; await this call in a task")
    return task


def owner_of(task: Task) -> Owner:
    """Return the Owner of a task. For the same task, the function always returns the same object."""
    owner = _owners.get(task)
    if owner is None:
        with _owners_lock:
            owner = _owners[task] = Owner(next(_numbers))
    return owner
