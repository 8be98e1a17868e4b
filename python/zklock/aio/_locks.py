"""The classes ``zklock.aio.Lock`` and ``Hold``, and one subclass of ``Lock`` for each recipe. No method may block the
event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import TYPE_CHECKING, Any

from zklock._errors import (
    ClientClosed,
    ConnectionLost,
    Error,
    Exhausted,
    Forked,
    InvalidType,
    LockLost,
    LockTimeout,
    NotOwner,
)
from zklock._logs import log_failed_end
from zklock._states import LockState
from zklock._zklock import _listen, _report_unraisable, _set_revocable, _TaskLock
from zklock.aio._acquiring import OWN_TIMEOUT, Acquiring
from zklock.aio._coroutine_function import coroutine_function
from zklock.aio._loss import LossTarget, WhileHeld, wait_lost
from zklock.aio._owner import Owner, Task, current_number, current_task, owner_of, owning_task
from zklock.aio._uncopyable import Uncopyable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

    from typing_extensions import Self

    from zklock import _zklock as native
    from zklock._events import Event, LockEvent
    from zklock._queue import Participant, Waiting
    from zklock._zklock import Listener
    from zklock.aio._loop_bridge import LoopBridge


class Lock(Uncopyable):
    """A lock: a Mutex, SemaphoreMutex, ReadLock, WriteLock or MultiLock. A Client makes locks. All kinds of locks have
    the same methods.

    A lock coordinates the tasks of one process in the same way as tasks of different processes. Waiters acquire the
    lock in queue order. A program must use coroutines and ``while_held()`` in the event loop in which the client
    connected. Any thread may call the other methods. Properties such as ``state`` and ``fencing_token`` describe the
    hold of the current task. A property whose name ends in ``_in_process`` describes the hold that some task of the
    process has through this lock object.

    A hold is safe while the client is sure that the client's session has not expired. The state of a safe hold is HELD
    or SUSPENDED.

    A lock that ``acquire()`` has acquired stays taken until its release or the end of its client, even if the program
    drops the lock object. When a task ends, the library does not release its holds. After a task has ended, no other
    task can release what it has acquired with ``acquire()``, except a SemaphoreMutex. The library then issues a
    ResourceWarning. Any task may release a Hold, and any task may end an ``async with`` block of a task that has ended.

    All methods raise ClientClosed after the client is closed, and raise Forked in a forked child process.
    """

    _has_owner = True

    def __init__(self, client: object, bridge: LoopBridge, lock: native.Lock) -> None:
        """The client calls this constructor."""
        self._client = client  # an unreferenced client would be closed
        self._bridge = bridge
        self._native = lock
        self._latest_owner: tuple[Owner, str] | None = None
        self._blocks: list[Task] = []
        """The tasks that have begun an ``async with`` block of this lock, in this order."""
        bridge.aio_locks[lock] = self

    @coroutine_function
    def acquire(self, *, timeout: float | None = OWN_TIMEOUT) -> Coroutine[Any, Any, bool]:
        """Acquire or re-enter the lock for the current task. Return True on success, and False if the timeout passes.

        ``timeout`` is a number of seconds. Without this argument, the call uses the ``timeout`` that the program chose
        when it made the lock. With a timeout of None or infinity, the call waits without limit. With a timeout of 0,
        the call makes one attempt and does not wait for other participants. If the task is cancelled during the wait,
        it neither acquires the lock nor waits for the server. The library then removes the node of the cancelled call
        from the queue in the background.

        Raises ConnectionLost if no server answers within the timeout, Canceled if ``cancel()`` ends the wait, and
        ClientClosed if the client is closed. Raises LockLost if the task has lost an earlier hold of this lock object
        and has not released that hold yet. Raises ForeignContender if an incompatible kind of lock
        uses the path. Raises Deadlock if the task already holds the lock on this path through another lock object, or
        if the task holds the read lock and tries to acquire the write lock.

        The hold belongs to the task that calls ``acquire()``, also if another task runs the coroutine, as in
        ``asyncio.shield(lock.acquire())``, ``asyncio.gather()``, ``asyncio.create_task()`` or ``asyncio.wait_for()``.
        """
        return self._acquire(timeout, current_task())

    async def _acquire(self, timeout: float | None, caller: Task | None) -> bool:
        queue, task = self._bridge.queue_for_call(), owning_task(caller)
        owner = owner_of(task)
        if not await self._bridge.wait(queue.acquire(self._as(owner), timeout)):
            return False
        self._track_hold(owner, task)
        return True

    def hold(self, *, timeout: float | None = OWN_TIMEOUT) -> Acquiring[Hold]:
        """Acquire the lock, and return a Hold. Use the call in an ``async with`` block, or await the call.

        The hold belongs to the task that acquires the lock, and this task may re-enter the lock. Any task may use and
        release the Hold. ``timeout`` has the same meaning as for ``acquire()``. Raises LockTimeout if the timeout
        passes. The other errors are the same as for ``acquire()``.

        Example::

            async with lock.hold(timeout=5.0) as hold:
                await write(fence=hold.token)
        """
        return Acquiring(self._hold(timeout, current_task()))

    def try_hold(self) -> Acquiring[Hold | None]:
        """Acquire the lock if it is free, and return a Hold. If another participant holds the lock or waits for it,
        return None. Use the call in an ``async with`` block, which runs in both cases, or await the call::

            async with lock.try_hold() as hold:
                if hold:
                    await write(fence=hold.token)

        The call waits for at most one second. It raises ConnectionLost if no server answers within this second. The
        other errors are the same as for ``acquire()``.
        """
        return Acquiring(self._try_hold(current_task()))

    async def _try_hold(self, caller: Task | None) -> Hold | None:
        try:
            return await self._hold(0, caller)
        except LockTimeout:
            return None

    async def _hold(self, timeout: float | None, caller: Task | None) -> Hold:
        queue, task = self._bridge.queue_for_call(), owning_task(caller)
        owner = owner_of(task)
        hold = Hold(self, await self._bridge.wait(queue.hold(self._as(owner), timeout)))
        self._latest_owner = owner, task.get_name()
        return hold

    def _as(self, owner: Owner) -> native._TaskLock:
        """Return the lock from the point of view of ``owner``."""
        return _TaskLock(self._native, owner.number)

    def _as_current_task(self) -> native._TaskLock:
        return _TaskLock(self._native, current_number())

    def _track_hold(self, owner: Owner, task: Task) -> None:
        self._latest_owner = owner, task.get_name()
        self._bridge.held_locks.add(self)
        if self._has_owner:
            owner.track(self, task)

    def _name_holder(self, error: NotOwner) -> NotOwner:
        """Add the holder to the message of ``error``, if the holder is another task."""
        if self._latest_owner is not None:
            owner, name = self._latest_owner
            with contextlib.suppress(Error):
                if self._as(owner).state not in (LockState.FREE, LockState.LOST):
                    hint = "only the holder can release what acquire() took; any task can release a Hold of hold()"
                    return NotOwner(f"{error}; task {name!r} holds it: {hint}")
        return error

    def _release_lost_and_check_held(self, owner: Owner) -> bool:
        """Return whether an ended task still has a hold that is not lost. The method releases the lost holds of the
        task.
        """
        lock = self._as(owner)
        with contextlib.suppress(Error):
            while (state := lock.state) is LockState.LOST:
                with contextlib.suppress(LockLost):
                    lock.release_nowait()
            return state is not LockState.FREE
        return False

    @coroutine_function
    def release(self) -> Coroutine[Any, Any, None]:
        """Release the lock once for the current task. The last release of a hold waits until the server has confirmed
        the removal of the node. The call does not wait if it passes the lock to another task of this process; see
        ``set_local_handover()``.

        The call waits for at most the session timeout. If the task is cancelled during the wait, the library completes
        the release. If the task does not hold the lock, the call raises NotOwner and changes nothing. However, a
        MultiLock releases the member locks that the task still holds. Raises LockLost if the hold was lost, and
        ConnectionLost if no server confirmed the release within the session timeout. Raises Exhausted if the process
        had no descriptor for a connection. The release takes effect even if the call raises LockLost, ConnectionLost or
        Exhausted.
        """
        return self._release(current_task())

    async def _release(self, caller: Task | None) -> None:
        await self._release_for(owner_of(owning_task(caller)))

    async def _release_for(self, owner: Owner) -> None:
        try:
            op = self._bridge.queue_for_call().release(self._as(owner))
            self._is_left(owner)
            await self._bridge.wait(op)
        except NotOwner as error:
            raise self._name_holder(error) from None

    def _is_left(self, owner: Owner) -> None:
        """Decrement the hold count of the owner, or remove the count if the hold is over."""
        with contextlib.suppress(Error):
            owner.leaves(self, is_over=self._as(owner).state is LockState.FREE)
        self._drop_if_free()

    def _drop_if_free(self) -> None:
        """Let the lock object be garbage-collected if no hold through this object is left."""
        with contextlib.suppress(Error):
            if self._native.state_in_process is not LockState.FREE:
                return
        self._bridge.held_locks.discard(self)

    def release_nowait(self) -> None:
        """Release the lock once for the current task. The call does not wait, because the library removes the node in
        the background.

        The method raises NotOwner and LockLost in the same cases as ``release()``.
        """
        task = current_task()
        if task is None:
            self._as_current_task().release_nowait()
            self._drop_if_free()
        else:
            self._release_nowait_for(owner_of(task))

    def _release_nowait_for(self, owner: Owner) -> None:
        try:
            self._as(owner).release_nowait()
        except NotOwner as error:
            raise self._name_holder(error) from None
        finally:
            self._is_left(owner)

    def cancel(self) -> None:
        """Cancel all calls that wait for this lock object. The cancelled calls raise Canceled. ``cancel()`` does not
        affect later calls.
        """
        self._native.cancel()

    async def participants(self) -> list[Participant]:
        """Return a list of Participants, in queue order. The list contains the holders and waiters of all processes.

        A read lock's list contains only readers, and a write lock's list contains only writers. ``queue()`` returns
        readers and writers. The list of a multi-lock contains the participants of the first member lock, then those of
        the second member lock, and so on. The call waits for at most the session timeout. Raises ConnectionLost if no
        server answers within the session timeout.
        """
        return await self._bridge.wait(self._bridge.queue_for_call().participants(self._native))

    async def queue(self) -> list[Participant]:
        """Return a list of Participants, in queue order. The list contains both the readers and the writers of a
        read/write lock. If the lock is not part of a read/write lock, ``queue()`` returns the same list as
        ``participants()``.

        The call waits for at most the session timeout. Raises ConnectionLost if no server answers within the session
        timeout.
        """
        return await self._bridge.wait(self._bridge.queue_for_call().queue(self._native))

    def waiting(self) -> list[Waiting]:
        """Return a list of Waiting objects, one for each call that waits for this lock object. The list follows the
        order in which the calls began. Each Waiting describes what one call waits for.

        The list contains the calls of all tasks of this process. A call that waits for a multi-lock appears in the list
        of the multi-lock, but not in the lists of the member locks. The method reports what the client currently knows.
        The method sends no request, and also works without a connection.

        The node paths in the list are the same as in ``participants()``, which returns the nodes of all processes. With
        local hand-overs (``set_local_handover()``), several waiting tasks share one node. If a task shares the node of
        another task, its Waiting has no ``node_path``. ``ahead`` of this Waiting is the path of the shared node.
        """
        return self._native.waiting()

    def set_data(self, data: bytes | None) -> None:
        """Set the data for the nodes that later calls create. If ``data`` is None, the nodes contain the address of
        this host, as in Curator. For a multi-lock, the method sets the data of all member locks.
        """
        self._native.set_data(data)

    def set_revocable(self, callback: Callable[[str], object] | None) -> None:
        """Set the callback for revocation requests; None removes the callback.

        The library calls ``callback`` when a participant asks for the release of this lock (``Client.revoke()``,
        Curator's ``Revoker``). Requests can arrive while the lock is held, and also while a call waits for the lock.
        The argument of the callback is the path of the node that the request names. The request itself does not release
        the lock; the program decides whether to release the lock.

        The event loop calls the callback, as if the program had passed the callback to ``loop.call_soon()``. If the
        callback is a coroutine function, each call runs as a task. The callback runs with the context variables of the
        task that connected the client. The callback remains registered until the program sets another callback or None,
        or until the lock object is garbage-collected. For a multi-lock, the method replaces the callback of each member
        lock.
        """
        _set_revocable(self._native, wrap_callback(self._bridge, callback))

    def on_lost(self, callback: Callable[[LockEvent[Lock]], object]) -> Listener:
        """Add a callback for losses of this lock, and return a Listener. ``stop()`` of the Listener removes the
        callback.

        The event loop calls the callback with a LockEvent when a hold of this lock is no longer safe: the state of the
        hold becomes UNCERTAIN or LOST. If the program closes the client while a task holds the lock, the loop calls the
        callback with an event whose state is FREE. The callback receives events for all tasks that hold the lock
        through this lock object. The ``token`` of an event identifies the hold. The documentation of
        ``Client.on_event()`` describes the rules for callbacks. If the callback is a coroutine function, each call runs
        as a task. Add the callback before the program acquires the lock, because the callback may receive no events
        for earlier changes. A lock may have any number of callbacks. For a multi-lock, the loop calls the callback for
        each member lock.
        """
        return listen(self._native, self._bridge, callback, losses=True)

    def on_event(self, callback: Callable[[LockEvent[Lock]], object]) -> Listener:
        """Add a callback for every change in the state of a hold of this lock, and return a Listener. The callback
        receives a LockEvent for each change. The rules for the callback are the same as for ``on_lost()``.
        """
        return listen(self._native, self._bridge, callback)

    def set_local_handover(self, max_passes: int) -> None:
        """Let the tasks of this process pass this mutex to each other up to ``max_passes`` times before the library
        removes the mutex's node. The default 0 forbids local hand-overs.

        The setting applies to acquire calls that begin later. If several lock objects of this client have the same path
        and allow local hand-overs, the waiters of all these objects share one node. A local hand-over passes the lock
        to the waiter whose call began first, without a request to a server. Because of local hand-overs, a waiter of
        another process may have to wait for up to ``max_passes`` additional holds. A release passes the lock to a
        waiter of this process only if the state of the hold is HELD and no revocation request has arrived. All holds
        under the shared node have the same fencing token, but different values of ``fencing_pass``. Raises Unsupported
        if the lock is not a Mutex, and ValueError for a negative number.
        """
        self._native.set_local_handover(max_passes)

    @property
    def is_held(self) -> bool:
        """Whether the current task holds the lock and the hold is safe at this moment. The property is False if the
        caller is not a task.
        """
        return self._as_current_task().is_held

    @property
    def is_held_in_process(self) -> bool:
        """Whether some task holds the lock through this lock object and the hold is safe at this moment."""
        return self._native.is_held_in_process

    @property
    def state(self) -> LockState:
        """The state of the current task's hold, a LockState. The state is FREE if the task has no hold."""
        return self._as_current_task().state

    @property
    def state_in_process(self) -> LockState:
        """The state of the hold that any task has through this lock object, as a LockState. The state is FREE if no
        task has a hold.
        """
        return self._native.state_in_process

    @property
    def remaining(self) -> float:
        """The number of seconds for which the current task's hold stays safe even if no server answers. If the task has
        no hold, or the hold is not safe, ``remaining`` is zero.
        """
        return self._as_current_task().remaining

    @property
    def fencing_token(self) -> int:
        """The fencing token of the current task's hold: an int that grows with every hold of the path. A store that
        compares tokens can refuse writers that have lost the lock. For a read lock that its owner acquired under the
        write lock, send the token of the write lock.

        Raises NotOwner if the task has no hold, even if another task holds the lock. Raises LockLost if the task's hold
        was lost.
        """
        return self._as_current_task().fencing_token

    @property
    def fencing_pass(self) -> int:
        """The number of local hand-overs that preceded the current task's hold under the same fencing token; see
        ``set_local_handover()``. If the hold did not begin with a local hand-over, ``fencing_pass`` is zero. If two
        writes have the same token, a store must also compare the values of ``fencing_pass``.

        Raises the same errors as ``fencing_token``.
        """
        return self._as_current_task().fencing_pass

    @property
    def node_path(self) -> str:
        """The path of the current task's node, without the client's chroot. For a multi-lock, this property raises
        AttributeError; use ``node_paths``.

        Raises NotOwner if the task has no hold, and LockLost if the task's hold was lost.
        """
        return self._as_current_task().node_path

    @property
    def node_paths(self) -> list[str]:
        """The paths of the current task's nodes, as a list. The list of a multi-lock contains a path for each member
        lock, and the list of any other lock contains one path. A ZooKeeper transaction can check that these nodes
        exist. If the lock was lost, a transaction with this check fails. Raises the same errors as ``node_path``.
        """
        return self._as_current_task().node_paths

    @property
    def path(self) -> str:
        """The lock's path, without the client's chroot. For a multi-lock, this property raises AttributeError; read the
        paths of the member locks in ``locks``.
        """
        return self._native.path

    @coroutine_function
    def wait_lost(self, timeout: float | None = None) -> Coroutine[Any, Any, bool]:
        """Wait until the current task's hold is no longer safe, and then return True. Return False if the hold is still
        safe after ``timeout`` seconds.

        The wait ends when the state of the hold becomes UNCERTAIN or LOST, even if the state changes back to HELD
        afterwards. With a timeout of None or infinity, the call waits without limit. With a timeout of 0, the call
        checks the hold once. ``wait_lost()`` watches the hold of the task that calls ``wait_lost()``. Another task may
        await the result::

            watcher = asyncio.create_task(lock.wait_lost())

        Raises NotOwner if the task has no hold or the hold is released during the wait, and ClientClosed if the client
        is closed.
        """
        return wait_lost(self._bridge, self._loss_target(), timeout)

    def while_held(self) -> WhileHeld:
        """Return a context manager for an ``async with`` block. When the current task's hold is no longer safe, the
        library cancels the block, and the block raises LockLost.

        The code in the block should not suppress the cancellation. If the block continues to write after the loss, a
        store that compares fencing tokens can refuse these writes. Entering the block raises NotOwner if the task has
        no hold, and LockLost if the hold is already lost. Before Python 3.11, the block also raises LockLost if other
        code cancels the task at the moment of the loss.

        Example::

            async with client.mutex("/locks/a") as lock, lock.while_held():
                await work()
        """
        self._bridge.queue_for_call()
        return WhileHeld(self._loss_target())

    def _loss_target(self) -> LossTarget:
        return LossTarget(self._bridge, self._as_current_task(), self._paths)

    def _members_or_self(self) -> tuple[Lock, ...]:
        return (self,)

    def _path_or_none(self) -> str | None:
        return self.path

    def _paths(self) -> str:
        """Return the paths of the lock as text for an error message."""
        return " ".join(repr(leaf.path) for leaf in self._members_or_self())

    async def __aenter__(self) -> Self:
        """Acquire the lock. The call uses the ``timeout`` that the program chose when it made the lock. Raises
        LockTimeout if the timeout passes. The other errors are the same as for ``acquire()``.
        """
        queue, task = self._bridge.queue_for_call(), owning_task(None)
        owner = owner_of(task)
        await self._bridge.wait(queue.acquire_or_raise(self._as(owner)))
        self._latest_owner = owner, task.get_name()
        self._bridge.held_locks.add(self)
        self._blocks.append(task)
        return self

    def _owner_of_block(self) -> Owner:
        """Return the owner whose block ends now. A fixture of a test, or an asynchronous generator, can begin a block
        in one task and end it in another task. If the current task has begun no block, this function returns the owner
        of the latest block whose task has ended.
        """
        current = current_task()
        for is_end in (lambda task: task is current, asyncio.Task.done):
            for position in reversed(range(len(self._blocks))):
                if is_end(self._blocks[position]):
                    return owner_of(self._blocks.pop(position))
        return owner_of(owning_task(current))

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Release the lock. The errors are the same as for ``release()``, except in one case. If the hold was safe at
        the end of the block and no server confirms the release, the method only logs a warning. If both the block and
        the release fail, the exception of the block propagates, with a note about the failed release. If Python closes
        a generator during the block, Python discards this exception, so the method also logs the failed release. If the
        block was cancelled, the method does not wait for the server.
        """
        owner = self._owner_of_block()
        was_safe = is_safe(self._as(owner))
        try:
            if is_cancellation(exc_value):
                self._release_nowait_for(owner)
            else:
                await self._release_for(owner)
        except Error as error:
            end_block(exc_value, "releasing the lock", self._path_or_none(), was_safe, error)

    def __repr__(self) -> str:
        return aio_repr(self._as_current_task())

    def _describe_for(self, owner: Owner) -> str:
        return aio_repr(self._as(owner))


class Hold(Uncopyable):
    """A hold of a lock. ``Lock.hold()`` returns a Hold.

    A Hold ends with ``release()``, at the end of an ``async with`` block, or when the Hold is garbage-collected. If a
    Hold is garbage-collected before its release, the library releases the lock, does not wait for the server, and
    issues a ResourceWarning.

    Any task may use a Hold, for instance a task that works for the owner of the lock. The end of a block releases the
    lock, regardless of which task reaches the end. In an asynchronous generator, the task in which a block ends can
    differ from the task in which the block began. ``token``, ``fencing_pass``, ``is_lost`` and ``is_held`` also work
    after the client is closed, and in a forked child process. The methods of a Hold, and the properties ``state`` and
    ``remaining``, raise ClientClosed after the client is closed, and raise Forked in a forked child process.
    """

    def __init__(self, lock: Lock, hold: native.Hold) -> None:
        """The lock calls this constructor."""
        self._lock = lock
        self._native = hold

    @property
    def lock(self) -> Lock:
        """The lock to which this hold belongs."""
        return self._lock

    @property
    def path(self) -> str:
        """The lock's path, without the client's chroot. For a multi-lock, this property raises AttributeError."""
        return self._native.path

    @property
    def token(self) -> int:
        """The fencing token of this hold: an int that grows with every hold of the path. A store that compares tokens
        can refuse writers that have lost the lock. For a read lock that its owner acquired under the write lock, send
        the token of the write lock. The token of a Hold does not change after a loss or a release.
        """
        return self._native.token

    @property
    def fencing_pass(self) -> int:
        """The number of local hand-overs under the hold's fencing token before the hold began; see
        ``Lock.set_local_handover()``. If the hold did not begin with a local hand-over, ``fencing_pass`` is zero. If
        two writes have the same token, a store must also compare the values of ``fencing_pass``.
        """
        return self._native.fencing_pass

    @property
    def state(self) -> LockState:
        """The state of this hold, a LockState. After a release, the state is FREE. For a multi-lock, the state is FREE
        after the release of any one member lock.
        """
        return self._native.state

    @property
    def remaining(self) -> float:
        """The number of seconds for which this hold stays safe even if no server answers. If the hold is not safe,
        ``remaining`` is zero.
        """
        return self._native.remaining

    @property
    def is_held(self) -> bool:
        """Whether this hold is safe at this moment. The property is False after the hold is released or lost, and after
        the client is closed.
        """
        return self._native.is_held

    @property
    def is_lost(self) -> bool:
        """Whether this hold is unsafe and the program has not yet released it. ``is_lost`` is True if the state of the
        hold is UNCERTAIN or LOST, or if the client was closed during the hold.
        """
        return self._native.is_lost

    @coroutine_function
    def wait_lost(self, timeout: float | None = None) -> Coroutine[Any, Any, bool]:
        """Wait until this hold is no longer safe, and then return True. Return False if the hold is still safe after
        ``timeout`` seconds. Any task may wait.

        The wait ends when the state of the hold becomes UNCERTAIN or LOST, even if the state changes back to HELD
        afterwards. With a timeout of None or infinity, the call waits without limit. With a timeout of 0, the call
        checks the hold once. If the owner has re-entered the lock, the wait continues until the owner's last release.

        Raises NotOwner if the hold is released before or during the wait. Raises ClientClosed if the client is closed.
        """
        return wait_lost(self._lock._bridge, self._loss_target(), timeout)

    def while_held(self) -> WhileHeld:
        """Return a context manager for an ``async with`` block. When this hold is no longer safe, the library cancels
        the block, and the block raises LockLost; see ``Lock.while_held()``. Any task may enter such a block.
        """
        self._lock._bridge.queue_for_call()
        return WhileHeld(self._loss_target())

    def _loss_target(self) -> LossTarget:
        return LossTarget(self._lock._bridge, self._native, self._lock._paths)

    async def release(self) -> None:
        """Release the lock, and wait until the server has confirmed the removal of the node. The call does not wait if
        it passes the lock to another task of this process; see ``Lock.set_local_handover()``. Any task may call this
        method.

        The call waits for at most the session timeout. If the task is cancelled during the wait, the library completes
        the release. Raises NotOwner if the hold was already released, and LockLost if the hold was lost. Raises
        ConnectionLost if no server confirmed the release within the session timeout, and Exhausted if the process had
        no descriptor for a connection. The release takes effect unless the call raises NotOwner. If a member lock of a
        multi-lock was already released, the call releases the other member locks, and then raises NotOwner. The call
        never releases a later hold of a member lock.
        """
        bridge = self._lock._bridge
        op = bridge.queue_for_call().release_hold(self._native)
        self._lock._drop_if_free()
        await bridge.wait(op)

    def release_nowait(self) -> None:
        """Release the lock. The call does not wait, because the library removes the node in the background. Any task
        may call this method.

        The method raises NotOwner and LockLost in the same cases as ``release()``.
        """
        self._native.release_nowait()
        self._lock._drop_if_free()

    def check(self) -> None:
        """Raise LockLost if this hold is not safe at this moment, and NotOwner if the hold was released. Call
        ``check()`` between the steps of the work.
        """
        self._native.check()

    def once_per(self, period: str, *, retry_failed: bool = False, zone: str | None = None) -> OncePer:
        """Return a block for the work of a job that runs once in each period, like ``zklock.Hold.once_per()``. Any task
        may enter the block::

            async with lock.hold() as hold, hold.once_per("day", zone="UTC") as run:
                if run is not None:
                    await work(fence=hold.token)

        The block receives a Run, or None if the job has already run in this period. The end of the block records that
        the job succeeded. If the block raises an exception, it records that the job failed. If the task is cancelled
        at the beginning of the block, the library removes the run from the record. If the block itself is cancelled,
        the library records the failure in the background.
        """
        return OncePer(self._lock._bridge, self._native.once_per(period, retry_failed=retry_failed, zone=zone))

    async def __aenter__(self) -> Self:
        """Return this Hold. Raises NotOwner if the hold was already released, and LockLost if the hold was lost."""
        self._native._check()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Release the lock, unless the block has already called ``release()`` of this Hold. The errors are the same as
        for ``release()``, except in one case. If the hold was safe at the end of the block and no server confirms the
        release, the method only logs a warning. If both the block and the release fail, the exception of the block
        propagates, with a note about the failed release. If Python closes a generator during the block, Python discards
        this exception, so the method also logs the failed release. If the block was cancelled, the method does not wait
        for the server.
        """
        if self._native._is_released:
            return
        was_safe = is_safe(self)
        try:
            if is_cancellation(exc_value):
                self.release_nowait()
            else:
                await self.release()
        except Error as error:
            end_block(exc_value, "releasing the lock", self._lock._path_or_none(), was_safe, error)

    def __repr__(self) -> str:
        return aio_repr(self._native)


class OncePer(Uncopyable):
    """A block for the work of a job that runs once in each period. ``Hold.once_per()`` returns a OncePer."""

    def __init__(self, bridge: LoopBridge, once_per: native.OncePer) -> None:
        """The hold calls this constructor."""
        self._bridge = bridge
        self._native = once_per
        self._run: native.Run | None = None

    async def __aenter__(self) -> Run | None:
        """Begin a run of the job, and return a Run. Return None if the job has already run in this period."""
        self._run = await self._bridge.wait(self._bridge.queue_for_call().begin_run(self._native))
        return None if self._run is None else Run(self._bridge, self._run)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Record how the job ended, like the end of a block with ``zklock.Hold.once_per()``. If the block was
        cancelled, the method does not wait for the server.
        """
        run, self._run = self._run, None
        if run is None or run._has_ended:
            return
        try:
            op = self._bridge.queue_for_call().end_run(run, exc_value)
            if not is_cancellation(exc_value):
                await self._bridge.wait(op)
        except Error as error:
            end_block(exc_value, "recording the end of the run", self._native._path, False, error)


class Run(Uncopyable):
    """A run of a job that has begun. A block with ``Hold.once_per()`` receives a Run. The end of the block records
    whether the job succeeded.
    """

    def __init__(self, bridge: LoopBridge, run: native.Run) -> None:
        """The OncePer calls this constructor."""
        self._bridge = bridge
        self._native = run

    async def fail(self, how: str) -> None:
        """Record that the job failed, although the block raises no exception. The text says how the job failed, for
        people. The record contains at most the first 1,000 characters of the text. The run has then ended, even if the
        call raises an exception.

        The call waits for at most three times the session timeout. Raises LockLost if the hold was lost: the run then
        counts as interrupted. Raises ValueError if the run has already ended, NotOwner if the program has already
        released the hold, ForeignContender if another program has changed the record, and ConnectionLost if no server
        confirmed the record.
        """
        await self._bridge.wait(self._bridge.queue_for_call().fail_run(self._native, how))

    def __repr__(self) -> str:
        return aio_repr(self._native)


class Mutex(Lock):
    """A mutex on a path, like Curator's ``InterProcessMutex``. ``Client.mutex()`` makes a Mutex.

    A mutex belongs to the task that acquired it. The owner of a mutex may re-enter it. The owner must release the mutex
    as many times as it acquired the mutex.
    """


class SemaphoreMutex(Lock):
    """A mutex that is not re-entrant and that any task may release, like Curator's ``InterProcessSemaphoreMutex``.
    ``Client.semaphore_mutex()`` makes a SemaphoreMutex.

    If a task already holds a SemaphoreMutex and acquires the lock again, the second call waits until the lock is
    released.
    """

    _has_owner = False


class ReadLock(Lock):
    """The read lock of an RwLock. Several readers may hold the read lock at the same time.

    A hold of the read lock belongs to the task that acquired the lock, and this task may re-enter the lock. If a task
    that holds the read lock tries to acquire the write lock, the call raises Deadlock.
    """


class WriteLock(Lock):
    """The write lock of an RwLock. While one owner holds the write lock, no other owner can acquire the read lock or
    the write lock.

    A hold of the write lock belongs to the task that acquired the lock, and this task may re-enter the lock. A task
    that holds the write lock may also acquire the read lock, and then release the write lock. During such a change from
    the write lock to the read lock, no other writer can acquire the write lock.
    """


class MultiLock(Lock):
    """A lock that acquires and releases several member locks together, like Curator's ``InterProcessMultiLock``.
    ``Client.multi()`` makes a MultiLock.

    The timeout of ``acquire()`` limits the total time for all member locks. If the task already holds a member lock,
    ``acquire()`` re-enters that member lock. The state of a multi-lock is FREE unless the task holds all member locks.
    If the task holds all member locks, the state of the multi-lock is the worst state of its member locks.
    ``release()`` releases every member lock that the task holds. If the release of one member lock fails, ``release()``
    still releases the remaining member locks, and then raises the first error.

    If member locks are mutexes, read locks or write locks of the same client, these member locks join their queues in
    one transaction. Member locks that join their queues in one transaction have the same fencing token. Programs that
    list such member locks in different orders do not deadlock. The library acquires semaphore mutexes, and locks of
    different clients, one after the other. This order is the same in all programs that use the same connect strings. If
    the member locks have different fencing tokens, the token of the multi-lock is the smallest token.
    """

    def __init__(self, client: object, bridge: LoopBridge, lock: native.MultiLock, locks: tuple[Lock, ...]) -> None:
        """The client calls this constructor."""
        super().__init__(client, bridge, lock)
        self._locks = locks

    @property
    def locks(self) -> tuple[Lock, ...]:
        """The member locks, as a tuple."""
        return self._locks

    def _release_lost_and_check_held(self, owner: Owner) -> bool:
        # Check each member lock separately, because the task may have lost only some of them. Skip semaphore mutexes,
        # because any task may release them.
        left = [
            leaf for leaf in self._members_or_self() if leaf._has_owner and leaf._release_lost_and_check_held(owner)
        ]
        return bool(left)

    def _members_or_self(self) -> tuple[Lock, ...]:
        return tuple(leaf for lock in self._locks for leaf in lock._members_or_self())

    def _path_or_none(self) -> str | None:
        return None


class RwLock(Uncopyable):
    """A read/write lock, like the ``InterProcessReadWriteLock`` of Curator 5.5. ``Client.rwlock()`` makes an RwLock.

    Several readers may hold a read/write lock at the same time, but a writer holds the lock alone. The properties
    ``read`` and ``write`` return the read lock and the write lock, which have the same methods as a mutex. Readers and
    writers wait in one queue, so readers cannot starve writers, and writers cannot starve readers.
    """

    def __init__(self, client: object, bridge: LoopBridge, lock: native.RwLock) -> None:
        """The client calls this constructor."""
        self._bridge = bridge
        self._native = lock
        self._read = ReadLock(client, bridge, lock.read)
        self._write = WriteLock(client, bridge, lock.write)

    @property
    def read(self) -> ReadLock:
        """The read lock, a ReadLock. The property always returns the same object."""
        return self._read

    @property
    def write(self) -> WriteLock:
        """The write lock, a WriteLock. The property always returns the same object."""
        return self._write

    async def queue(self) -> list[Participant]:
        """Return a list of Participants, in queue order. The list contains every reader and writer from every process,
        both holders and waiters.

        The call waits for at most the session timeout. Raises ConnectionLost if no server answers within the session
        timeout.
        """
        return await self._write.queue()

    @property
    def path(self) -> str:
        """The lock's path, without the client's chroot."""
        return self._native.path

    def __repr__(self) -> str:
        return aio_repr(self._native)


def listen(
    of: native.Client | native.Lock | native.Leases,
    bridge: LoopBridge,
    callback: Callable[[Any], object],
    *,
    losses: bool = False,
) -> Listener:
    """Let the event loop call ``callback`` for each event."""
    if not callable(callback):
        raise InvalidType(f"callback: expected a callable, not {type(callback).__name__}")
    listener: Listener | None = None

    def report(event: Event) -> None:
        # The program may have removed the callback since the loop scheduled this call.
        if listener is None or not listener._is_stopped:
            bridge.deliver_to(callback, event)

    listener = _listen(of, report, losses=losses)
    return listener


def wrap_callback(bridge: LoopBridge, callback: Callable[[str], object] | None) -> Callable[[str], None] | None:
    """Return a function that calls the program's callback. If the callback is a coroutine function, the coroutine runs
    as a task.
    """
    if callback is None:
        return None
    if not callable(callback):
        raise InvalidType(f"callback: expected a callable or None, not {type(callback).__name__}")
    return functools.partial(bridge.call_program, callback)


def aio_repr(native_object: object) -> str:
    """Return the ``repr()`` of the object of zklock.aio that contains ``native_object``."""
    return repr(native_object).replace("<zklock.", "<zklock.aio.", 1)


def is_cancellation(error: BaseException | None) -> bool:
    """Return whether ``error`` cancelled or interrupted a block, or closed the generator that contains the block. The
    end of such a block must not wait for the server.
    """
    return error is not None and not isinstance(error, Exception)


def is_safe(held: Any) -> bool:
    """Return whether ``held`` is safe at this moment. ``held`` is a Hold, Leases, or a Lock that the current task
    holds.
    """
    try:
        return bool(held.is_held)
    except Error:
        return False


def end_block(error: BaseException | None, doing: str, path: str | None, was_safe: bool, another: Error) -> None:
    """Handle ``another``, the error that the release or the close raised at the end of a block. ``was_safe`` says
    whether the hold was safe at the end of the block. For a client, ``was_safe`` is False. ``path`` is None for a
    multi-lock and for a client.

    A release takes effect even if no server confirms it. If the hold was safe, the lock has protected the whole block.
    An exception would wrongly suggest that the block has failed, so the function only logs the missing confirmation.

    If the block belongs to a generator that Python closes, Python discards the exception of the block, and the note in
    this exception. The function therefore also logs the failure, unless the client is closed or belongs to the parent
    process. Then the process has no hold that could remain.
    """
    is_unconfirmed = was_safe and isinstance(another, (ConnectionLost, Exhausted))
    if error is not None or not is_unconfirmed:
        attach_to_exception(error, doing, another)
    has_ended = isinstance(another, (ClientClosed, Forked))
    if error is None or (isinstance(error, GeneratorExit) and not has_ended):
        _log_failed_end(is_unconfirmed, doing, path, another)


def _log_failed_end(is_unconfirmed: bool, doing: str, path: str | None, error: Error) -> None:
    """Log a failed end of a block. An exception of a log filter or a log handler must not replace the result of the
    block.
    """
    try:
        log_failed_end(is_unconfirmed, doing, path, str(error))
    except Exception as failure:
        _report_unraisable(failure, log_failed_end)


def attach_to_exception(error: BaseException | None, doing: str, another: Error) -> None:
    """If the block raised no exception, raise the error ``another``. If the block raised the exception ``error``, add a
    note about ``another`` to ``error``.
    """
    if error is None:
        raise another
    if hasattr(error, "add_note"):
        error.add_note(f"zklock: {doing}: {another}")
    elif error.__context__ is None:
        error.__context__ = another
