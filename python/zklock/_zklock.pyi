"""Types of the native module of zklock. scripts/stubs.py copies the docstrings from the compiled module."""

from collections.abc import Callable, Generator, Iterable, Mapping
from os import PathLike
from types import TracebackType
from typing import Any, Generic, Literal, TypeVar, final, overload

from typing_extensions import Self, disjoint_base

from zklock._events import Event, LockEvent
from zklock._metrics import Metrics
from zklock._once import PastRun
from zklock._queue import Participant, Waiting
from zklock._states import ClientState, LockState
from zklock.aio import Client as AioClient

__all__ = [
    "Client",
    "Hold",
    "Leases",
    "Listener",
    "Lock",
    "MultiLock",
    "Mutex",
    "OncePer",
    "ReadLock",
    "Run",
    "RwLock",
    "Semaphore",
    "SemaphoreMutex",
    "Session",
    "StandaloneServer",
    "WriteLock",
    "_Busy",
    "_CompletionQueue",
    "_Op",
    "_Settings",
    "_TaskLock",
    "__version__",
    "_check_interpreter",
    "_close_all",
    "_listen",
    "_main",
    "_next_call",
    "_report_unraisable",
    "_semaphore_nowait",
    "_set_revocable",
    "_statuses",
    "_timeout",
]

_T = TypeVar("_T", covariant=True)

__version__: str

@final
class Client:
    """A client has one ZooKeeper session. Any number of locks and threads may share the client.

    ``servers`` is a connect string such as ``"host:2181,host:2181/chroot"``. All durations are in seconds, as an int or
    a float. The other arguments are:

    * ``session_timeout``: the servers end the session if they receive no message from the client within this time. The
      servers may choose a different timeout. None means 10 s.
    * ``connect_timeout``: the time limit for the constructor to connect. None means 10 s.
    * ``lease_margin``: the session lease is shorter than the session timeout by at least this time. By default,
      ``lease_margin`` is a third of the negotiated session timeout.
    * ``auth``: pairs of scheme and credentials, for instance ``[("digest", "user:password")]``. Instead of the
      credentials, a pair can contain a callable that takes no arguments and returns the credentials as bytes or str.
      Before each attempt to connect, the library calls the callable on a separate daemon thread. The callable may
      block, but must not wait for a lock. If the callable raises an exception before the first connection, the
      constructor raises AuthFailed with the text of the exception. If the callable raises an exception later, the
      client tries again.
    * ``wait_for_kazoo``: if True, mutexes and read/write locks of this client wait in one queue with kazoo's locks on
      the same path. If False, and the option ``locks.wait_for_kazoo`` is not set either, a call that acquires a mutex
      or a read/write lock raises ForeignContender if a kazoo lock uses the path. ``wait_for_kazoo`` is for programs
      that migrate from kazoo to zklock. The kazoo program must also configure its locks to wait for the nodes of
      zklock. On the path of a mutex, a kazoo lock needs ``extra_lock_patterns=["-lock-"]``. On the path of a read/write
      lock, a kazoo lock needs ``extra_lock_patterns=["__READ__", "__WRIT__"]``.
    * ``on_event``: a callback for events. The library calls the callback with a ClientEvent whenever the session
      changes state, and with a LockEvent whenever a hold changes state.
    * ``options``: a mapping of option names to values, for instance ``{"session.timeout": "5000"}``. The page
      ``docs/options.md`` lists all options. If ``options`` and another argument set the same option, the other argument
      takes precedence. ``from_file()`` reads options from a file.

    The constructor waits for the session to begin, but no longer than ``connect_timeout``. Ctrl-C interrupts the wait.
    The constructor raises ConnectionLost if no server answers within ``connect_timeout``, and AuthFailed if a server
    refuses the credentials. The constructor raises ServerError if the chroot does not exist (see the ``chroot.create``
    option), and ValueError or TypeError for wrong arguments. The constructor also raises ValueError if it cannot read a
    file with credentials (see the ``auth.digest_file`` option).

    The library's daemon thread calls the callbacks of ``on_event`` and ``set_revocable()``. If a client has a loss in
    its queue while this thread is busy, a second daemon thread calls the callbacks of this client. The callbacks of one
    client run one at a time. The callback receives events in the order in which the changes happened. If the states of
    a hold and of the session change at the same moment, the callback receives the event of the hold first. If a
    callback raises an exception, the library passes the exception to ``sys.unraisablehook``.

    A callback must not wait for a lock, for leases or for a loss. While a callback waits, the client may be unable to
    deliver the event that would end the wait. In a callback, ``wait_lost()`` and every call that acquires a lock or
    leases therefore raise Deadlock, unless the timeout is 0. A callback may call every method that does not wait for a
    lock, for leases or for a loss.

    While a callback runs, later events wait in a queue. If about a thousand events wait in the queue, the client merges
    any further events of each hold. The client also merges any further events of the session. Merged events still
    report the last state of every hold, and the loss of every lost hold. If several sessions are lost one after the
    other, merged events may report only one of these losses. ``close()`` waits at most 2 seconds for the delivery of
    the last events. After a client and all its locks, semaphores and leases are garbage-collected without ``close()``,
    its callbacks receive no more events. The thread that drops the last of these objects may wait up to 2 seconds for
    the server. The interpreter can end even if a callback does not return.

    The session ends when the program calls ``close()``, at the end of a ``with`` block, when the client and all its
    locks are garbage-collected, or when the interpreter ends (``atexit``). The methods may be called from any thread.
    In a forked child process, every method except ``close()`` raises Forked. The child process must make a new client.
    """
    def __new__(
        cls,
        servers: str,
        *,
        session_timeout: float | None = None,
        connect_timeout: float | None = None,
        lease_margin: float | None = None,
        auth: Iterable[tuple[str, bytes | str | Callable[[], bytes | str]]] = (),
        wait_for_kazoo: bool = False,
        on_event: Callable[[Event], object] | None = None,
        options: Mapping[str, str] | None = None,
    ) -> Self: ...
    @staticmethod
    def from_file(
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
    ) -> Client:
        """Make a client with options from a file. The file contains at most 64 KiB of UTF-8 text, with one ``name =
        value`` on each line.

        The method ignores empty lines, and lines that begin with ``#``. The keyword arguments are the same as for
        ``Client``, and take precedence over the file. ``from_file()`` waits at most ``connect_timeout`` until the
        session begins, and raises the same errors as the constructor of ``Client``. ``from_file()`` also raises
        ValueError if the file cannot be read or a line is wrong.
        """
    def mutex(
        self, path: str, *, timeout: float | None = None, data: bytes | None = None, local_handover: int = 0
    ) -> Mutex:
        """Make a re-entrant mutex on a path, like Curator's ``InterProcessMutex``. The method sends nothing to a
        server.

        A ``with`` block, and a call of ``acquire()`` or ``hold()`` without the argument ``timeout``, waits for the
        mutex for at most ``timeout`` seconds, or without limit if ``timeout`` is None. ``data`` is the content of each
        node that the mutex creates. If ``data`` is None, the nodes contain the address of this host, as in Curator.
        ``local_handover`` is the maximum number of consecutive local hand-overs between threads of this process; see
        ``Lock.set_local_handover()``. Raises ValueError for a path that ZooKeeper does not accept, and ClientClosed if
        the client is closed.
        """
    def lead(self, path: str, *, data: bytes | None = None) -> Generator[Hold]:
        """Lead other processes: yield a Hold for each term of this process as the leader on ``path``. ::

            for term in client.lead("/leader"):
                while term.is_held:
                    work(fence=term.token)

        Only one process leads at a time. Each step of the loop waits without limit until this process is the leader,
        and then yields the Hold of a mutex on the path. The next step, ``break``, and an exception end the term: the
        library releases the Hold, or forgets the Hold if the leadership was lost, and another process may lead.
        ``data`` has the same meaning as for ``mutex()``. The iteration ends when the client is closed. Use the iterator
        in one thread.
        """
    def semaphore_mutex(self, path: str, *, timeout: float | None = None, data: bytes | None = None) -> SemaphoreMutex:
        """Make a mutex that is not re-entrant and that any thread may release, like Curator's
        ``InterProcessSemaphoreMutex``. The method sends nothing to a server. The arguments have the same meaning as for
        ``mutex()``.
        """
    def rwlock(self, path: str, *, timeout: float | None = None, data: bytes | None = None) -> RwLock:
        """Make a read/write lock, like Curator's ``InterProcessReadWriteLock``. The method sends nothing to a server.
        The arguments have the same meaning as for ``mutex()``, and apply to the read lock and to the write lock.
        """
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
    @overload
    def semaphore(
        self, path: str, max_leases: int, *, count_path: None = None, initial: None = None, timeout: float | None = None
    ) -> Semaphore:
        """Make a semaphore on a path, like Curator's ``InterProcessSemaphoreV2``.

        Pass either ``max_leases``, or both ``count_path`` and ``initial``. ``max_leases`` is the number of leases that
        the semaphore can grant at the same time. All programs that use the semaphore must pass the same ``max_leases``.
        ``count_path`` is the path of a shared count (see ``shared_count_set()`` and Curator's ``SharedCount``). With
        ``count_path``, the number of leases is always the current value of the shared count. If the shared count does
        not exist, the call creates the count with the value ``initial``. If a program lowers the shared count, leases
        that are already held stay valid. A call of ``acquire()`` without the argument ``timeout`` waits for at most
        ``timeout`` seconds, or without limit if ``timeout`` is None.

        With ``max_leases``, the call sends nothing to a server. With ``count_path``, the call blocks for at most the
        session timeout, and Ctrl-C interrupts the call. Raises ConnectionLost if no server answers within the session
        timeout, and TypeError for a wrong combination of arguments.
        """
    @overload
    def semaphore(
        self, path: str, max_leases: None = None, *, count_path: str, initial: int, timeout: float | None = None
    ) -> Semaphore:
        """Make a semaphore on a path, like Curator's ``InterProcessSemaphoreV2``.

        Pass either ``max_leases``, or both ``count_path`` and ``initial``. ``max_leases`` is the number of leases that
        the semaphore can grant at the same time. All programs that use the semaphore must pass the same ``max_leases``.
        ``count_path`` is the path of a shared count (see ``shared_count_set()`` and Curator's ``SharedCount``). With
        ``count_path``, the number of leases is always the current value of the shared count. If the shared count does
        not exist, the call creates the count with the value ``initial``. If a program lowers the shared count, leases
        that are already held stay valid. A call of ``acquire()`` without the argument ``timeout`` waits for at most
        ``timeout`` seconds, or without limit if ``timeout`` is None.

        With ``max_leases``, the call sends nothing to a server. With ``count_path``, the call blocks for at most the
        session timeout, and Ctrl-C interrupts the call. Raises ConnectionLost if no server answers within the session
        timeout, and TypeError for a wrong combination of arguments.
        """
    def shared_count_get(self, path: str) -> int:
        """Return the value of a shared count, like Curator's ``SharedCount``.

        The call blocks for at most the session timeout, and Ctrl-C interrupts the call. Raises ServerError if the count
        does not exist, and ValueError if the node does not contain a count. Raises ConnectionLost if no server answers
        within the session timeout.
        """
    def shared_count_set(self, path: str, value: int) -> None:
        """Set a shared count to a value from -2147483648 to 2147483647. If the shared count does not exist, the call
        creates the count.

        The call blocks for at most the session timeout, and Ctrl-C interrupts the call. If Ctrl-C interrupts the call,
        the shared count may have the old value or the new value.
        """
    def past_runs(self, path: str) -> list[PastRun]:
        """Return the last runs of the job of a lock, from the newest to the oldest, as a list of PastRun. The record
        contains at most ten runs. ``Hold.once_per()`` and the command ``zklock run --once-per`` write the record.

        The call blocks for at most the session timeout, and Ctrl-C interrupts the call. Raises ValueError if the node
        of the record contains other data, and ConnectionLost if no server answers within the session timeout.
        """
    def fence_check(self, path: str, token: int) -> bool:
        """Ask the ensemble whether a fencing token belongs to a current holder of the lock on a path. Return True if
        any client holds the lock with this token.

        The path may belong to a mutex, a read/write lock, a semaphore, a semaphore mutex, or a member lock of a
        multi-lock. The holder may use zklock or Curator, and may be one of several readers. ``fence_check()`` returns
        False for the token of a waiter, and for a path that does not exist.

        The result was correct at some moment during the call, even if the client's server lags behind the other
        servers. The result may already be outdated when the call returns, so a store must still compare tokens. To
        check a hold of this client, read ``is_held``, which sends no request.

        The call blocks for at most the session timeout, and Ctrl-C interrupts the call. Raises ValueError for a token
        below 1, and ConnectionLost if no server answers within the session timeout.
        """
    def on_event(self, callback: Callable[[Event], object]) -> Listener:
        """Add a callback for every later change in the state of the session or of a hold, and return a Listener. The
        Listener's ``stop()`` method removes the callback. The argument of the callback is a ClientEvent or a LockEvent.

        The documentation of ``Client`` describes the rules for callbacks. A client may have any number of callbacks.
        Does not block.
        """
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
        closed. Does not block.
        """
    def revoke(self, node: Participant | str) -> None:
        """Ask the owner of a node to release the lock, like Curator's ``Revoker``. ``node`` is a Participant or the
        path of a node.

        An owner receives the request only if the owner has called ``set_revocable()``. The owner decides whether to
        release the lock. If the node does not exist, the call succeeds, because the lock was already released. The call
        blocks for at most the session timeout, and Ctrl-C interrupts the call. If Ctrl-C interrupts the call, the owner
        of the node may still receive the request.
        """
    def metrics(self) -> Metrics:
        """Return a Metrics object. The object contains counters, histograms and gauges about the activity and the
        current state of the client.

        ``metrics()`` sends no request, and also works after the session is lost or the client is closed. Does not
        block.
        """
    def prometheus(self, labels: Mapping[str, str] | None = None) -> str:
        """Return ``metrics()`` in the Prometheus text format (exposition format, version 0.0.4).

        Serve the text as ``text/plain; version=0.0.4``. The method adds ``labels`` to every sample, so that a program
        can distinguish its clients. Does not block. Raises ValueError for label names that Prometheus does not accept,
        or that the metrics of zklock already use.
        """
    @property
    def state(self) -> ClientState:
        """The state of the session, a ClientState. Does not block."""
    @property
    def session_id(self) -> int:
        """The id of the session, or 0 if the client has no session. After a session has expired, the next session has a
        different id. Does not block.
        """
    def close(self) -> None:
        """End the session and all holds. Calls that are waiting raise ClientClosed. Later calls that need the session
        also raise ClientClosed.

        The call waits for at most 2 seconds until the server has confirmed the end of the session and ``on_event`` has
        received the last event. A program may call ``close()`` several times. In a forked child process, ``close()``
        does nothing, because the session belongs to the parent.
        """
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Close the client. If the block raised an exception and ``close()`` fails too, the exception of the block
        propagates, with a note about the failed close. If Python closes a generator during the block, Python discards
        this exception, so the method also logs the failed close.
        """

@disjoint_base
class Lock:
    """A lock: a Mutex, SemaphoreMutex, ReadLock, WriteLock or MultiLock. A Client makes locks. All kinds of locks have
    the same methods.

    A lock coordinates the threads of one process in the same way as threads of different processes. Waiters acquire the
    lock in queue order. Any thread may call the methods. In a program with gevent or eventlet, each greenlet counts as
    a thread. Properties such as ``state`` and ``fencing_token`` describe the hold of the calling thread. A property
    whose name ends in ``_in_process`` describes the hold that some thread of the process has through this lock object.

    A hold is safe while the client is sure that the client's session has not expired. The state of a safe hold is HELD
    or SUSPENDED.

    A lock that ``acquire()`` has acquired stays taken until its release or the end of its client, even if the program
    drops the lock object. A Hold refers to its lock object, even after the release of the Hold. When a thread ends, the
    library does not release its holds. After a thread has ended, no other thread can release its holds, except holds of
    a SemaphoreMutex and the holds of Hold objects. A generator that may end on another thread should therefore use
    ``with lock.hold():`` instead of ``with lock:``. The library issues a ResourceWarning, and logs a warning, if a
    thread ends and no other thread can release its hold.

    All methods raise ClientClosed after the client is closed, and raise Forked in a forked child process.
    """
    def acquire(self, *, timeout: float | None = ...) -> bool:
        """Acquire or re-enter the lock for the calling thread. Return True on success, and False if the timeout passes.

        ``timeout`` is a number of seconds. Without this argument, the call uses the ``timeout`` that the program chose
        when it made the lock. With a timeout of None or infinity, the call waits without limit. With a timeout of 0,
        the call makes one attempt and does not wait for other participants. Ctrl-C interrupts the wait. The library
        then removes the node of the interrupted call from the queue.

        Raises ConnectionLost if no server answers within the timeout, Canceled if ``cancel()`` ends the wait, and
        ClientClosed if the client is closed. Raises LockLost if an earlier hold of the thread on this lock object was
        lost, and the thread has not released the lost hold yet. Raises ForeignContender if an incompatible kind of lock
        uses the path. Raises Deadlock if the thread already holds the lock on this path through another lock object, or
        if the thread holds the read lock and tries to acquire the write lock. In a callback, the call raises Deadlock
        unless the timeout is 0. In the hub of gevent or eventlet, the call always raises Deadlock. In a greenlet
        without a hub, the call raises Unsupported unless the timeout is 0.
        """
    def hold(self, *, timeout: float | None = ...) -> Hold:
        """Acquire the lock, and return a Hold. Use the Hold in a ``with`` block, or call ``release()`` of the Hold::

            with lock.hold(timeout=5.0) as hold:
                store.write(value, fence=hold.token)

        The hold belongs to the calling thread, and this thread may re-enter the lock. Any thread may use, watch and
        release the Hold.

        ``timeout`` has the same meaning as for ``acquire()``. Raises LockTimeout if the timeout passes. The other
        errors are the same as for ``acquire()``.
        """
    def try_hold(self) -> Hold | _Busy:
        """Acquire the lock if it is free, and return a Hold. If another participant holds the lock or waits for it,
        return an object that is false. In a ``with`` block, this object stands for None, so the block runs in both
        cases::

            with lock.try_hold() as hold:
                if hold:
                    store.write(value, fence=hold.token)

        The call blocks for at most one second. It raises ConnectionLost if no server answers within this second. The
        other errors are the same as for ``acquire()``.
        """
    def release(self) -> None:
        """Release the lock once for the calling thread. The last release of a hold waits until the server has confirmed
        the removal of the node. The call does not wait if it passes the lock to another thread of this process; see
        ``set_local_handover()``.

        The call blocks for at most the session timeout. Ctrl-C interrupts the wait for the confirmation, but does not
        undo the release. If the thread does not hold the lock, the call raises NotOwner and changes nothing. However, a
        MultiLock releases the member locks that the thread still holds. Raises LockLost if the hold was lost, and
        ConnectionLost if no server confirmed the release within the session timeout. Raises Exhausted if the process
        had no descriptor for a connection. The release takes effect even if the call raises LockLost, ConnectionLost or
        Exhausted.
        """
    def release_nowait(self) -> None:
        """Release the lock once for the calling thread. The call does not block, because the library removes the node
        in the background.

        The method raises NotOwner and LockLost in the same cases as ``release()``.
        """
    def cancel(self) -> None:
        """Cancel all calls that wait for this lock object. The cancelled calls raise Canceled. ``cancel()`` does not
        affect later calls. Does not block.
        """
    def participants(self) -> list[Participant]:
        """Return a list of Participants, in queue order. The list contains the holders and waiters of all processes.

        A read lock's list contains only readers, and a write lock's list contains only writers. ``queue()`` returns
        readers and writers. The list of a multi-lock contains the participants of the first member lock, then those of
        the second member lock, and so on. The call blocks for at most the session timeout, and Ctrl-C interrupts the
        call. Raises ConnectionLost if no server answers within the session timeout.
        """
    def queue(self) -> list[Participant]:
        """Return a list of Participants, in queue order. The list contains both the readers and the writers of a
        read/write lock. If the lock is not part of a read/write lock, ``queue()`` returns the same list as
        ``participants()``.

        The call blocks for at most the session timeout, and Ctrl-C interrupts the call. Raises ConnectionLost if no
        server answers within the session timeout.
        """
    def waiting(self) -> list[Waiting]:
        """Return a list of Waiting objects, one for each call that waits for this lock object. The list follows the
        order in which the calls began. Each Waiting describes what one call waits for.

        The list contains the calls of all threads of this process. A call that waits for a multi-lock appears in the
        list of the multi-lock, but not in the lists of the member locks. The method reports what the client currently
        knows. The method sends no request, and also works without a connection. Does not block.

        The node paths in the list are the same as in ``participants()``, which returns the nodes of all processes. With
        local hand-overs (``set_local_handover()``), several waiting threads share one node. If a thread shares the node
        of another thread, its Waiting has no ``node_path``. ``ahead`` of this Waiting is the path of the shared node.
        """
    def set_data(self, data: bytes | None) -> None:
        """Set the data for the nodes that later calls create. If ``data`` is None, the nodes contain the address of
        this host, as in Curator. For a multi-lock, the method sets the data of all member locks.
        """
    def set_revocable(self, callback: Callable[[str], object] | None) -> None:
        """Set the callback for revocation requests; None removes the callback.

        The library calls ``callback`` when a participant asks for the release of this lock (``Client.revoke()``,
        Curator's ``Revoker``). Requests can arrive while the lock is held, and also while a call waits for the lock.
        The argument of the callback is the path of the node that the request names. The request itself does not release
        the lock; the program decides whether to release the lock.

        The library's daemon threads call the callbacks, for each client one at a time. The callback may notify the
        thread that holds the lock, or call ``cancel()``. If the callback calls a method that waits for a lock, the
        method raises Deadlock. If the callback raises an exception, the library passes it to ``sys.unraisablehook``. A
        client can be closed, and the interpreter can end, even if a callback does not return. The callback remains
        registered until the program sets another callback or None, or until the lock object is garbage-collected. For a
        multi-lock, the method replaces the callback of each member lock.
        """
    def wait_lost(self, timeout: float | None = None) -> bool:
        """Wait until the calling thread's hold is no longer safe, and then return True. Return False if the hold is
        still safe after ``timeout`` seconds.

        The wait ends when the state of the hold becomes UNCERTAIN or LOST, even if the state changes back to HELD
        afterwards. With a timeout of None or infinity, the call waits without limit. With a timeout of 0, the call
        checks the hold once. Ctrl-C interrupts the wait. To watch another thread's hold, call ``wait_lost()`` on the
        Hold that ``hold()`` returned.

        Raises NotOwner if the thread has no hold, or if the hold is released during the wait. Raises ClientClosed if
        the client is closed. In a callback, the call raises Deadlock unless the timeout is 0.
        """
    def on_lost(self, callback: Callable[[LockEvent[Lock]], object]) -> Listener:
        """Add a callback for losses of this lock, and return a Listener. The Listener's ``stop()`` method removes the
        callback.

        The library calls the callback with a LockEvent when a hold of this lock is no longer safe, that is, when the
        state of the hold becomes UNCERTAIN or LOST. If the program closes the client while a thread holds the lock, the
        library calls the callback with an event whose state is FREE. The callback receives events for all threads that
        hold the lock through this lock object. The ``token`` of an event identifies the hold. The callback runs on the
        same thread and under the same rules as the ``on_event`` callback of ``Client``. Add the callback before the
        program acquires the lock, because the callback may receive no events for earlier changes. A lock may have any
        number of callbacks. For a multi-lock, the library calls the callback for each member lock. Does not block.
        """
    def on_event(self, callback: Callable[[LockEvent[Lock]], object]) -> Listener:
        """Add a callback for every change in the state of a hold of this lock, and return a Listener. The callback
        receives a LockEvent for each change. The rules for the callback are the same as for ``on_lost()``.
        """
    def set_local_handover(self, max_passes: int) -> None:
        """Let the threads of this process pass this mutex to each other up to ``max_passes`` times before the library
        removes the mutex's node. The default 0 forbids local hand-overs.

        The setting applies to acquire calls that begin later. If several lock objects of this client have the same path
        and allow local hand-overs, the waiters of all these objects share one node. A local hand-over passes the lock
        to the waiter whose call began first, without a request to a server. Because of local hand-overs, a waiter of
        another process may have to wait for up to ``max_passes`` additional holds. A release passes the lock to a
        waiter of this process only if the state of the hold is HELD and no revocation request has arrived. All holds
        under the shared node have the same fencing token, but different values of ``fencing_pass``. Does not block.
        Raises Unsupported if the lock is not a Mutex, and ValueError for a negative number.
        """
    @property
    def is_held(self) -> bool:
        """Whether the calling thread holds the lock and the hold is safe at this moment. Does not block."""
    @property
    def is_held_in_process(self) -> bool:
        """Whether some thread holds the lock through this lock object and the hold is safe at this moment. Does not
        block.
        """
    @property
    def state(self) -> LockState:
        """The state of the calling thread's hold, a LockState. The state is FREE if the thread has no hold. Does not
        block.
        """
    @property
    def state_in_process(self) -> LockState:
        """The state of the hold that any thread has through this lock object, as a LockState. The state is FREE if no
        thread has a hold. Does not block.
        """
    @property
    def remaining(self) -> float:
        """The number of seconds for which the calling thread's hold stays safe even if no server answers. If the thread
        has no hold, or the hold is not safe, ``remaining`` is zero. Does not block.
        """
    @property
    def fencing_token(self) -> int:
        """The fencing token of the calling thread's hold: an int that grows with every hold of the path. A store that
        compares tokens can refuse writers that have lost the lock. For a read lock that its owner acquired under the
        write lock, send the token of the write lock.

        Does not block. Raises NotOwner if the thread has no hold, even if another thread holds the lock. Raises
        LockLost if the thread's hold was lost.
        """
    @property
    def fencing_pass(self) -> int:
        """The number of local hand-overs that preceded the calling thread's hold under the same fencing token; see
        ``set_local_handover()``. If the hold did not begin with a local hand-over, ``fencing_pass`` is zero. If two
        writes have the same token, a store must also compare the values of ``fencing_pass``.

        Does not block. Raises the same errors as ``fencing_token``.
        """
    @property
    def node_path(self) -> str:
        """The path of the calling thread's node, without the client's chroot. For a multi-lock, this property raises
        AttributeError; use ``node_paths``.

        Does not block. Raises NotOwner if the thread has no hold, and LockLost if the thread's hold was lost.
        """
    @property
    def node_paths(self) -> list[str]:
        """The paths of the calling thread's nodes, as a list. The list of a multi-lock contains a path for each member
        lock, and the list of any other lock contains one path. A ZooKeeper transaction can check that these nodes
        exist. If the lock was lost, a transaction with this check fails. Does not block. Raises the same errors as
        ``node_path``.
        """
    @property
    def path(self) -> str:
        """The lock's path, without the client's chroot. For a multi-lock, this property raises AttributeError; read the
        paths of the member locks in ``locks``.
        """
    def __enter__(self) -> Self:
        """Acquire the lock. The call uses the ``timeout`` that the program chose when it made the lock. Raises
        LockTimeout if the timeout passes. The other errors are the same as for ``acquire()``.
        """
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Release the lock. The errors are the same as for ``release()``, except in one case. If the hold was safe at
        the end of the block and no server confirms the release, the method only logs a warning. If both the block and
        the release fail, the exception of the block propagates, with a note about the failed release. If Python closes
        a generator during the block, Python discards this exception, so the method also logs the failed release.
        """

@final
class Mutex(Lock):
    """A mutex on a path, like Curator's ``InterProcessMutex``. ``Client.mutex()`` makes a Mutex.

    A mutex belongs to the thread that acquired it. The owner of a mutex may re-enter it. The owner must release the
    mutex as many times as it acquired the mutex.
    """

@final
class SemaphoreMutex(Lock):
    """A mutex that is not re-entrant and that any thread may release, like Curator's ``InterProcessSemaphoreMutex``.
    ``Client.semaphore_mutex()`` makes a SemaphoreMutex.

    If a thread already holds a SemaphoreMutex and acquires the lock again, the second call waits until the lock is
    released.
    """

@final
class ReadLock(Lock):
    """The read lock of an RwLock. Several readers may hold the read lock at the same time.

    A hold of the read lock belongs to the thread that acquired the lock, and this thread may re-enter the lock. If a
    thread that holds the read lock tries to acquire the write lock, the call raises Deadlock.
    """

@final
class WriteLock(Lock):
    """The write lock of an RwLock. While one owner holds the write lock, no other owner can acquire the read lock or
    the write lock.

    A hold of the write lock belongs to the thread that acquired the lock, and this thread may re-enter the lock. A
    thread that holds the write lock may also acquire the read lock, and then release the write lock. During such a
    change from the write lock to the read lock, no other writer can acquire the write lock.
    """

@final
class MultiLock(Lock):
    """A lock that acquires and releases several member locks together, like Curator's ``InterProcessMultiLock``.
    ``Client.multi()`` makes a MultiLock.

    The timeout of ``acquire()`` limits the total time for all member locks. If the thread already holds a member lock,
    ``acquire()`` re-enters that member lock. The state of a multi-lock is FREE unless the thread holds all member
    locks. If the thread holds all member locks, the state of the multi-lock is the worst state of its member locks.
    ``release()`` releases every member lock that the thread holds. If the release of one member lock fails,
    ``release()`` still releases the remaining member locks, and then raises the first error.

    If member locks are mutexes, read locks or write locks of the same client, these member locks join their queues in
    one transaction. Member locks that join their queues in one transaction have the same fencing token. Programs that
    list such member locks in different orders do not deadlock. The library acquires semaphore mutexes, and locks of
    different clients, one after the other. This order is the same in all programs that use the same connect strings. If
    the member locks have different fencing tokens, the token of the multi-lock is the smallest token.
    """
    @property
    def locks(self) -> tuple[Lock, ...]:
        """The member locks, as a tuple."""

@final
class Hold:
    """A hold of a lock. ``Lock.hold()`` returns a Hold.

    A Hold ends when the program calls ``release()``, at the end of a ``with`` block, or when the Hold is
    garbage-collected. If a Hold is garbage-collected before its release, the library releases the lock, does not wait
    for the server, and issues a ResourceWarning.

    Any thread may use a Hold, for instance a thread that watches the hold of another thread. ``token``,
    ``fencing_pass``, ``is_lost`` and ``is_held`` also work after the client is closed, and in a forked child process.
    The methods of a Hold, and the properties ``state`` and ``remaining``, raise ClientClosed after the client is
    closed, and raise Forked in a forked child process.
    """
    def release(self) -> None:
        """Release the lock, and wait until the server has confirmed the removal of the node. The call does not wait if
        it passes the lock to another thread of this process; see ``Lock.set_local_handover()``. Any thread may call
        this method.

        The call blocks for at most the session timeout. Ctrl-C interrupts the wait for the confirmation, but does not
        undo the release. Raises NotOwner if the hold was already released, and LockLost if the hold was lost. Raises
        ConnectionLost if no server confirmed the release within the session timeout, and Exhausted if the process had
        no descriptor for a connection. The release takes effect unless the call raises NotOwner. If a member lock of a
        multi-lock was already released, the call releases the other member locks, and then raises NotOwner. The call
        never releases a later hold of a member lock.
        """
    def release_nowait(self) -> None:
        """Release the lock. The call does not block, because the library removes the node in the background. Any thread
        may call this method.

        The method raises NotOwner and LockLost in the same cases as ``release()``.
        """
    def wait_lost(self, timeout: float | None = None) -> bool:
        """Wait until this hold is no longer safe, and then return True. Return False if the hold is still safe after
        ``timeout`` seconds. Any thread may wait.

        The wait ends when the state of the hold becomes UNCERTAIN or LOST, even if the state changes back to HELD
        afterwards. With a timeout of None or infinity, the call waits without limit. With a timeout of 0, the call
        checks the hold once. Ctrl-C interrupts the wait. If the owner has re-entered the lock, the wait continues until
        the owner's last release.

        Raises NotOwner if the hold is released before or during the wait. Raises ClientClosed if the client is closed.
        In a callback, the call raises Deadlock unless the timeout is 0.
        """
    @property
    def lock(self) -> Lock:
        """The lock to which this hold belongs."""
    @property
    def path(self) -> str:
        """The lock's path, without the client's chroot. For a multi-lock, this property raises AttributeError."""
    @property
    def token(self) -> int:
        """The fencing token of this hold: an int that grows with every hold of the path. A store that compares tokens
        can refuse writers that have lost the lock. For a read lock that its owner acquired under the write lock, send
        the token of the write lock. The token of a Hold does not change after a loss or a release.
        """
    @property
    def fencing_pass(self) -> int:
        """The number of local hand-overs under the hold's fencing token before the hold began; see
        ``Lock.set_local_handover()``. If the hold did not begin with a local hand-over, ``fencing_pass`` is zero. If
        two writes have the same token, a store must also compare the values of ``fencing_pass``.
        """
    @property
    def state(self) -> LockState:
        """The state of this hold, a LockState. After a release, the state is FREE. For a multi-lock, the state is FREE
        after the release of any one member lock. Does not block.
        """
    @property
    def remaining(self) -> float:
        """The number of seconds for which this hold stays safe even if no server answers. If the hold is not safe,
        ``remaining`` is zero. Does not block.
        """
    @property
    def is_held(self) -> bool:
        """Whether this hold is safe at this moment. The property is False after the hold is released or lost, and after
        the client is closed. Does not block.
        """
    @property
    def is_lost(self) -> bool:
        """Whether this hold is unsafe and the program has not yet released it. ``is_lost`` is True if the state of the
        hold is UNCERTAIN or LOST, or if the client was closed during the hold. Does not block.
        """
    def check(self) -> None:
        """Raise LockLost if this hold is not safe at this moment, and NotOwner if the hold was released. Call
        ``check()`` between the steps of the work. Does not block.
        """
    def once_per(self, period: str, *, retry_failed: bool = False, zone: str | None = None) -> OncePer:
        """Return a block for the work of a job that runs once in each period. Many programs can start the job, and one
        of them then runs it in each period::

            with lock.hold() as hold, hold.once_per("day", zone="UTC") as run:
                if run is not None:
                    work(fence=hold.token)

        The block receives a Run, or None if the job has already run in this period. The end of the block records that
        the job succeeded. If the block raises an exception, it records that the job failed. The record of runs is the
        data of the node ``<path>-runs``, which the command ``zklock run --once-per`` also uses. For a multi-lock, the
        path is that of its first member lock. The servers write the record only while this hold exists.

        ``period`` is ``minute``, ``hour``, ``day``, ``week``, ``month``, ``@hourly``, ``@daily``, ``@midnight``,
        ``@weekly``, ``@monthly``, or a time in whole seconds such as ``30m`` or ``2h``. ``zone`` is the time zone of
        hours, days, weeks and months, for example ``Europe/Berlin``. None means the zone of this host. By default, a
        run that failed or was interrupted also counts. If ``retry_failed`` is true, the job runs again in this case. A
        run counts as interrupted if its process died or lost the lock. All programs that start the job must use the
        same period, the same zone and the same kind of lock.

        The beginning of the block blocks for at most three times the session timeout, and Ctrl-C interrupts it. The
        library then removes the run from the record. The call raises ValueError if an argument is not valid. The
        beginning of the block raises ValueError if several participants can hold the lock at the same time, for example
        a read lock, or if the node of the record contains other data. It raises LockLost if the hold was lost, NotOwner
        if the program has released it, ForeignContender if the last run still holds another kind of lock on this path,
        and ConnectionLost if no server answered.
        """
    @property
    def _is_released(self) -> bool:
        """Whether ``release()`` or ``release_nowait()`` of this Hold has released the lock."""
    def _check(self) -> None:
        """Raise NotOwner if the hold was released, and LockLost if it was lost."""
    def __enter__(self) -> Self:
        """Return this Hold. Raises NotOwner if the hold was already released, and LockLost if the hold was lost."""
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Release the lock, unless the block has already called ``release()`` of this Hold. The errors are the same as
        for ``release()``, except in one case. If the hold was safe at the end of the block and no server confirms the
        release, the method only logs a warning. If both the block and the release fail, the exception of the block
        propagates, with a note about the failed release. If Python closes a generator during the block, Python discards
        this exception, so the method also logs the failed release.
        """

@final
class OncePer:
    """A block for the work of a job that runs once in each period. ``Hold.once_per()`` returns a OncePer."""
    @property
    def _path(self) -> str | None:
        """The path of the lock, or None for a multi-lock."""
    def __enter__(self) -> Run | None:
        """Begin a run of the job, and return a Run. Return None if the job has already run in this period."""
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Record that the job succeeded. If the block raised an exception, record that the job failed, with the type
        and the text of the exception. If the program has already ended the run, do nothing.

        Raises LockLost if the hold was lost: the run then counts as interrupted. Raises NotOwner if the program has
        already released the hold, ForeignContender if another program has changed the record, and ConnectionLost if no
        server confirmed the record. If the block raised an exception, this exception propagates, with a note about the
        failed record.
        """

@final
class Run:
    """A run of a job that has begun. A block with ``Hold.once_per()`` receives a Run. The end of the block records
    whether the job succeeded.
    """
    def fail(self, how: str) -> None:
        """Record that the job failed, although the block raises no exception. The text says how the job failed, for
        people. The record contains at most the first 1,000 characters of the text. The run has then ended, even if the
        call raises an exception.

        The call blocks for at most three times the session timeout, and Ctrl-C interrupts the call. Raises LockLost if
        the hold was lost: the run then counts as interrupted. Raises ValueError if the run has already ended, NotOwner
        if the program has already released the hold, ForeignContender if another program has changed the record, and
        ConnectionLost if no server confirmed the record.
        """
    @property
    def _has_ended(self) -> bool:
        """Whether the run has ended."""

@final
class RwLock:
    """A read/write lock, like the ``InterProcessReadWriteLock`` of Curator 5.5. ``Client.rwlock()`` makes an RwLock.

    Several readers may hold a read/write lock at the same time, but a writer holds the lock alone. The properties
    ``read`` and ``write`` return the read lock and the write lock, which have the same methods as a mutex. Readers and
    writers wait in one queue, so readers cannot starve writers, and writers cannot starve readers.
    """
    @property
    def read(self) -> ReadLock:
        """The read lock, a ReadLock. The property always returns the same object."""
    @property
    def write(self) -> WriteLock:
        """The write lock, a WriteLock. The property always returns the same object."""
    def queue(self) -> list[Participant]:
        """Return a list of Participants, in queue order. The list contains every reader and writer from every process,
        both holders and waiters.

        The call blocks for at most the session timeout, and Ctrl-C interrupts the call. Raises ConnectionLost if no
        server answers within the session timeout.
        """
    @property
    def path(self) -> str:
        """The lock's path, without the client's chroot."""

@final
class Semaphore:
    """A semaphore, like Curator's ``InterProcessSemaphoreV2``. ``Client.semaphore()`` makes a Semaphore, and
    ``acquire()`` returns Leases.

    Leases do not belong to a thread: any thread may use and release the leases. Any thread may call the methods of a
    semaphore. All methods except ``close()`` raise ClientClosed after the semaphore or its client is closed, and raise
    Forked in a forked child process.
    """
    def acquire(self, quantity: int = 1, *, timeout: float | None = ...) -> Leases:
        """Acquire ``quantity`` leases, and return a Leases object. The call acquires either all ``quantity`` leases or
        no lease. Use the Leases object in a ``with`` block, or call its ``release()`` method.

        ``timeout`` is a number of seconds. Without this argument, the call uses the ``timeout`` that the program chose
        when it made the semaphore. With a timeout of None or infinity, the call waits without limit. With a timeout of
        0, the call makes one attempt and does not wait for other participants. The semaphore serves waiting calls in
        queue order, so a call that requests few leases cannot overtake an earlier call that requests many. Ctrl-C
        interrupts the wait. The library then removes the nodes of the interrupted call from the queue.

        Raises LockTimeout if the timeout passes, and ConnectionLost if no server answers within the timeout. Raises
        Canceled if ``cancel()`` ends the wait, and ClientClosed if the semaphore or its client is closed. Raises
        ValueError if ``quantity`` is greater than ``max_leases``. For a semaphore with a shared count, ``quantity`` may
        be greater than the count; the call then waits until the count is large enough. In a callback, the call raises
        Deadlock unless the timeout is 0. In the hub of gevent or eventlet, the call always raises Deadlock. In a
        greenlet without a hub, the call raises Unsupported unless the timeout is 0.
        """
    def cancel(self) -> None:
        """Cancel all calls that wait for leases of this Semaphore. The cancelled calls raise Canceled. ``cancel()``
        does not affect later calls. Does not block.
        """
    def participants(self) -> list[Participant]:
        """Return a list of the Participants from all processes. The list begins with the held leases, from the oldest
        to the newest. The waiters follow the held leases.

        The call blocks for at most the session timeout, and Ctrl-C interrupts the call. Raises ConnectionLost if no
        server answers within the session timeout.
        """
    def waiting(self) -> list[Waiting]:
        """Return a list of Waiting objects, one for each call that waits for leases of this object; see
        ``Lock.waiting()``. Does not block.
        """
    def set_data(self, data: bytes | None) -> None:
        """Set the data for the nodes that later calls create. If ``data`` is None, the nodes contain the address of
        this host, as in Curator.
        """
    def set_revocable(self, callback: Callable[[str], object] | None) -> None:
        """Set the callback for revocation requests; None removes the callback. If a participant asks for the release of
        a lease, the library calls the callback with the node path of the lease; see ``Lock.set_revocable()``.
        """
    def close(self) -> None:
        """Close the semaphore. Calls that are waiting for leases raise ClientClosed. All later calls also raise
        ClientClosed. Leases that are already held stay valid until their release. A program may call ``close()``
        several times. In a forked child process, ``close()`` does nothing. Does not block.
        """
    @property
    def path(self) -> str:
        """The semaphore's path, without the client's chroot."""

@final
class _Busy:
    """The result of ``Lock.try_hold()`` if the lock is busy. The object is false, and stands for None in a ``with``
    block.
    """

    def __bool__(self) -> Literal[False]: ...
    def __enter__(self) -> None:
        """Return None."""
    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        """Do nothing."""

@final
class Leases:
    """Leases of a semaphore. ``Semaphore.acquire()`` returns a Leases object.

    The library releases all leases of the object together. The release happens when the program calls ``release()``, at
    the end of a ``with`` block, or when the object is garbage-collected. If a Leases object is garbage-collected before
    its release, the library issues a ResourceWarning and does not wait for the server.

    Any thread may use and release the leases. All methods raise ClientClosed after the client is closed, and raise
    Forked in a forked child process.
    """
    def release(self) -> None:
        """Release all leases of this object, and wait until the server has confirmed that their nodes are deleted.

        The call blocks for at most the session timeout. Ctrl-C interrupts the wait for the confirmation, but does not
        undo the release. Raises NotOwner if the leases were already released, and LockLost if one of the leases was
        lost. Raises ConnectionLost if no server confirmed the release within the session timeout, and Exhausted if the
        process had no descriptor for a connection. The release takes effect unless the call raises NotOwner.
        """
    def release_nowait(self) -> None:
        """Release all leases of this object. The call does not block, because the library removes the nodes in the
        background.

        The method raises NotOwner and LockLost in the same cases as ``release()``.
        """
    def wait_lost(self, timeout: float | None = None) -> bool:
        """Wait until at least one of these leases is no longer safe, and then return True. Return False if all leases
        are still safe after ``timeout`` seconds. Any thread may wait.

        The documentation of ``Lock.wait_lost()`` describes the timeout and the errors. Raises NotOwner if the leases
        are released before or during the wait.
        """
    def on_lost(self, callback: Callable[[LockEvent], object]) -> Listener:
        """Add a callback for losses of these leases, and return a Listener; see ``Lock.on_lost()``. Raises NotOwner if
        the leases were already released.
        """
    def on_event(self, callback: Callable[[LockEvent], object]) -> Listener:
        """Add a callback for every change in the state of these leases, and return a Listener; see ``Lock.on_event()``.
        Raises NotOwner if the leases were already released.
        """
    @property
    def quantity(self) -> int:
        """The number of leases. A release does not change ``quantity``."""
    @property
    def is_held(self) -> bool:
        """Whether the leases are held and safe at this moment. Does not block."""
    @property
    def state(self) -> LockState:
        """The state of the leases, a LockState. After a release, the state is FREE. Does not block."""
    @property
    def remaining(self) -> float:
        """The number of seconds for which the leases stay safe even if no server answers. If the leases are not safe,
        ``remaining`` is zero. Does not block.
        """
    @property
    def fencing_token(self) -> int:
        """The fencing token of the leases: an int that grows each time a client acquires leases of the semaphore. A
        store that compares tokens can refuse writers that have lost their leases.

        Does not block. Raises NotOwner if the leases were released, and LockLost if the leases were lost.
        """
    @property
    def token(self) -> int:
        """The fencing token of the leases, which does not change after a loss or a release. See ``fencing_token``. Does
        not block.
        """
    @property
    def is_lost(self) -> bool:
        """Whether the leases are unsafe and the program has not yet released them. ``is_lost`` is True if the state of
        the leases is UNCERTAIN or LOST, or if the client was closed before the release. Does not block.
        """
    def check(self) -> None:
        """Raise LockLost if the leases are not safe at this moment, and NotOwner if they were released. Does not
        block.
        """
    @property
    def node_paths(self) -> list[str]:
        """The paths of the leases' nodes, without the client's chroot. Does not block. Raises the same errors as
        ``fencing_token``.
        """
    def _check(self) -> None:
        """Raise NotOwner if the leases were released, and LockLost if the leases were lost."""
    def __enter__(self) -> Self:
        """Return this object. Raises NotOwner if the leases were already released, and LockLost if the leases were
        lost.
        """
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Release the leases, unless the block has already released them. The errors are the same as for ``release()``,
        except in one case. If the leases were safe at the end of the block but no server confirms the release, the
        method logs a warning and raises no exception. If both the block and the release fail, the exception of the
        block propagates, with a note about the failed release. If Python closes a generator during the block, Python
        discards this exception, so the method also logs the failed release.
        """

@final
class Listener:
    """A callback that the program has added with ``on_event()`` or ``on_lost()``.

    The callback stays registered until the program calls ``stop()``, or until the client, the lock or the leases are
    garbage-collected. The program does not need to keep a reference to the Listener.
    """
    def stop(self) -> None:
        """Remove the callback. If another thread is about to call the callback when the program calls ``stop()``, that
        thread still makes the call. After that call of the callback, the library does not call the callback again. A
        program may call ``stop()`` several times. The callback itself may also call ``stop()``.
        """
    @property
    def _is_stopped(self) -> bool: ...

@final
class Session:
    """The properties that a session had when the program called ``sessions()``. Sessions are immutable and
    comparable.
    """
    @property
    def id(self) -> int:
        """The id of the session."""
    @property
    def timeout(self) -> float:
        """The negotiated session timeout, in seconds."""
    @property
    def is_connected(self) -> bool:
        """Whether the client of the session was connected when the program called ``sessions()``."""
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class StandaloneServer:
    """A ZooKeeper server for tests. The server runs on a thread of this process, keeps its data in memory, and does not
    replicate data to other servers.

    ``address`` is ``"host:port"``; port 0 selects a free port. Raises ValueError for a malformed address, and
    ServerError if the server cannot listen at the address.

    The methods that cause a fault take an argument ``session``. The argument is a client, the id of a session, or None.
    With ``session=None``, a fault applies to all clients. ``freeze()`` and ``delay()`` also apply to later connections
    and later clients. ``lose_reply()`` with ``session=None`` drops only the reply to the first client that sends such a
    request. When the method returns, the fault is already in effect. The method raises ValueError if the session is
    unknown. Session timeouts may be as short as 0.1 seconds.

    The server ends with ``stop()``, at the end of a ``with`` block, or when the object is garbage-collected. After the
    end of the server, all methods except ``stop()`` raise ClientClosed. Any thread may call the methods. The methods do
    not block. In a forked child process, all methods except ``stop()`` raise Forked.
    """
    def __new__(cls, address: str = "127.0.0.1:0") -> Self: ...
    @property
    def address(self) -> str:
        """The address at which the server listens, such as ``"127.0.0.1:2181"``. The address is a connect string for
        ``zklock.Client``.
        """
    def sessions(self) -> list[Session]:
        """Return the sessions that have not ended, as a list of Sessions."""
    def expire(self, session: Client | AioClient | int | None = None) -> None:
        """End a session at once, as if its session timeout had passed. The client loses the locks of the session."""
    def cut(self, session: Client | AioClient | int | None = None) -> None:
        """Reset a client's connection. The session continues, and the client may reconnect."""
    def freeze(self, session: Client | AioClient | int | None = None) -> None:
        """Freeze a client's connections: messages in both directions arrive only after ``thaw()``. The session of a
        frozen client expires after its timeout, because the server receives no messages from the client.
        """
    def thaw(self, session: Client | AioClient | int | None = None) -> None:
        """End the effect of ``freeze()``. The delayed messages then arrive. The method also works for an expired
        session, so that the server can report the expiry to the client.
        """
    def delay(self, seconds: float, session: Client | AioClient | int | None = None) -> None:
        """Delay all later messages to a client by ``seconds``; 0 ends the delay."""
    def lose_reply(self, op: int, session: Client | AioClient | int | None = None) -> None:
        """Drop the reply to a client's next ``op`` request, and close the client's connection. The server still
        executes the request. ``op`` is an ``Op``, or a request number of ZooKeeper.
        """
    def halt(self) -> None:
        """Close all connections, and accept no connections until ``restart()``. No session expires while the server is
        halted.
        """
    def restart(self) -> None:
        """Close all connections, and continue with the same data at the same address. Every session timeout restarts.
        Raises ServerError if another process is now listening on the address.
        """
    def stop(self) -> None:
        """End the server: close the connections and the port, and discard the data. A program may call ``stop()``
        several times. In a forked child process, ``stop()`` does nothing.
        """
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Stop the server."""

def _main(arguments: list[str]) -> int:
    """Run the ``zklock`` command with the given process arguments, and return the exit code of the command. The process
    must have no other threads.
    """

def _check_interpreter() -> None:
    """Check that the calling interpreter was the first to import the module. The package calls this function at each
    import, because all interpreters of a process share one native module.
    """

def _close_all() -> None:
    """Closes all clients in parallel when the interpreter ends. If a client stayed open, a waiting daemon thread could
    still acquire a lock, although the process no longer does any work.
    """

def _next_call(*, losses: bool) -> tuple[Callable[[Any], object], Event | str] | None:
    """Wait for the next pending callback, and return the callback with its argument. If ``losses`` is true, the
    callback belongs to a client with a loss in its queue. The caller must call the returned callback before it calls
    ``_next_call()`` again. If another thread makes these calls, or if a callback forks the process and this process is
    the child, the function returns None. The calling thread must then end.
    """

def _report_unraisable(error: BaseException, callback: Callable[..., object]) -> None:
    """Report an exception from a callback through `sys.unraisablehook`."""

def _statuses() -> list[tuple[int, str, str, str]]:
    """Return the core's table of statuses. Each row has a number, the name of the C macro, the name of the exception,
    and a text.
    """

# For zklock.aio.

@final
class _Settings:
    """The settings of a client that is about to connect. The constructor takes the same arguments as ``zklock.Client``,
    and checks these arguments.
    """
    def __new__(
        cls,
        servers: str,
        *,
        session_timeout: float | None = None,
        connect_timeout: float | None = None,
        lease_margin: float | None = None,
        auth: Iterable[tuple[str, bytes | str | Callable[[], bytes | str]]] = (),
        wait_for_kazoo: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> Self: ...
    def with_file(self, file: str | PathLike[str]) -> _Settings:
        """Return a copy of these settings, with additional options from a file. The arguments of the constructor take
        precedence over the file. The method blocks the calling thread while it reads the file.
        """

@final
class _Op(Generic[_T]):
    """A pending operation. If the caller drops an ``_Op`` that acquires a lock or leases, the library abandons the
    acquire call. If the call has already succeeded, the library releases the lock or the leases. If the caller drops
    any other ``_Op``, the operation continues.
    """
    @property
    def key(self) -> int:
        """The key of the operation. When the operation is over, ``take()`` of the completion queue returns this key."""
    @property
    def is_over(self) -> bool:
        """Whether the operation is over. If the operation ends as soon as it starts, the completion queue never returns
        its key.
        """
    def result(self) -> _T:
        """Return the operation's result, or raise its exception. The caller may call this method once, after the
        operation is over. The caller must release a lock or leases that the operation has acquired.
        """
    def abandon(self) -> None:
        """Abandon the operation. This has the same effect as dropping the ``_Op``. Does not block."""

@final
class _CompletionQueue:
    """The completion queue of a client. The queue collects finished operations and pending callbacks. An event loop
    watches the queue through one descriptor. A method that starts an operation returns an ``_Op``. When the operation
    is over, ``take()`` returns the key of the ``_Op``.
    """
    def __new__(cls) -> Self: ...
    def fileno(self) -> int:
        """Return the descriptor of the queue. The descriptor is readable while the queue contains an item. The caller
        must neither read from the descriptor nor close the descriptor.
        """
    def check(self) -> None:
        """Raise Forked in a child of the process that made this queue."""
    def take(self, over: list[int], calls: list[tuple[Callable[[Any], object], Event | str]]) -> None:
        """Move the oldest items from the queue to two lists: the keys of the finished operations to ``over``, and the
        pending callbacks with their arguments to ``calls``. One call moves a limited number of items.
        """
    def connect(self, settings: _Settings, on_event: Callable[[Event], object], listens: bool) -> _Op[Client]:
        """Connect a client. The result of the operation is a Client. If ``listens`` is true, ``on_event`` receives all
        events of the client. If ``listens`` is false, ``on_event`` receives no events until ``start_listening()`` is
        called.
        """
    def close_client(self, client: Client) -> _Op[None]:
        """End a client's session. The result of the operation is None. The operation ends when the server has confirmed
        the end of the session and `take()` has returned the last events. The operation takes at most 2 seconds.
        """
    def acquire(self, lock: _TaskLock, timeout: float | None = ...) -> _Op[bool]:
        """Acquire or re-enter a lock. The result of the operation is True, or False if the timeout passes."""
    def acquire_or_raise(self, lock: _TaskLock) -> _Op[bool]:
        """Acquire or re-enter a lock. The call uses the ``timeout`` that the program chose when it made the lock. The
        result of the operation is True. If the timeout passes, the operation raises LockTimeout.
        """
    def hold(self, lock: _TaskLock, timeout: float | None = ...) -> _Op[Hold]:
        """Acquire or re-enter a lock. The result of the operation is a Hold. If the timeout passes, the operation
        raises LockTimeout.
        """
    def release(self, lock: _TaskLock) -> _Op[None]:
        """Release a lock once. The result of the operation is None. The release takes effect at once. The operation
        ends when the server has confirmed the release.
        """
    def release_hold(self, hold: Hold) -> _Op[None]:
        """Release a Hold. The result of the operation is None. The release takes effect at once. The operation ends
        when the server has confirmed the release.
        """
    def acquire_leases(self, semaphore: Semaphore, quantity: int = 1, timeout: float | None = ...) -> _Op[Leases]:
        """Acquire leases. The result of the operation is a Leases object."""
    def release_leases(self, leases: Leases) -> _Op[None]:
        """Release leases. The result of the operation is None. The release takes effect at once. The operation ends
        when the server has confirmed the release.
        """
    def wait_lost(self, of: _TaskLock | Hold | Leases) -> _Op[bool]:
        """Wait until a hold or leases are no longer safe. The result of the operation is True. ``of`` is a
        ``_TaskLock``, a Hold or a Leases object. Raises NotOwner if there is no hold, or if the hold is released during
        the wait.
        """
    def participants(self, of: Lock | Semaphore) -> _Op[list[Participant]]:
        """List the participants of a Lock or a Semaphore. A read lock's list contains only readers, and a write lock's
        list contains only writers.
        """
    def queue(self, lock: Lock) -> _Op[list[Participant]]:
        """List all participants of a lock, both readers and writers."""
    def shared_count_get(self, client: Client, path: str) -> _Op[int]:
        """Read a shared count. The result of the operation is an int."""
    def shared_count_set(self, client: Client, path: str, value: int) -> _Op[None]:
        """Set a shared count. The result of the operation is None."""
    def begin_run(self, once_per: OncePer) -> _Op[Run | None]:
        """Begin the run of a OncePer. The result of the operation is a Run, or None if the job has already run."""
    def end_run(self, run: Run, exception: BaseException | None) -> _Op[None]:
        """End a run. The result of the operation is None. ``exception`` is an exception, or None if the job
        succeeded.
        """
    def fail_run(self, run: Run, how: str) -> _Op[None]:
        """End a run whose job failed. The result of the operation is None."""
    def past_runs(self, client: Client, path: str) -> _Op[list[PastRun]]:
        """Read the last runs of a job. The result of the operation is a list of PastRun."""
    def fence_check(self, client: Client, path: str, token: int) -> _Op[bool]:
        """Ask the ensemble whether a fencing token belongs to a current holder. The result of the operation is a
        bool.
        """
    def revoke(self, client: Client, node: Participant | str) -> _Op[None]:
        """Ask the owner of a node to release the lock. The result of the operation is None."""
    def start_listening(self, client: Client) -> None:
        """Report all later events of a client to the ``on_event`` that ``connect()`` received."""

@final
class _TaskLock:
    """A lock from the point of view of one task. The properties describe the hold of this task. ``owner`` is the number
    of the task, or 0 if there is no task.
    """
    def __new__(cls, lock: Lock, owner: int) -> Self: ...
    def release_nowait(self) -> None:
        """Release the lock once. The call does not wait for the removal of the node."""
    @property
    def is_held(self) -> bool:
        """Whether the task holds the lock and the hold is safe at this moment."""
    @property
    def state(self) -> LockState:
        """The hold state of the task, a LockState."""
    @property
    def remaining(self) -> float:
        """The number of seconds for which the hold stays safe."""
    @property
    def fencing_token(self) -> int:
        """The fencing token of the hold."""
    @property
    def fencing_pass(self) -> int:
        """The fencing pass of the hold."""
    @property
    def node_path(self) -> str:
        """The path of the node."""
    @property
    def node_paths(self) -> list[str]:
        """The paths of the nodes."""
    def _check(self) -> None:
        """Raise NotOwner if the task has no hold, and LockLost if the hold was lost."""

def _listen(of: Client | Lock | Leases, callback: Callable[[Any], object], *, losses: bool = False) -> Listener:
    """Add an event callback to a Client, a Lock or a Leases object. If ``losses`` is true, the callback receives only
    the losses of a Lock or a Leases object. For each event, ``_CompletionQueue.take()`` returns the callback with its
    argument. The event loop then calls the callback.
    """

def _set_revocable(of: Lock | Semaphore, callback: Callable[[str], object] | None) -> None:
    """Set the revocation callback of a Lock or a Semaphore. For each revocation request, ``_CompletionQueue.take()``
    returns the callback with its argument. The event loop then calls the callback.
    """

def _timeout(timeout: float | None) -> float | None:
    """Check a timeout. Return the timeout in seconds, or None for a wait without limit."""

def _semaphore_nowait(
    client: Client,
    path: str,
    max_leases: int | None = None,
    *,
    count_path: str | None = None,
    initial: int | None = None,
    timeout: float | None = None,
) -> Semaphore:
    """Make a semaphore without waiting. If the shared count does not exist, the library creates the count in the
    background.
    """
