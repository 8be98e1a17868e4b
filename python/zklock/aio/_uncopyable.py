"""The base class of objects that a program must not copy. This file must not import other files of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from typing import SupportsIndex


class Uncopyable:
    """An object that ``copy`` and ``pickle`` refuse, just as they refuse objects of the ``zklock`` classes. When a copy
    is garbage-collected, the copy would issue a warning about an object that is still in use.
    """

    def __reduce_ex__(self, _protocol: SupportsIndex) -> NoReturn:
        raise TypeError(f"cannot copy or pickle '{type(self).__module__}.{type(self).__qualname__}' object")
