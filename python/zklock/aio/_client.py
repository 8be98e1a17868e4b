"""``zklock.aio.Client``."""

from __future__ import annotations

import asyncio
import warnings
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, overload

from zklock._errors import ClientClosed, Error
from zklock._states import ClientState
from zklock._zklock import _read_options, _semaphore, _Settings
from zklock.aio._locks import Lock, MultiLock, Mutex, RwLock, SemaphoreMutex, add_to
from zklock.aio._post import Post
from zklock.aio._semaphore import Semaphore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from os import PathLike
    from types import TracebackType

    from typing_extensions import Self

    from zklock import _zklock as native
    from zklock._events import Event
    from zklock._metrics import Metrics
    from zklock._zklock import Participant


_CLOSED_MEANWHILE = "this client was closed while it connected"


class _Stage(Enum):
    NEW = 0
    CONNECTING = 1
    OPEN = 2
    CLOSED = 3


class Client:
    """A client for an event loop: one ZooKeeper session, shared by any number of locks and tasks.

    It connects at the begin of an ``async with`` block, or by ``await client.connect()``, and belongs to the event loop
    that does so. The arguments are those of ``zklock.Client``: ``servers`` is a connect string like
    ``"host:2181,host:2181/chroot"``, and all durations are seconds, as int or float:

    * ``session_timeout``: how long the servers keep a session they do not hear of; they may negotiate another value.
      None means 10 s.
    * ``connect_timeout``: how long connecting may take; None means 10 s.
    * ``lease_margin``: how long before the session can end its locks cease to count as held; None means a third of the
      negotiated session timeout.
    * ``auth``: pairs of scheme and credentials, for instance ``[("digest", "user:password")]``.
    * ``wait_for_kazoo``: mutexes and read/write locks queue with kazoo's locks on the same path; see ``zklock.Client``.
    * ``on_event``: is called with a ClientEvent or a LockEvent for every change in how the session or a hold stands.
    * ``options``: options by name; see ``zklock.Client``. ``from_file()`` reads options from a file.

    ``on_event`` is called by the loop, one event after the other in the order in which things happened, as what is
    given to ``loop.call_soon()``: what it raises goes to the loop's exception handler. It may be a coroutine function,
    which is run as a task for each event; the tasks begin in that order. What is told late, since the loop was busy, is
    told as ``zklock.Client`` says.

    Methods that are coroutines are to be awaited in the loop that the client connected in; in another one they raise
    RuntimeError. The others may be called from any thread. In the child of a fork every call but ``close()`` raises
    Forked: make a client there. A client that was not closed is closed when it is garbage-collected, or with the
    interpreter, and says so by a ResourceWarning.

    Raises ValueError and TypeError for wrong arguments.
    """

    def __init__(
        self,
        servers: str,
        *,
        session_timeout: float | None = None,
        connect_timeout: float | None = None,
        lease_margin: float | None = None,
        auth: Iterable[tuple[str, bytes | str]] = (),
        wait_for_kazoo: bool = False,
        on_event: Callable[[Event], object] | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self._stage = _Stage.NEW
        self._native: native.Client | None = None
        self._post: Post | None = None
        self._ended: asyncio.Future[None] | None = None
        self._settings = _Settings(
            servers,
            session_timeout=session_timeout,
            connect_timeout=connect_timeout,
            lease_margin=lease_margin,
            auth=auth,
            wait_for_kazoo=wait_for_kazoo,
            options=options,
        )
        if on_event is not None and not callable(on_event):
            raise TypeError(f"on_event: expected a callable or None, not {type(on_event).__name__}")
        self._servers = servers
        self._on_event = on_event

    @classmethod
    def from_file(
        cls,
        servers: str,
        file: str | PathLike[str],
        *,
        session_timeout: float | None = None,
        connect_timeout: float | None = None,
        lease_margin: float | None = None,
        auth: Iterable[tuple[str, bytes | str]] = (),
        wait_for_kazoo: bool = False,
        on_event: Callable[[Event], object] | None = None,
        options: Mapping[str, str] | None = None,
    ) -> Self:
        """A client with the options in a file; see ``zklock.Client.from_file()``. The file is read at once.

        Raises what ``Client`` does, and ValueError if the file cannot be read or a line is wrong.
        """
        make = partial(
            cls,
            servers,
            session_timeout=session_timeout,
            connect_timeout=connect_timeout,
            lease_margin=lease_margin,
            auth=auth,
            wait_for_kazoo=wait_for_kazoo,
            on_event=on_event,
        )
        # A wrong argument is named whatever is in the file.
        make(options=options)
        return make(options=_read_options(file, options))

    async def connect(self) -> Self:
        """Connects, for ``connect_timeout`` at most, and gives the client itself. One that is connected already stays
        as it is.

        A task that is cancelled meanwhile leaves nothing but a session that a server was just making, which ends with
        its time-out. Raises ConnectionLost where no server answers in time,
        AuthFailed where one refuses the credentials: it may be tried again. ClientClosed where it was closed;
        NotImplementedError in an event loop without ``add_reader()``; RuntimeError while another task connects it.
        """
        if self._stage is _Stage.CONNECTING:
            raise RuntimeError("this client is just being connected by another task")
        if self._stage is _Stage.CLOSED:
            raise ClientClosed("this client was closed: make another one")
        if self._post is not None:
            self._post.start()
            return self
        self._post = post = Post(self._on_event)
        self._stage = _Stage.CONNECTING
        try:
            client = await post.connect(self._settings)
            if self._is_closed():
                raise ClientClosed(_CLOSED_MEANWHILE)
        except BaseException:
            if self._stage is _Stage.CONNECTING:
                self._stage = _Stage.NEW
            self._post = None
            post.end()
            raise
        self._native, self._stage = client, _Stage.OPEN
        return self

    def mutex(
        self, path: str, timeout: float | None = None, data: bytes | None = None, *, local_handover: int = 0
    ) -> Mutex:
        """A mutex on a path: Curator's ``InterProcessMutex``, re-entrant for each task. Nothing is sent yet.

        ``timeout`` (seconds; None waits without limit) is for ``async with``; ``acquire()`` has its own. ``data`` is
        what the lock's nodes carry; None means this host's address, as in Curator. With ``local_handover`` the tasks of
        this process pass it on among themselves, up to so many times in a row: see ``Lock.set_local_handover()``.
        Raises ValueError for a path that ZooKeeper would not take, ClientClosed.
        """
        client, post = self._open()
        return Mutex(self, post, client.mutex(path, timeout, data, local_handover=local_handover))

    def semaphore_mutex(self, path: str, timeout: float | None = None, data: bytes | None = None) -> SemaphoreMutex:
        """A mutex that any task may release and none may enter twice: Curator's ``InterProcessSemaphoreMutex``. Nothing
        is sent yet. The arguments are those of ``mutex()``.
        """
        client, post = self._open()
        return SemaphoreMutex(self, post, client.semaphore_mutex(path, timeout, data))

    def rwlock(self, path: str, timeout: float | None = None, data: bytes | None = None) -> RwLock:
        """A lock for many readers or one writer: Curator's ``InterProcessReadWriteLock``. Nothing is sent yet. The
        arguments are those of ``mutex()``, for both halves.
        """
        client, post = self._open()
        return RwLock(self, post, client.rwlock(path, timeout, data))

    def multi(self, locks: Iterable[Lock], timeout: float | None = None, *, in_order: bool = False) -> MultiLock:
        """Several locks as one: Curator's ``InterProcessMultiLock``. Nothing is sent yet.

        ``locks`` is any iterable of locks of this package: mutexes, semaphore mutexes, halves of read/write locks,
        other multi-locks; of this client or of others. ``timeout`` is as for ``mutex()``. Raises ValueError for no lock
        at all, or two on one path. With ``in_order`` they are taken one after the other in the order given; see
        ``zklock.Client.multi()``.
        """
        client, post = self._open()
        faces = _locks(locks)
        return MultiLock(self, post, client.multi([lock._native for lock in faces], timeout, in_order=in_order), faces)

    @overload
    def semaphore(self, path: str, max_leases: int, *, count_path: None = None, initial: None = None) -> Semaphore: ...
    @overload
    def semaphore(self, path: str, max_leases: None = None, *, count_path: str, initial: int) -> Semaphore: ...
    def semaphore(
        self,
        path: str,
        max_leases: int | None = None,
        *,
        count_path: str | None = None,
        initial: int | None = None,
    ) -> Semaphore:
        """A semaphore on a path: Curator's ``InterProcessSemaphoreV2``.

        With ``max_leases`` it has that many, and that all its users agree on the number is up to them. Or else it has
        as many as a count says (``set_count()``, Curator's ``SharedCount``), now and whenever it changes: the one at
        ``count_path``, which is made with the value ``initial`` where it is not there, before anybody gets leases. Who
        holds leases keeps them when it is lowered.

        Nothing is waited for: where the count can't be made, acquires say so. TypeError where it is not clear which of
        the two is meant.
        """
        client, post = self._open()
        made = _semaphore(client, path, max_leases, count_path=count_path, initial=initial)
        return Semaphore(self, post, made)

    async def get_count(self, path: str) -> int:
        """Reads a count: Curator's ``SharedCount``.

        Waits for the session timeout at most. Raises ServerError where there is none, ValueError where its node holds
        something else, ConnectionLost where no server answers.
        """
        client, post = self._open()
        return await post.wait(post.start().get_count(client, path))

    async def set_count(self, path: str, value: int) -> None:
        """Sets a count, from -2147483648 to 2147483647, and makes it where there is none.

        Waits as ``get_count()`` does; where the task is cancelled meanwhile, the count may be set or not.
        """
        client, post = self._open()
        await post.wait(post.start().set_count(client, path, value))

    async def fence_check(self, path: str, token: int) -> bool:
        """Asks the ensemble whether the hold with this fencing token is still the holder's on a path, whoever holds it;
        see ``zklock.Client.fence_check()``. For a hold of one's own ``is_held`` is the answer that costs nothing.

        Waits as ``get_count()`` does. Raises ValueError for a token below 1, ConnectionLost where no server answers.
        """
        client, post = self._open()
        return await post.wait(post.start().fence_check(client, path, token))

    async def revoke(self, node: Participant | str) -> None:
        """Asks the owner of a node to give it up: Curator's ``Revoker``. ``node`` is a Participant, or the path of its
        node.

        It is a request, which the owner hears of if he wants to (``set_revocable()``). A node that is gone was given
        up. Waits as ``get_count()`` does; where the task is cancelled meanwhile, the owner may be asked or not.
        """
        client, post = self._open()
        await post.wait(post.start().revoke(client, node))

    def metrics(self) -> Metrics:
        """What this client has done so far, and how it stands: see ``zklock.Client.metrics()``. No server is asked."""
        return self._connected().metrics()

    def prometheus(self, labels: Mapping[str, str] | None = None) -> str:
        """``metrics()`` in Prometheus's text format, with these labels: see ``zklock.Client.prometheus()``."""
        return self._connected().prometheus(labels)

    @property
    def state(self) -> ClientState:
        """How the session stands."""
        if self._native is not None:
            return self._native.state
        return ClientState.CLOSED if self._is_closed() else ClientState.CONNECTING

    @property
    def session_id(self) -> int:
        """The session's id; 0 while there is none. A session that expired is followed by one with another id."""
        return 0 if self._native is None else self._native.session_id

    async def close(self) -> None:
        """Ends the session, and with it every hold; all waits end with ClientClosed, as do later calls. May be called
        again.

        Waits for the server's confirmation, and for ``on_event`` to be told, but 2 seconds at most. Where the task is
        cancelled meanwhile, the client is still closed. In the child of a fork it does nothing: the session belongs to
        the parent.
        """
        if self._post is not None and self._post.is_parents():
            return
        if self._ended is None and self._post is not None:
            self._begin_to_end(self._post)
        self._stage = _Stage.CLOSED
        if self._ended is not None:
            await asyncio.shield(self._ended)

    def _begin_to_end(self, post: Post) -> None:
        if self._native is None:
            post.start()
            post.give_up(ClientClosed(_CLOSED_MEANWHILE))
        else:
            self._ended = post.close(self._native)

    def _is_closed(self) -> bool:
        return self._stage is _Stage.CLOSED

    def _connected(self) -> native.Client:
        """For its locks."""
        return self._open()[0]

    def _open(self) -> tuple[native.Client, Post]:
        if self._native is not None and self._post is not None:
            return self._native, self._post
        if self._is_closed():
            raise ClientClosed("this client was closed")
        raise RuntimeError(
            "this client is not connected yet: use it in an 'async with' block, or await its connect() before"
        )

    async def __aenter__(self) -> Self:
        """Connects, and raises what ``connect()`` raises."""
        return await self.connect()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes. An exception of the block is not masked."""
        try:
            await self.close()
        except Error as error:
            add_to(exc_value, "closing the client", error)

    def __del__(self) -> None:
        if getattr(self, "_native", None) is not None and self._stage is _Stage.OPEN and self._lives():
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=1, source=self)

    def _lives(self) -> bool:
        """It is this process's, and the interpreter has not closed it at its end."""
        try:
            return self.state is not ClientState.CLOSED
        except Error:
            return False

    def __repr__(self) -> str:
        if self._native is not None:
            return repr(self._native).replace("<zklock.", "<zklock.aio.", 1)
        return f"<zklock.aio.Client {self._servers!r} {self.state.name}>"


def _locks(locks: Iterable[Lock]) -> tuple[Lock, ...]:
    expected = 'locks: expected locks of zklock.aio, like [client.mutex("/a")], not'
    try:
        faces = tuple(locks)
    except TypeError:
        raise TypeError(f"{expected} {type(locks).__name__}") from None
    for lock in faces:
        if not isinstance(lock, Lock):
            hint = "; take its .read or .write" if isinstance(lock, RwLock) else ""
            raise TypeError(f"{expected} {type(lock).__name__}{hint}")
    return faces
