"""The base class of objects that a program must not copy. This file must not import other files of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from typing import SupportsIndex


class Uncopyable:
    """An object that ``copy`` and ``pickle`` refuse, as they refuse the classes of ``zklock``. A copy would warn about
    an object that is still in use when the copy is garbage-collected.
    """

    def __reduce_ex__(self, _protocol: SupportsIndex) -> NoReturn:
        raise TypeError(f"cannot copy or pickle '{type(self).__module__}.{type(self).__qualname__}' object")
