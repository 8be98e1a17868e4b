"""The decorator ``coroutine_function``, for methods that act for the task that calls them. Such a method is not a
coroutine function for Python, because its body runs at the call. The decorator makes tools treat it as one.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")


class _CoroutineFunction:
    """A method for Python before 3.12. ``inspect`` and ``asyncio`` recognize a coroutine function by its class and its
    code object. This object has the code object of a coroutine function, and says that it is a function.
    """

    __defaults__ = None
    __kwdefaults__ = None
    _is_coroutine = getattr(asyncio.coroutines, "_is_coroutine", None)

    __class__ = property(lambda _: FunctionType)  # pyright: ignore[reportIncompatibleMethodOverride]

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)

        async def unbound(*args: Any, **kwargs: Any) -> Any:
            return await function(*args, **kwargs)

        self._function = function
        self.__code__ = unbound.__code__
        self._unbound = functools.wraps(function)(unbound)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self._unbound if instance is None else MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


def coroutine_function(function: F) -> F:
    """Make ``inspect.iscoroutinefunction()``, ``asyncio.iscoroutinefunction()``, ``unittest.mock`` and frameworks treat
    a method as a coroutine function.
    """
    if sys.version_info >= (3, 12):
        return inspect.markcoroutinefunction(function)
    made: Any = _CoroutineFunction(function)
    return cast("F", made)
