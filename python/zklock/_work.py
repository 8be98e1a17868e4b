"""Work under a lock: the decorator ``locked``, and the terms of a leader. The functions use only public methods."""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import TYPE_CHECKING, Any, TypeVar

from zklock._errors import ClientClosed, ConnectionLost, Exhausted, InvalidType, LockLost, NotOwner

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

F = TypeVar("F", bound="Callable[..., Any]")

OWN_TIMEOUT: Any = ...
"""The default of the argument ``timeout``: the timeout of the lock."""

_ENDED = (LockLost, NotOwner, ConnectionLost, Exhausted)
"""The errors with which the release of a term also ends the term."""


def locked(lock: Any, *, timeout: float | None = OWN_TIMEOUT, skip_if_busy: bool = False) -> Callable[[F], F]:
    """Return a decorator. Each call of the decorated function acquires ``lock`` first, and releases it afterwards.

    ``timeout`` has the same meaning as for ``lock.hold()``. If the timeout passes, the call raises LockTimeout and does
    not run the function. If ``skip_if_busy`` is True and another participant holds the lock or waits for it, the call
    returns None and does not run the function. If the lock is lost while the function runs, the call raises LockLost.
    A coroutine function needs a lock of ``zklock.aio``, and any other function needs a lock of ``zklock``::

        @zklock.locked(client.mutex("/locks/report"), timeout=5.0)
        def report(): ...
    """
    is_aio = hasattr(lock, "__aenter__")
    if not is_aio and not hasattr(lock, "__enter__"):
        raise InvalidType(f"lock: expected a lock, such as client.mutex(path), not {type(lock).__name__}")
    if skip_if_busy and timeout is not OWN_TIMEOUT:
        raise InvalidType("timeout and skip_if_busy: expected only one of them, because skip_if_busy does not wait")
    arguments = {} if timeout is OWN_TIMEOUT else {"timeout": timeout}

    def hold() -> Any:
        return lock.try_hold() if skip_if_busy else lock.hold(**arguments)

    def decorate(function: Any) -> Any:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidType(
                f"{function.__qualname__}: expected a function that is no generator; use a with block in it"
            )
        if inspect.iscoroutinefunction(function) != is_aio:
            kinds = (
                ("a coroutine function", "a lock of zklock.aio") if not is_aio else ("a function", "a lock of zklock")
            )
            raise InvalidType(f"{getattr(function, '__qualname__', function)!s}: {kinds[0]} needs {kinds[1]}")
        if is_aio:

            async def run_async(*args: Any, **kwargs: Any) -> Any:
                async with hold() as held:
                    return await function(*args, **kwargs) if held else None

            return functools.wraps(function)(run_async)

        def run(*args: Any, **kwargs: Any) -> Any:
            with hold() as held:
                return function(*args, **kwargs) if held else None

        return functools.wraps(function)(run)

    return decorate


def terms(lock: Any) -> Generator[Any, None, None]:
    """Yield a Hold for each term of a leader; see ``Client.lead()``."""
    while True:
        try:
            term = lock.hold(timeout=None)
        except ClientClosed:
            return
        try:
            yield term
        finally:
            with contextlib.suppress(*_ENDED, ClientClosed):
                term.release()


async def aio_terms(lock: Any) -> AsyncGenerator[Any, None]:
    """Yield a Hold for each term of a leader; see ``zklock.aio.Client.lead()``."""
    while True:
        try:
            term = await lock.hold(timeout=None)
        except ClientClosed:
            return
        try:
            yield term
        finally:
            with contextlib.suppress(*_ENDED, ClientClosed):
                await term.release()


locked.__module__ = "zklock"  # its public name
