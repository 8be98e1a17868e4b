"""Whose a hold is: a task's, by a number that no other task gets."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
import warnings
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet

Task = asyncio.Task[Any]

NOBODY = 0
"""The number of no task."""


class Holdable(Protocol):
    """What a task may hold when it ends."""

    def _is_left_by(self, owner: Owner) -> bool:
        """Whether it leaves a hold that may be safe. Does not raise."""
        ...


class Owner:
    """A task, as the locks know it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._entered: WeakSet[Holdable] | None = None

    def enters(self, lock: Holdable, task: Task) -> None:
        """It is to be said if it ends with a hold of this lock, which nobody can release then."""
        if self._entered is None:
            self._entered = WeakSet()
            task.add_done_callback(self._ends)
        self._entered.add(lock)

    def _ends(self, task: Task) -> None:
        for lock in self._entered or ():
            if lock._is_left_by(self):
                message = f"task {task.get_name()!r} ended while it holds {lock!r}: no other task can release it"
                warnings.warn(message, ResourceWarning, stacklevel=1)


_owners: WeakKeyDictionary[Task, Owner] = WeakKeyDictionary()
_numbers = itertools.count(NOBODY + 1)
_guard = threading.Lock()


def current_task() -> Task | None:
    """The task that runs in this thread, if one does."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def current_number() -> int:
    """The number of the current task, or NOBODY."""
    task = current_task()
    owner = None if task is None else _owners.get(task)
    return NOBODY if owner is None else owner.number


def acting_task(caller: Task | None) -> Task:
    """The task whose hold it is that the current one acquires or releases, in a coroutine that ``caller`` has made.

    They are the same, but in ``asyncio.wait_for(lock.acquire(), 5)``: before Python 3.12 that runs the coroutine in a
    task of its own, while it is a part of the one that waits for it.
    """
    task = current_task()
    if task is None:
        raise RuntimeError("a lock of zklock.aio is held by a task: await this in one")
    if caller is not None and caller is not task and _is_made_by_wait_for(task):
        return caller
    return task


def owner_of(task: Task) -> Owner:
    """The same each time."""
    owner = _owners.get(task)
    if owner is None:
        with _guard:
            owner = _owners[task] = Owner(next(_numbers))
    return owner


if sys.version_info >= (3, 12):

    def _is_made_by_wait_for(task: Task) -> bool:
        return False

else:

    def _is_made_by_wait_for(task: Task) -> bool:
        release = getattr(asyncio.tasks, "_release_waiter", None)
        callbacks = getattr(task, "_callbacks", None) or ()
        return any(getattr(callback, "func", None) is release for callback, _ in callbacks)
