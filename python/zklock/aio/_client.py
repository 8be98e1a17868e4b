"""The class ``zklock.aio.Client``. No method may block the event loop, except ``from_file()``."""

from __future__ import annotations

import asyncio
import warnings
from enum import Enum
from typing import TYPE_CHECKING, overload

from zklock._errors import ClientClosed, Error, InvalidType
from zklock._states import ClientState
from zklock._work import aio_terms
from zklock._zklock import _semaphore_nowait, _Settings
from zklock.aio._events import EventStream
from zklock.aio._locks import Hold, Lock, MultiLock, Mutex, RwLock, SemaphoreMutex, end_block, listen
from zklock.aio._loop_bridge import LoopBridge
from zklock.aio._semaphore import Semaphore
from zklock.aio._uncopyable import Uncopyable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
    from os import PathLike
    from types import TracebackType

    from typing_extensions import Self

    from zklock import _zklock as native
    from zklock._events import Event
    from zklock._metrics import Metrics
    from zklock._once import PastRun
    from zklock._queue import Participant
    from zklock._zklock import Listener


_CLOSED_MEANWHILE = "this client was closed while it connected"


class _ConnectPhase(Enum):
    NEW = 0
    CONNECTING = 1
    OPEN = 2
    CLOSED = 3


class Client(Uncopyable):
    """A client for an event loop. The client has one ZooKeeper session. Any number of locks and tasks may share the
    client.

    A client connects at the beginning of an ``async with`` block, or when the program awaits ``client.connect()``. The
    client belongs to the event loop in which it connects. The arguments are the same as for ``zklock.Client``.
    ``servers`` is a connect string such as ``"host:2181,host:2181/chroot"``. All durations are in seconds, as an int or
    a float. The other arguments are:

    * ``session_timeout``: the servers end the session if they receive no message from the client for this time. The
      servers may choose a different timeout. None means 10 s.
    * ``connect_timeout``: the time limit for connecting. None means 10 s.
    * ``lease_margin``: the session lease is shorter than the session timeout by at least this time. By default,
      ``lease_margin`` is a third of the negotiated session timeout.
    * ``auth``: pairs of scheme and credentials, for instance ``[("digest", "user:password")]``. Instead of the
      credentials, a pair can contain a callable that returns the credentials as bytes or str. The library calls the
      callable before each attempt to connect, on a separate daemon thread and not on the thread of the event loop; see
      ``zklock.Client``.
    * ``wait_for_kazoo``: if True, mutexes and read/write locks of this client wait in one queue with kazoo's locks on
      the same path; see ``zklock.Client``.
    * ``on_event``: a callback for events. The event loop calls the callback with a ClientEvent for every change in the
      state of the session, and with a LockEvent for every change in the state of a hold. The documentation of
      ``on_event()`` describes the rules for callbacks.
    * ``options``: a mapping of option names to values; see ``zklock.Client``. ``from_file()`` reads options from a
      file.

    The constructor raises ValueError or TypeError for wrong arguments.

    Coroutines and ``events()`` raise RuntimeError outside the event loop in which the client connected. Any thread may
    call any other method of the client. In a forked child process, every method except ``close()`` raises Forked. The
    child process must make a new client. If the program does not close a client, the library closes the client when the
    object is garbage-collected or the interpreter ends. When an open client is garbage-collected, the library issues a
    ResourceWarning.
    """

    def __init__(
        self,
        servers: str,
        *,
        session_timeout: float | None = None,
        connect_timeout: float | None = None,
        lease_margin: float | None = None,
        auth: Iterable[tuple[str, bytes | str | Callable[[], bytes | str]]] = (),
        wait_for_kazoo: bool = False,
        on_event: Callable[[Event], object] | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self._phase = _ConnectPhase.NEW
        self._native: native.Client | None = None
        self._bridge: LoopBridge | None = None
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
        self._servers = servers
        if on_event is not None and not callable(on_event):
            raise InvalidType(f"on_event: expected a callable or None, not {type(on_event).__name__}")
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
        auth: Iterable[tuple[str, bytes | str | Callable[[], bytes | str]]] = (),
        wait_for_kazoo: bool = False,
        on_event: Callable[[Event], object] | None = None,
        options: Mapping[str, str] | None = None,
    ) -> Self:
        """Return a client with options from a file; see ``zklock.Client.from_file()``. The call blocks the calling
        thread while it reads the file.

        ``from_file()`` raises the same errors as the constructor of ``Client``, and also raises ValueError if the file
        cannot be read or a line is wrong.
        """
        # The constructor checks the arguments before ``from_file()`` reads the file. If an argument and the file are
        # both wrong, the error names the argument.
        client = cls(
            servers,
            session_timeout=session_timeout,
            connect_timeout=connect_timeout,
            lease_margin=lease_margin,
            auth=auth,
            wait_for_kazoo=wait_for_kazoo,
            on_event=on_event,
            options=options,
        )
        client._settings = client._settings.with_file(file)
        return client

    async def connect(self) -> Self:
        """Connect, and return the client itself. The call waits for the session to begin, but no longer than
        ``connect_timeout``. If the client is already connected, the call does nothing.

        Raises ConnectionLost if no server answers within ``connect_timeout``, and AuthFailed if a server refuses the
        credentials. After ConnectionLost or AuthFailed, the program may call ``connect()`` again. Raises ClientClosed
        if the client was closed, Unsupported in an event loop without ``add_reader()``, and RuntimeError while another
        task connects the client. If the task is cancelled just after a server has established the session, the session
        may remain on the server until the session timeout passes.
        """
        if self._phase is _ConnectPhase.CONNECTING:
            raise RuntimeError("another task is connecting this client")
        if self._phase is _ConnectPhase.CLOSED:
            raise ClientClosed("this client was closed; make another client")
        if self._bridge is not None:
            self._bridge.queue_for_call()
            return self
        self._bridge = bridge = LoopBridge(self._on_event)
        self._phase = _ConnectPhase.CONNECTING
        try:
            client = await bridge.connect(self._settings)
            if self._is_closed():
                raise ClientClosed(_CLOSED_MEANWHILE)
        except BaseException:
            if self._phase is _ConnectPhase.CONNECTING:
                self._phase = _ConnectPhase.NEW
            self._bridge = None
            bridge.finish()
            raise
        self._native, self._phase = client, _ConnectPhase.OPEN
        return self

    def events(self) -> EventStream:
        """Return a stream of all later events of the client, for use in ``async for``.

        The iteration ends when the client is closed. Any number of tasks may call ``events()``, and each call returns a
        separate stream. A slow task is still notified of the loss of every hold; see ``EventStream``. Raises
        RuntimeError before the client is connected.

        Example::

            async for event in client.events():
                if isinstance(event, zklock.LockEvent) and event.state is zklock.LockState.LOST:
                    ...
        """
        if self._is_closed() and self._bridge is None:
            raise ClientClosed("this client was closed before it connected")
        client, bridge = self._require_connected()
        bridge.queue_for_call()
        stream = EventStream(self, bridge)
        bridge.add_stream(client, stream)
        return stream

    def on_event(self, callback: Callable[[Event], object]) -> Listener:
        """Add a callback for every later change in the state of the session or of a hold, and return a Listener.
        ``stop()`` of the Listener removes the callback. The argument of the callback is a ClientEvent or a LockEvent.

        The event loop calls the callback once for each event, in the order in which the changes happened. The loop
        treats the callback like a function that the program has passed to ``loop.call_soon()``. If a callback raises an
        exception, the loop's exception handler receives the exception. If the callback is a coroutine function, each
        event starts a task, and the tasks begin in the order of the events. Each call of a callback runs in a copy of
        the context that the task had when it connected the client, so the callback reads the context variables
        (``contextvars``) of that task. If the loop is busy, the client may merge
        events; see ``zklock.Client``. A client may have any number of callbacks. Raises RuntimeError before the client
        is connected. To receive the first events of a client, pass ``on_event`` to the constructor.
        """
        client, bridge = self._require_connected()
        return listen(client, bridge, callback)

    def mutex(
        self, path: str, *, timeout: float | None = None, data: bytes | None = None, local_handover: int = 0
    ) -> Mutex:
        """Make a re-entrant mutex on a path, like Curator's ``InterProcessMutex``. The method sends nothing to a
        server.

        A ``async with`` block, and a call of ``acquire()`` or ``hold()`` without the argument ``timeout``, waits for
        the mutex for at most ``timeout`` seconds, or without limit if ``timeout`` is None. ``data`` is the content of
        each node that the mutex creates. If ``data`` is None, the nodes contain the address of this host, as in
        Curator. ``local_handover`` is the maximum number of consecutive local hand-overs between tasks of this process;
        see ``Lock.set_local_handover()``. Raises ValueError for a path that ZooKeeper does not accept, and ClientClosed
        if the client is closed.
        """
        client, bridge = self._require_connected()
        return Mutex(self, bridge, client.mutex(path, timeout=timeout, data=data, local_handover=local_handover))

    def lead(self, path: str, *, data: bytes | None = None) -> AsyncGenerator[Hold, None]:
        """Lead other processes: yield a Hold for each term of this process as the leader on ``path``. ::

            for term in client.lead("/leader"):
                while term.is_held:
                    work(fence=term.token)

        Only one process leads at a time. Each step of the loop waits without limit until this process is the leader,
        and then yields the Hold of a mutex on the path. The next step, ``break``, and an exception end the term: the
        library releases the Hold, or forgets the Hold if the leadership was lost, and another process may lead.
        ``data`` has the same meaning as for ``mutex()``. The iteration ends when the client is closed. Use the iterator
        in one task.
        """
        return aio_terms(self.mutex(path, data=data))

    def semaphore_mutex(self, path: str, *, timeout: float | None = None, data: bytes | None = None) -> SemaphoreMutex:
        """Make a mutex that is not re-entrant and that any task may release, like Curator's
        ``InterProcessSemaphoreMutex``. The method sends nothing to a server. The arguments have the same meaning as for
        ``mutex()``.
        """
        client, bridge = self._require_connected()
        return SemaphoreMutex(self, bridge, client.semaphore_mutex(path, timeout=timeout, data=data))

    def rwlock(self, path: str, *, timeout: float | None = None, data: bytes | None = None) -> RwLock:
        """Make a read/write lock, like Curator's ``InterProcessReadWriteLock``. The method sends nothing to a server.
        The arguments have the same meaning as for ``mutex()``, and apply to the read lock and to the write lock.
        """
        client, bridge = self._require_connected()
        return RwLock(self, bridge, client.rwlock(path, timeout=timeout, data=data))

    def multi(self, locks: Iterable[Lock | str], *, timeout: float | None = None, in_order: bool = False) -> MultiLock:
        """Make a lock that acquires and releases several locks together, like Curator's ``InterProcessMultiLock``. The
        method sends nothing to a server.

        ``locks`` is an iterable of locks and paths. For each path in ``locks``, the method creates a mutex that belongs
        to this client. Each lock in ``locks`` is a mutex, a semaphore mutex, a read lock, a write lock or another
        multi-lock, and may belong to any client. ``timeout`` has the same meaning as for ``mutex()``. Raises ValueError
        if ``locks`` is empty, or if two locks have the same path.

        Two multi-locks of zklock do not deadlock with each other, even if they list the same locks in different orders.
        A Curator multi-lock acquires its locks one after the other. To avoid a deadlock with a Curator multi-lock, a
        zklock multi-lock leaves its queues and joins them again later. If ``in_order`` is True, the library acquires
        the locks one after the other in the given order, like Curator. Use ``in_order`` if Curator multi-locks use the
        same paths in the same order.
        """
        client, bridge = self._require_connected()
        aio_locks = tuple(self.mutex(lock) if isinstance(lock, str) else lock for lock in _check_locks(locks))
        made = client.multi([lock._native for lock in aio_locks], timeout=timeout, in_order=in_order)
        return MultiLock(self, bridge, made, aio_locks)

    @overload
    def semaphore(
        self, path: str, max_leases: int, *, count_path: None = None, initial: None = None, timeout: float | None = None
    ) -> Semaphore: ...
    @overload
    def semaphore(
        self, path: str, max_leases: None = None, *, count_path: str, initial: int, timeout: float | None = None
    ) -> Semaphore: ...
    def semaphore(
        self,
        path: str,
        max_leases: int | None = None,
        *,
        count_path: str | None = None,
        initial: int | None = None,
        timeout: float | None = None,
    ) -> Semaphore:
        """Make a semaphore on a path, like Curator's ``InterProcessSemaphoreV2``.

        Pass either ``max_leases``, or both ``count_path`` and ``initial``. ``max_leases`` is the number of leases that
        the semaphore can grant at the same time. All programs that use the semaphore must pass the same ``max_leases``.
        ``count_path`` is the path of a shared count (see ``shared_count_set()`` and Curator's ``SharedCount``). With
        ``count_path``, the number of leases is always the current value of the shared count. If the shared count does
        not exist, the library creates the count with the value ``initial`` before the first call acquires leases. If a
        program lowers the shared count, leases that are already held stay valid. A call of ``acquire()`` without the
        argument ``timeout`` waits for at most ``timeout`` seconds, or without limit if ``timeout`` is None.

        The call does not wait. If the library cannot create the shared count, later calls of ``acquire()`` raise the
        error. Raises TypeError for a wrong combination of arguments.
        """
        client, bridge = self._require_connected()
        made = _semaphore_nowait(client, path, max_leases, count_path=count_path, initial=initial, timeout=timeout)
        return Semaphore(self, bridge, made)

    async def shared_count_get(self, path: str) -> int:
        """Return the value of a shared count, like Curator's ``SharedCount``.

        The call waits for at most the session timeout. Raises ServerError if the count does not exist, and ValueError
        if the node does not contain a count. Raises ConnectionLost if no server answers within the session timeout.
        """
        client, bridge = self._require_connected()
        return await bridge.wait(bridge.queue_for_call().shared_count_get(client, path))

    async def shared_count_set(self, path: str, value: int) -> None:
        """Set a shared count to a value from -2147483648 to 2147483647. If the shared count does not exist, the call
        creates the count.

        The call waits for at most the session timeout. If the task is cancelled during the wait, the shared count may
        have the old value or the new value.
        """
        client, bridge = self._require_connected()
        await bridge.wait(bridge.queue_for_call().shared_count_set(client, path, value))

    async def past_runs(self, path: str) -> list[PastRun]:
        """Return the last runs of the job of a lock, from the newest to the oldest, as a list of PastRun. The record
        contains at most ten runs. ``Hold.once_per()`` and the command ``zklock run --once-per`` write the record.

        The call waits for at most the session timeout. Raises ValueError if the node of the record contains other data,
        and ConnectionLost if no server answers within the session timeout.
        """
        client, bridge = self._require_connected()
        return await bridge.wait(bridge.queue_for_call().past_runs(client, path))

    async def fence_check(self, path: str, token: int) -> bool:
        """Ask the ensemble whether a fencing token belongs to a current holder of the lock on a path. Return True if
        any client holds the lock with this token.

        The path may belong to a mutex, a read/write lock, a semaphore, a semaphore mutex, or a member lock of a
        multi-lock. The holder may use zklock or Curator, and may be one of several readers. ``fence_check()`` returns
        False for the token of a waiter, and for a path that does not exist.

        The result was correct at some moment during the call, even if the client's server lags behind the other
        servers. The result may already be outdated when the call returns, so a store must still compare tokens. To
        check a hold of this client, read ``is_held``, which sends no request.

        The call waits for at most the session timeout. Raises ValueError for a token below 1, and ConnectionLost if no
        server answers within the session timeout.
        """
        client, bridge = self._require_connected()
        return await bridge.wait(bridge.queue_for_call().fence_check(client, path, token))

    async def revoke(self, node: Participant | str) -> None:
        """Ask the owner of a node to release the lock, like Curator's ``Revoker``. ``node`` is a Participant or the
        path of a node.

        An owner receives the request only if the owner has called ``set_revocable()``. The owner decides whether to
        release the lock. If the node does not exist, the call succeeds, because the lock was already released. The call
        waits for at most the session timeout. If the task is cancelled during the wait, the owner of the node may still
        receive the request.
        """
        client, bridge = self._require_connected()
        await bridge.wait(bridge.queue_for_call().revoke(client, node))

    def set_servers(self, servers: str) -> None:
        """Replace the server list. ``servers`` is a connect string, with or without the client's chroot. The client's
        chroot does not change.

        The client keeps its session, all holds, and the queue positions of all waiters. The client stays connected to
        its server, except in two cases. If the new list does not contain the client's current server, the client
        connects to a server from the new list. If the new list is longer than the old list, some clients connect to an
        added server, so that each server has about the same number of clients. While a client connects to another
        server, its holds are SUSPENDED. A hold is lost only if the client reaches no server of the new list before the
        session ends.

        Raises ValueError if the list is not valid or contains a different chroot, and ClientClosed if the client is
        closed.
        """
        client, _ = self._require_connected()
        client.set_servers(servers)
        _, slash, chroot = self._servers.partition("/")
        self._servers = servers if "/" in servers else f"{servers}{slash}{chroot}"

    def metrics(self) -> Metrics:
        """Return a Metrics object. The object contains counters, histograms and gauges about the activity and the
        current state of the client.

        ``metrics()`` sends no request, and also works after the session is lost or the client is closed.
        """
        return self._require_native().metrics()

    def prometheus(self, labels: Mapping[str, str] | None = None) -> str:
        """Return ``metrics()`` in the Prometheus text format (exposition format, version 0.0.4).

        Serve the text as ``text/plain; version=0.0.4``. The method adds ``labels`` to every sample, so that a program
        can distinguish its clients. Raises ValueError for label names that Prometheus does not accept, or that the
        metrics of zklock already use.
        """
        return self._require_native().prometheus(labels)

    @property
    def state(self) -> ClientState:
        """The state of the session, a ClientState."""
        if self._native is not None:
            return self._native.state
        return ClientState.CLOSED if self._is_closed() else ClientState.CONNECTING

    @property
    def session_id(self) -> int:
        """The id of the session, or 0 if the client has no session. After a session has expired, the next session has a
        different id.
        """
        return 0 if self._native is None else self._native.session_id

    async def close(self) -> None:
        """End the session and all holds. Calls that are waiting raise ClientClosed. Later calls that need the session
        also raise ClientClosed.

        The call waits for at most 2 seconds until the server has confirmed the end of the session and ``on_event`` has
        received the last event. If the task is cancelled during the wait, the library still closes the client. A
        program may call ``close()`` several times. If the event loop of the client has ended, the program may call
        ``close()`` in any other event loop. In a forked child process, ``close()`` does nothing, because the session
        belongs to the parent.
        """
        if self._bridge is not None and self._bridge.is_forked():
            return
        if self._bridge is not None and self._native is not None and self._bridge.has_loop_ended():
            self._phase = _ConnectPhase.CLOSED
            self._bridge.held_locks.clear()
            await asyncio.get_running_loop().run_in_executor(None, self._native.close)
            return
        if self._ended is None and self._bridge is not None:
            self._start_close(self._bridge)
        self._phase = _ConnectPhase.CLOSED
        if self._ended is not None:
            await asyncio.shield(self._ended)

    def _start_close(self, bridge: LoopBridge) -> None:
        if self._native is None:
            bridge.queue_for_call()
            bridge.fail_waiters(ClientClosed(_CLOSED_MEANWHILE))
        else:
            self._ended = bridge.close_client(self._native)
        bridge.held_locks.clear()

    def _is_closed(self) -> bool:
        return self._phase is _ConnectPhase.CLOSED

    def _require_native(self) -> native.Client:
        """Return the native client, which the locks use."""
        return self._require_connected()[0]

    def _require_connected(self) -> tuple[native.Client, LoopBridge]:
        if self._native is not None and self._bridge is not None:
            return self._native, self._bridge
        if self._is_closed():
            raise ClientClosed("this client was closed")
        raise RuntimeError(
            "this client is not connected yet; use it in an 'async with' block, or await its connect() first"
        )

    async def __aenter__(self) -> Self:
        """Connect the client. The errors are the same as for ``connect()``."""
        return await self.connect()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the client. If the block raised an exception and ``close()`` fails too, the exception of the block
        propagates, with a note about the failed close. If Python closes a generator during the block, Python discards
        this exception, so the method also logs the failed close.
        """
        try:
            await self.close()
        except Error as error:
            end_block(exc_value, "closing the client", None, False, error)

    def __del__(self) -> None:
        if getattr(self, "_native", None) is not None and self._phase is _ConnectPhase.OPEN and self._is_unclosed():
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=1, source=self)

    def _is_unclosed(self) -> bool:
        """Return whether the client belongs to this process and is not closed. At the end of the interpreter, the
        library has closed all clients, so the function returns False.
        """
        try:
            return self.state is not ClientState.CLOSED
        except Error:
            return False

    def __repr__(self) -> str:
        if self._native is not None:
            return repr(self._native).replace("<zklock.", "<zklock.aio.", 1)
        return f"<zklock.aio.Client {self._servers!r} {self.state.name}>"


def _check_locks(locks: Iterable[Lock | str]) -> tuple[Lock | str, ...]:
    expected = 'locks: expected paths and locks of zklock.aio, like ["/a", client.mutex("/b")], not'
    if isinstance(locks, str):
        raise InvalidType(f"{expected} one path, {locks!r}")
    try:
        iterator = iter(locks)
    except TypeError:
        raise InvalidType(f"{expected} {type(locks).__name__}") from None
    locks_and_paths = tuple(iterator)
    for lock in locks_and_paths:
        if not isinstance(lock, (Lock, str)):
            hint = "; use its .read or .write" if isinstance(lock, RwLock) else ""
            raise InvalidType(f"{expected} {type(lock).__name__}{hint}")
    return locks_and_paths
