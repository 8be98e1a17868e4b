"""The class LazyClient, for clients at the module level of a program. A LazyClient connects when the process first
needs the connection, and again in each forked child process. The class makes no decisions about locks.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, cast

from zklock._errors import ClientClosed
from zklock._zklock import Client, _Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from typing_extensions import Self

    from zklock._zklock import MultiLock, Mutex, RwLock, Semaphore, SemaphoreMutex


class _PerClient:
    """An object that a client makes, for example a lock. In each process, the object is made by the client of this
    process, when the program first uses it.
    """

    def __init__(self, owner: LazyClient, make: Callable[[Client], Any], text: str) -> None:
        self._owner = owner
        self._make = make
        self._text = text
        self._made: tuple[Client, Any] | None = None

    def _real(self) -> Any:
        """Return the object of this process. Two threads that ask at the same time get the same object."""
        client = self._owner.connect()
        with self._owner._guard:
            if self._made is None or self._made[0] is not client:
                self._made = (client, self._make(client))
            return self._made[1]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._real(), name)

    def __repr__(self) -> str:
        return f"<zklock.LazyClient {self._text}>" if self._made is None else repr(self._made[1])


class _LazyLock(_PerClient):
    """A lock of a LazyClient. It has the members of ``zklock.Lock``, and satisfies ``zklock.LockLike``."""

    def __enter__(self) -> Any:
        return self._real().__enter__()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._real().__exit__(exc_type, exc_value, traceback)


def _forward(name: str) -> property:
    return property(lambda self: getattr(self._real(), name))


# isinstance(lock, LockLike) looks at the members of the class.
for _name in (
    "acquire",
    "hold",
    "try_hold",
    "release",
    "cancel",
    "wait_lost",
    "is_held",
    "state",
    "remaining",
    "fencing_token",
):
    setattr(_LazyLock, _name, _forward(_name))
del _name


class _LazyRwLock(_PerClient):
    """A read/write lock of a LazyClient."""

    def __init__(self, owner: LazyClient, make: Callable[[Client], Any], text: str) -> None:
        super().__init__(owner, make, text)
        self.read = _LazyLock(owner, lambda _: self._real().read, f"{text}.read")
        self.write = _LazyLock(owner, lambda _: self._real().write, f"{text}.write")


class LazyClient:
    """A client for the module level of a program. The client connects when the program first uses it or one of its
    locks, and not when the module is imported. A forked child process, for instance a worker of gunicorn, uWSGI or
    Celery, connects for itself: the client and its locks also work in the child.

    The arguments are those of ``zklock.Client``, and the constructor checks them. The client has the methods of
    ``zklock.Client``, and its locks and semaphores have the methods of ``zklock.Lock`` and ``zklock.Semaphore``. The
    first use waits for the connection, for at most ``connect_timeout``, and raises the errors of the constructor of
    ``zklock.Client``. If it fails, the next use tries again. A hold belongs to the process that has acquired it.

    Example::

        client = zklock.LazyClient("host:2181", session_timeout=10.0)       # at the module level
        report = client.mutex("/locks/report", timeout=5.0)

        def work():
            with report.hold() as hold:
                write(fence=hold.token)
    """

    def __init__(self, servers: str, **arguments: Any) -> None:
        checked = {name: value for name, value in arguments.items() if name != "on_event"}
        _Settings(servers, **checked)
        self._servers = servers
        self._arguments = arguments
        self._guard = threading.RLock()
        self._client: Client | None = None
        self._is_closed = False
        _clients.add(self)

    def connect(self) -> Client:
        """Return the connected client of this process. The first call in a process connects."""
        with self._guard:
            if self._client is None:
                if self._is_closed:
                    raise ClientClosed("this client was closed")
                self._client = Client(self._servers, **self._arguments)
            return self._client

    def close(self) -> None:
        """Close the client of this process; see ``Client.close()``. Later calls in this process raise ClientClosed."""
        with self._guard:
            client, self._client, self._is_closed = self._client, None, True
        if client is not None:
            client.close()

    def mutex(self, path: str, **arguments: Any) -> Mutex:
        """Make a mutex; see ``Client.mutex()``."""
        return cast("Mutex", self._lock("mutex", path, arguments))

    def semaphore_mutex(self, path: str, **arguments: Any) -> SemaphoreMutex:
        """Make a semaphore mutex; see ``Client.semaphore_mutex()``."""
        return cast("SemaphoreMutex", self._lock("semaphore_mutex", path, arguments))

    def rwlock(self, path: str, **arguments: Any) -> RwLock:
        """Make a read/write lock; see ``Client.rwlock()``."""
        made: Any = _LazyRwLock(self, lambda client: client.rwlock(path, **arguments), f"rwlock({path!r})")
        return cast("RwLock", made)

    def multi(self, locks: Iterable[Any], **arguments: Any) -> MultiLock:
        """Make a multi-lock; see ``Client.multi()``. ``locks`` may contain paths, locks, and locks of a LazyClient."""
        members = list(locks)

        def make(client: Client) -> Any:
            return client.multi([one._real() if isinstance(one, _PerClient) else one for one in members], **arguments)

        made: Any = _LazyLock(self, make, f"multi({members!r})")
        return cast("MultiLock", made)

    def semaphore(self, path: str, *numbers: Any, **arguments: Any) -> Semaphore:
        """Make a semaphore; see ``Client.semaphore()``."""
        made: Any = _PerClient(
            self, lambda client: client.semaphore(path, *numbers, **arguments), f"semaphore({path!r})"
        )
        return cast("Semaphore", made)

    def _lock(self, recipe: str, path: str, arguments: dict[str, Any]) -> Any:
        return _LazyLock(self, lambda client: getattr(client, recipe)(path, **arguments), f"{recipe}({path!r})")

    def _forget(self) -> None:
        """Begin anew in a forked child process. A thread of the parent may have held the guard at the fork."""
        self._guard = threading.RLock()
        self._client = None
        self._is_closed = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.connect(), name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<zklock.LazyClient {self._servers!r}>" if self._client is None else repr(self._client)


_clients: weakref.WeakSet[LazyClient] = weakref.WeakSet()


def _forget_parent() -> None:
    for client in list(_clients):
        client._forget()


os.register_at_fork(after_in_child=_forget_parent)

LazyClient.__module__ = "zklock"  # its public name
