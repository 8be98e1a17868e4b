"""What tasks acquire and release: ``zklock.aio.Lock``, and one class for each recipe."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import TYPE_CHECKING, Any

from zklock._errors import ClientClosed, Error, LockLost
from zklock._states import LockState
from zklock._zklock import (
    _fencing_pass,
    _fencing_token,
    _is_held,
    _node_path,
    _node_paths,
    _release_nowait,
    _remaining,
    _set_revocable,
    _state,
)
from zklock.aio._loss import WhileHeld
from zklock.aio._owner import Owner, Task, acting_task, current_number, current_task, owner_of
from zklock.aio._post import SAFE

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

    from typing_extensions import Self

    from zklock import _zklock as native
    from zklock._zklock import Participant, Waiting
    from zklock.aio._client import Client
    from zklock.aio._post import Hold, Post


class Lock:
    """A lock, made by a Client: a Mutex, SemaphoreMutex, ReadLock, WriteLock or MultiLock. All have the same methods.

    Tasks exclude each other and queue fairly, in one process as among several. Coroutines are to be awaited in the loop
    that the client connected in, everything else may be called from any thread. A handle that is garbage-collected
    releases what is held by it.

    All methods raise ClientClosed once the client is closed, and Forked in the child of a fork.
    """

    _has_owner = True

    def __init__(self, client: Client, post: Post, lock: native.Lock) -> None:
        """For the client."""
        self._client = client
        self._post = post
        self._native = lock
        post.faces[lock] = self

    def acquire(self, timeout: float | None = None) -> Coroutine[Any, Any, bool]:
        """Acquires the lock for the current task, or enters it once more. True if it was got, False if time ran out.

        ``timeout`` is in seconds: None or infinity waits without limit, 0 looks once without waiting for anybody. A
        task that is cancelled meanwhile leaves no node behind and holds nothing, and does not wait for the server to
        say so. Raises ConnectionLost where no server answers by then, Canceled, ClientClosed; LockLost where this
        task's hold was lost and is not released yet; Deadlock where this task would wait for itself: it holds the path
        by another handle, or wants to write where it reads.

        The task is the one that awaits it, also by ``asyncio.wait_for()``. What runs it in a task of its own, as
        ``create_task()``, ``gather()`` and ``shield()`` do, acquires it for that one.
        """
        return self._acquire(timeout, current_task())

    async def _acquire(self, timeout: float | None, caller: Task | None) -> bool:
        inbox, task = self._post.start(), acting_task(caller)
        owner = owner_of(task)
        if not await self._post.wait(inbox.acquire(self._native, owner.number, timeout)):
            return False
        self._is_entered(owner, task)
        return True

    def _is_entered(self, owner: Owner, task: Task) -> None:
        if self._has_owner:
            owner.enters(self, task)

    def _is_left_by(self, owner: Owner) -> bool:
        """Whether a task that has ended leaves a hold of it. One that is lost it does not: that is cleared away."""
        with contextlib.suppress(Error):
            while (state := _state(self._native, owner.number, alone=True)) is LockState.LOST:
                with contextlib.suppress(LockLost):
                    _release_nowait(self._native, owner.number)
            return state is not LockState.FREE
        return False

    def release(self) -> Coroutine[Any, Any, None]:
        """Releases one entry of the current task, and waits until the server has confirmed that the node is gone,
        unless the lock was passed on to another task of this process (``set_local_handover()``).

        It waits for the session timeout at most. Where the task is cancelled meanwhile the release goes on. Raises
        NotOwner in a task that does not hold, and changes nothing then; LockLost where the hold had been lost,
        ConnectionLost where no server confirmed in time: it is released all the same.
        """
        return self._release(current_task())

    async def _release(self, caller: Task | None) -> None:
        inbox, owner = self._post.start(), owner_of(acting_task(caller))
        await self._post.wait(inbox.release(self._native, owner.number))

    def release_nowait(self) -> None:
        """Releases one entry of the current task, and leaves the removal of the node to the library.

        Raises NotOwner and LockLost as ``release()`` does.
        """
        _release_nowait(self._native, current_number())

    def cancel(self) -> None:
        """Wakes those that wait on this handle now, with Canceled. Who waits later is not concerned."""
        self._native.cancel()

    async def participants(self) -> list[Participant]:
        """Who holds and who waits, in the order of the queue, whatever process they are in. Of a read/write lock, each
        half tells of its own kind, and ``RwLock.participants()`` of both; a multi-lock tells of one of its locks after
        the other.

        Waits for the session timeout at most. Raises ConnectionLost where no server answers by then.
        """
        return await self._post.wait(self._post.start().participants(self._native))

    def waiting(self) -> list[Waiting]:
        """What those who wait on this handle wait for, in any task, in the order in which they began. Those who wait
        for a multi-lock do so on its handle, and not on those of its locks. It is what the client knows: no server is
        asked.
        """
        return self._native.waiting()

    def set_data(self, data: bytes | None) -> None:
        """The data of the nodes that later acquires create; None means this host's address, as in Curator. Of a
        multi-lock: of all its locks.
        """
        self._native.set_data(data)

    def set_revocable(self, callback: Callable[[str], object] | None) -> None:
        """Has ``callback`` called, with the path of the node that is asked for, whenever somebody asks for this lock to
        be given up (``Client.revoke()``, Curator's ``Revoker``), also while it is waited for. It is a request: nothing
        is taken away.

        It is called by the loop, as what is given to ``loop.call_soon()``. A coroutine function is run as a task then.
        The callback stays until another takes its place or None does, or the lock is garbage-collected. Of a
        multi-lock: for each of its locks, in the place of their own.
        """
        _set_revocable(self._native, told_by(self._post, callback))

    def set_local_handover(self, max_passes: int) -> None:
        """Lets the tasks of this process that queue for this mutex pass it on among themselves, up to ``max_passes``
        times in a row, before its node is given up; 0 as at first: never. It concerns acquires that begin later; see
        ``zklock.Lock``.

        Raises zklock.Error for all but a Mutex, ValueError for a negative number.
        """
        self._native.set_local_handover(max_passes)

    @property
    def is_held(self) -> bool:
        """Whether the current task holds the lock, and safely so at this moment: its session is surely alive. False
        where no task runs.
        """
        return _is_held(self._native, current_number())

    @property
    def is_held_in_process(self) -> bool:
        """Whether any task holds the lock by this handle, and safely so."""
        return self._native.is_held_in_process

    @property
    def state(self) -> LockState:
        """How the current task's hold stands, or else that of another task by this handle."""
        return _state(self._native, current_number())

    @property
    def remaining(self) -> float:
        """For how many seconds that hold is safe without hearing from a server; 0.0 where nobody holds safely."""
        return _remaining(self._native, current_number())

    @property
    def fencing_token(self) -> int:
        """The fencing token of that hold: an int that grows with every hold of the path, for a store to refuse the
        stale.

        Raises NotOwner where nobody holds, LockLost where the hold was lost.
        """
        return _fencing_token(self._native, current_number())

    @property
    def fencing_pass(self) -> int:
        """How often the lock had been passed on in this process, with the same token, when that hold began
        (``set_local_handover()``); 0 for a hold that came through the queue. A store compares the token and then this.

        Raises as ``fencing_token`` does.
        """
        return _fencing_pass(self._native, current_number())

    @property
    def node_path(self) -> str:
        """The path of the current task's node, without the client's chroot. A multi-lock has ``node_paths``.

        Raises NotOwner in a task that does not hold, LockLost where the hold was lost.
        """
        return _node_path(self._native, current_number())

    @property
    def node_paths(self) -> list[str]:
        """The paths of the current task's nodes: one, or one for each lock of a multi-lock. For a transaction of one's
        own that is to fail once the lock is lost, by a ``check`` of them. Raises as ``node_path`` does.
        """
        return _node_paths(self._native, current_number())

    @property
    def path(self) -> str:
        """The lock's path, without the client's chroot. A multi-lock has several: those of its ``locks``."""
        return self._native.path

    async def lost(self) -> bool:
        """Waits until the hold is safe no more: True as soon as its lease is over or it is lost, False where it was
        given back before. With its client closed it is not safe either: True.

        The hold is the current task's, or else that of another task by this handle; so a task of its own can watch over
        one that works. Raises NotOwner where nobody holds.
        """
        self._post.start()
        return await self._watch()

    def while_held(self) -> WhileHeld:
        """A block of an ``async with`` that is cancelled when the lock is safe no more, and raises LockLost then::

            async with client.mutex("/locks/a") as lock, lock.while_held():
                await work()

        The hold is the one that ``lost()`` would watch. The block should let its cancellation through, as that of any
        task; what it does until then is for the store to refuse. Entering raises NotOwner where nobody holds, LockLost
        where it is lost already.
        """
        self._post.start()
        return WhileHeld(self)

    def _watch(self) -> asyncio.Future[bool]:
        """Resolved with True when the hold is safe no more, and with False when it was given back before."""
        watch: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        number = current_number()
        try:
            for lock in self._leaves():
                lock._post.watch(lock._client._connected(), lock._hold_of(number), watch)
        except LockLost:
            watch.set_result(True)
        except BaseException:
            watch.cancel()
            raise
        if not watch.done() and _state(self._native, number) not in SAFE:
            watch.set_result(True)
        return watch

    def _leaves(self) -> tuple[Lock, ...]:
        return (self,)

    def _hold_of(self, number: int) -> Hold:
        return self.path, _fencing_token(self._native, number), _fencing_pass(self._native, number)

    def _loss(self) -> LockLost:
        try:
            _fencing_token(self._native, current_number())
        except LockLost as loss:
            return loss
        except ClientClosed as closed:
            return LockLost(str(closed))
        except Error:
            pass
        return LockLost(f"{self!r}: its lease is over, and it may be lost")

    async def __aenter__(self) -> Self:
        """Acquires, with the timeout that the lock was made with. Raises LockTimeout where it runs out, and what
        ``acquire()`` raises.
        """
        inbox, task = self._post.start(), acting_task(None)
        owner = owner_of(task)
        await self._post.wait(inbox.enter(self._native, owner.number))
        self._is_entered(owner, task)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Releases, and raises what ``release()`` raises. An exception of the block is not masked: it gets a note. A
        block that was cancelled does not wait for the server.
        """
        try:
            if goes_at_once(exc_value):
                self.release_nowait()
            else:
                await self.release()
        except Error as error:
            add_to(exc_value, "releasing the lock", error)

    def __repr__(self) -> str:
        return repr(self._native).replace("<zklock.", "<zklock.aio.", 1)


class Mutex(Lock):
    """A mutex on a path, made by ``Client.mutex()``: Curator's ``InterProcessMutex``.

    The holder is a task. A task that holds enters again at once, and must release as many times.
    """


class SemaphoreMutex(Lock):
    """A mutex that any task may release and none may enter twice, made by ``Client.semaphore_mutex()``: Curator's
    ``InterProcessSemaphoreMutex``.

    A task that holds it and acquires it again waits, as every other.
    """

    _has_owner = False


class ReadLock(Lock):
    """The half of an RwLock that is shared with other readers.

    The holder is a task, which may enter again. While it reads it can't write: Deadlock.
    """


class WriteLock(Lock):
    """The half of an RwLock that excludes everybody else.

    The holder is a task, which may enter again. It may also read, and go on reading when it has released the write
    lock: no writer gets in between.
    """


class MultiLock(Lock):
    """Several locks as one, made by ``Client.multi()``: Curator's ``InterProcessMultiLock``.

    It is acquired and released as a whole, within one deadline, and consists of these very locks: while it is held,
    each of them is. What a task holds of them already is entered once more. It stands as badly as the worst of them; of
    its release all that is held is released, and the first error is raised. See ``zklock.MultiLock``.
    """

    def __init__(self, client: Client, post: Post, lock: native.MultiLock, locks: tuple[Lock, ...]) -> None:
        """For the client."""
        super().__init__(client, post, lock)
        self._locks = locks

    @property
    def locks(self) -> tuple[Lock, ...]:
        """The locks that it was made of."""
        return self._locks

    def _is_left_by(self, owner: Owner) -> bool:
        # Some of its locks may be lost and others not: each is asked. What any task may release is not left.
        left = [leaf for leaf in self._leaves() if leaf._has_owner and leaf._is_left_by(owner)]
        return bool(left)

    def _leaves(self) -> tuple[Lock, ...]:
        return tuple(leaf for lock in self._locks for leaf in lock._leaves())


class RwLock:
    """A lock with two halves, made by ``Client.rwlock()``: Curator's ``InterProcessReadWriteLock``, as of Curator 5.5.

    Any number may read at a time, but nobody reads while somebody writes, and only one writes. Both halves are fair:
    they stand in one queue. Each is like a mutex.
    """

    def __init__(self, client: Client, post: Post, lock: native.RwLock) -> None:
        """For the client."""
        self._post = post
        self._native = lock
        self._read = ReadLock(client, post, lock.read)
        self._write = WriteLock(client, post, lock.write)

    @property
    def read(self) -> ReadLock:
        """The half for reading, the same each time."""
        return self._read

    @property
    def write(self) -> WriteLock:
        """The half for writing, the same each time."""
        return self._write

    async def participants(self) -> list[Participant]:
        """Who holds and who waits, readers and writers together, in the order of the queue, whatever process they are
        in.

        Waits for the session timeout at most. Raises ConnectionLost where no server answers by then.
        """
        return await self._post.wait(self._post.start().participants(self._native))

    @property
    def path(self) -> str:
        """The lock's path, without the client's chroot."""
        return self._native.path

    def __repr__(self) -> str:
        return repr(self._native).replace("<zklock.", "<zklock.aio.", 1)


def told_by(post: Post, callback: Callable[[str], object] | None) -> Callable[[str], None] | None:
    """What the library calls in the place of a program's callback."""
    if callback is None:
        return None
    if not callable(callback):
        raise TypeError(f"callback: expected a callable or None, not {type(callback).__name__}")
    return functools.partial(post.call, callback)


def goes_at_once(error: BaseException | None) -> bool:
    """Whether who leaves a block with this is not to be kept: he was cancelled, or is being taken apart."""
    return error is not None and not isinstance(error, Exception)


def add_to(error: BaseException | None, doing: str, another: Error) -> None:
    """Where a block ends although the way out failed too: its own exception goes on, and says what failed besides."""
    if error is None:
        raise another
    if hasattr(error, "add_note"):
        error.add_note(f"zklock: {doing}: {another}")
    elif error.__context__ is None:
        error.__context__ = another
