"""The classes ``zklock.aio.Semaphore`` and ``zklock.aio.Leases``. Leases belong to no task, so this file must not
depend on the current task. No method may block the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zklock._errors import Error, NotOwner
from zklock._zklock import _set_revocable
from zklock.aio._acquiring import OWN_TIMEOUT, Acquiring
from zklock.aio._locks import aio_repr, end_block, is_cancellation, is_safe, listen, wrap_callback
from zklock.aio._loss import LossTarget, WhileHeld, wait_lost
from zklock.aio._uncopyable import Uncopyable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

    from typing_extensions import Self

    from zklock import _zklock as native
    from zklock._events import LockEvent
    from zklock._queue import Participant, Waiting
    from zklock._states import LockState
    from zklock._zklock import Listener
    from zklock.aio._loop_bridge import LoopBridge


class Semaphore(Uncopyable):
    """A semaphore, like Curator's ``InterProcessSemaphoreV2``. ``Client.semaphore()`` makes a Semaphore, and
    ``acquire()`` returns Leases.

    Leases do not belong to a task: any task may use and release the leases. A program must await coroutines in the
    event loop in which the client connected. Any thread may call a method that is not a coroutine. All methods except
    ``close()`` raise ClientClosed after the semaphore or its client is closed, and raise Forked in a forked child
    process.
    """

    def __init__(self, client: object, bridge: LoopBridge, semaphore: native.Semaphore) -> None:
        """The client calls this constructor."""
        self._client = client  # an unreferenced client would be closed
        self._bridge = bridge
        self._native = semaphore

    def acquire(self, quantity: int = 1, *, timeout: float | None = OWN_TIMEOUT) -> Acquiring[Leases]:
        """Acquire ``quantity`` leases, and return a Leases object. The call acquires either all ``quantity`` leases or
        no lease. Await the call, or use the call in an ``async with`` block.

        ``timeout`` is a number of seconds. Without this argument, the call uses the ``timeout`` that the program chose
        when it made the semaphore. With a timeout of None or infinity, the call waits without limit. With a timeout of
        0, the call makes one attempt and does not wait for other participants. The semaphore serves waiting
        calls in queue order, so a call that requests few leases cannot overtake an earlier call that requests many. If
        the task is cancelled during the wait, it acquires no leases, and the call ends at once. The library
        then removes the nodes of the cancelled call from the queue in the background.

        Raises LockTimeout if the timeout passes, and ConnectionLost if no server answers within the timeout. Raises
        Canceled if ``cancel()`` ends the wait, and ClientClosed if the semaphore or its client is closed. Raises
        ValueError if ``quantity`` is greater than ``max_leases``. For a semaphore with a shared count, ``quantity`` may
        be greater than the count; the call then waits until the count is large enough.

        Examples::

            leases = await semaphore.acquire(2, timeout=1.0)
            async with semaphore.acquire(2, timeout=1.0) as leases: ...
        """
        return Acquiring(self._acquire(quantity, timeout))

    async def _acquire(self, quantity: int, timeout: float | None) -> Leases:
        op = self._bridge.queue_for_call().acquire_leases(self._native, quantity, timeout)
        return Leases(self, await self._bridge.wait(op))

    def cancel(self) -> None:
        """Cancel all calls that wait for leases of this Semaphore. The cancelled calls raise Canceled. ``cancel()``
        does not affect later calls.
        """
        self._native.cancel()

    async def participants(self) -> list[Participant]:
        """Return a list of the Participants from all processes. The list begins with the held leases, from the oldest
        to the newest. The waiters follow the held leases.

        The call waits for at most the session timeout. Raises ConnectionLost if no server answers within the session
        timeout.
        """
        return await self._bridge.wait(self._bridge.queue_for_call().participants(self._native))

    def waiting(self) -> list[Waiting]:
        """Return a list of Waiting objects, one for each call that waits for leases of this object; see
        ``Lock.waiting()``.
        """
        return self._native.waiting()

    def set_data(self, data: bytes | None) -> None:
        """Set the data for the nodes that later calls create. If ``data`` is None, the nodes contain the address of
        this host, as in Curator.
        """
        self._native.set_data(data)

    def set_revocable(self, callback: Callable[[str], object] | None) -> None:
        """Set the callback for revocation requests; None removes the callback. If a participant asks for the release of
        a lease, the library calls the callback with the node path of the lease; see ``Lock.set_revocable()``.
        """
        _set_revocable(self._native, wrap_callback(self._bridge, callback))

    def close(self) -> None:
        """Close the semaphore. Calls that are waiting for leases raise ClientClosed. All later calls also raise
        ClientClosed. Leases that are already held stay valid until their release. A program may call ``close()``
        several times. In a forked child process, ``close()`` does nothing.
        """
        self._native.close()

    @property
    def path(self) -> str:
        """The semaphore's path, without the client's chroot."""
        return self._native.path

    def _quoted_path(self) -> str:
        return repr(self.path)

    def __repr__(self) -> str:
        return aio_repr(self._native)


class Leases(Uncopyable):
    """Leases of a semaphore. ``Semaphore.acquire()`` returns a Leases object.

    The library releases all leases of the object together. The release happens when the program calls ``release()``, at
    the end of an ``async with`` block, or when the object is garbage-collected. If a Leases object is garbage-collected
    before its release, the library issues a ResourceWarning and does not wait for the server.

    Any task may use and release the leases. All methods raise ClientClosed after the client is closed, and raise Forked
    in a forked child process.
    """

    def __init__(self, semaphore: Semaphore, leases: native.Leases) -> None:
        """The semaphore calls this constructor."""
        self._semaphore = semaphore
        self._bridge = semaphore._bridge
        self._native = leases

    async def release(self) -> None:
        """Release all leases of this object, and wait until the server has confirmed that their nodes are deleted.

        The call waits for at most the session timeout. If the task is cancelled during the wait, the library completes
        the release. Raises NotOwner if the leases were already released, and LockLost if one of the leases was lost.
        Raises ConnectionLost if no server confirmed the release within the session timeout, and Exhausted if the
        process had no descriptor for a connection. The release takes effect unless the call raises NotOwner.
        """
        await self._bridge.wait(self._bridge.queue_for_call().release_leases(self._native))

    def release_nowait(self) -> None:
        """Release all leases of this object. The call does not wait, because the library removes the nodes in the
        background.

        The method raises NotOwner and LockLost in the same cases as ``release()``.
        """
        self._native.release_nowait()

    @property
    def quantity(self) -> int:
        """The number of leases. A release does not change ``quantity``."""
        return self._native.quantity

    @property
    def is_held(self) -> bool:
        """Whether the leases are held and safe at this moment."""
        return self._native.is_held

    @property
    def state(self) -> LockState:
        """The state of the leases, a LockState. After a release, the state is FREE."""
        return self._native.state

    @property
    def remaining(self) -> float:
        """The number of seconds for which the leases stay safe even if no server answers. If the leases are not safe,
        ``remaining`` is zero.
        """
        return self._native.remaining

    @property
    def fencing_token(self) -> int:
        """The fencing token of the leases: an int that grows each time a client acquires leases of the semaphore. A
        store that compares tokens can refuse writers that have lost their leases.

        Raises NotOwner if the leases were released, and LockLost if the leases were lost.
        """
        return self._native.fencing_token

    @property
    def token(self) -> int:
        """The fencing token of the leases, which does not change after a loss or a release. See ``fencing_token``."""
        return self._native.token

    @property
    def is_lost(self) -> bool:
        """Whether the leases are unsafe and the program has not yet released them. ``is_lost`` is True if the state of
        the leases is UNCERTAIN or LOST, or if the client was closed before the release.
        """
        return self._native.is_lost

    def check(self) -> None:
        """Raise LockLost if the leases are not safe at this moment, and NotOwner if they were released."""
        self._native.check()

    @property
    def node_paths(self) -> list[str]:
        """The paths of the leases' nodes, without the client's chroot. Raises the same errors as ``fencing_token``."""
        return self._native.node_paths

    def on_lost(self, callback: Callable[[LockEvent], object]) -> Listener:
        """Add a callback for losses of these leases, and return a Listener; see ``Lock.on_lost()``. Raises NotOwner if
        the leases were already released.
        """
        return listen(self._native, self._bridge, callback, losses=True)

    def on_event(self, callback: Callable[[LockEvent], object]) -> Listener:
        """Add a callback for every change in the state of these leases, and return a Listener; see ``Lock.on_event()``.
        Raises NotOwner if the leases were already released.
        """
        return listen(self._native, self._bridge, callback)

    def wait_lost(self, timeout: float | None = None) -> Coroutine[Any, Any, bool]:
        """Wait until at least one of these leases is no longer safe, and then return True. Return False if all leases
        are still safe after ``timeout`` seconds. Any task may wait.

        The documentation of ``Lock.wait_lost()`` describes the timeout and the errors. Raises NotOwner if the leases
        are released before or during the wait.
        """
        return wait_lost(self._bridge, self._loss_target(), timeout)

    def while_held(self) -> WhileHeld:
        """Return a context manager for an ``async with`` block. When the leases are no longer safe, the library cancels
        the block, and the block raises LockLost; see ``Lock.while_held()``.
        """
        self._bridge.queue_for_call()
        return WhileHeld(self._loss_target())

    def _loss_target(self) -> LossTarget:
        return LossTarget(self._bridge, self._native, self._semaphore._quoted_path)

    async def __aenter__(self) -> Self:
        """Return this object. Raises NotOwner if the leases were already released, and LockLost if the leases were
        lost.
        """
        self._native._check()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Release the leases, unless the block has already released them. The errors are the same as for ``release()``,
        except in one case. If the leases were safe at the end of the block and no server confirms the release, the
        method only logs a warning. If both the block and the release fail, the exception of the block propagates, with
        a note about the failed release. If Python closes a generator during the block, Python discards this exception,
        so the method also logs the failed release. If the block was cancelled, the method does not wait for the server.
        """
        was_safe = is_safe(self)
        try:
            if is_cancellation(exc_value):
                self.release_nowait()
            else:
                await self.release()
        except NotOwner:
            pass
        except Error as error:
            end_block(exc_value, "releasing the leases", self._semaphore.path, was_safe, error)

    def __repr__(self) -> str:
        return aio_repr(self._native)
