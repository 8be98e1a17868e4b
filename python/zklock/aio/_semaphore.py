"""``zklock.aio.Semaphore`` and ``zklock.aio.Leases``."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING, Any

from zklock._errors import ClientClosed, Error, LockLost, NotOwner
from zklock._states import LockState
from zklock._zklock import _set_revocable
from zklock.aio._locks import add_to, goes_at_once, told_by
from zklock.aio._loss import WhileHeld
from zklock.aio._post import SAFE

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Self

    from zklock import _zklock as native
    from zklock._zklock import Participant, Waiting
    from zklock.aio._client import Client
    from zklock.aio._post import Post


class Semaphore:
    """A semaphore, made by ``Client.semaphore()``: Curator's ``InterProcessSemaphoreV2``. What it gives out are Leases.

    Leases belong to whoever has them, not to a task. Coroutines are to be awaited in the loop that the client connected
    in, everything else may be called from any thread. All methods raise ClientClosed once the semaphore or its client
    is closed, and Forked in the child of a fork.
    """

    def __init__(self, client: Client, post: Post, semaphore: native.Semaphore) -> None:
        """For the client."""
        self._client = client
        self._post = post
        self._native = semaphore

    def acquire(self, quantity: int = 1, timeout: float | None = None) -> Acquiring:
        """Acquires so many leases, all or none, to be awaited or for an ``async with`` block::

            leases = await semaphore.acquire(2, timeout=1.0)
            async with semaphore.acquire(2, timeout=1.0) as leases: ...

        ``timeout`` is in seconds: None or infinity waits without limit, 0 looks once without waiting for anybody.
        Raises LockTimeout where time runs out: what comes back always holds leases. Requests are served in their order,
        whole: a large one is not overtaken by small ones. A task that is cancelled meanwhile leaves no node behind, and
        does not wait for the server to say so. Raises ConnectionLost where no server answers by then, Canceled,
        ClientClosed; ValueError for more than ``max_leases``. Where a count says how many there are, more are waited
        for: it may yet be raised.
        """
        return Acquiring(self._acquire(quantity, timeout))

    async def _acquire(self, quantity: int, timeout: float | None) -> Leases:
        op = self._post.start().acquire_leases(self._native, quantity, timeout)
        return Leases(self, await self._post.wait(op))

    def cancel(self) -> None:
        """Wakes those that wait for leases of this handle now, with Canceled. Who waits later is not concerned."""
        self._native.cancel()

    async def participants(self) -> list[Participant]:
        """The leases that are out, the oldest first, and those who wait for some, whatever process they are in.

        Waits for the session timeout at most. Raises ConnectionLost where no server answers by then.
        """
        return await self._post.wait(self._post.start().participants(self._native))

    def waiting(self) -> list[Waiting]:
        """What those who wait for leases by this handle wait for, in any task; see ``Lock.waiting()``."""
        return self._native.waiting()

    def set_data(self, data: bytes | None) -> None:
        """The data of the leases' nodes that later acquires create; None means this host's address, as in Curator."""
        self._native.set_data(data)

    def set_revocable(self, callback: Callable[[str], object] | None) -> None:
        """Has ``callback`` called, with the path of the lease's node, whenever somebody asks for a lease to be given
        back; see ``Lock.set_revocable()``. None ends it.
        """
        _set_revocable(self._native, told_by(self._post, callback))

    def close(self) -> None:
        """Takes it out of service: those that wait for leases wake with ClientClosed, as do later calls. Leases that
        are out stay out until they are given back. May be called again. Does nothing in the child of a fork.
        """
        self._native.close()

    @property
    def path(self) -> str:
        """The semaphore's path, without the client's chroot."""
        return self._native.path

    def __repr__(self) -> str:
        return repr(self._native).replace("<zklock.", "<zklock.aio.", 1)


class Acquiring(Coroutine[Any, Any, "Leases"]):
    """An acquire of leases: a coroutine, to be awaited or run as a task, and an asynchronous context manager."""

    def __init__(self, coroutine: Coroutine[Any, Any, Leases]) -> None:
        """For the semaphore."""
        self._coroutine = coroutine
        self._leases: Leases | None = None

    def send(self, value: Any) -> Any:
        """As of every coroutine."""
        return self._coroutine.send(value)

    def throw(self, *args: Any) -> Any:
        """As of every coroutine."""
        return self._coroutine.throw(*args)

    def close(self) -> None:
        """As of every coroutine."""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Leases]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> Leases:
        """Acquires them."""
        self._leases = await self._coroutine
        return self._leases

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Gives them back, as leaving a block of theirs does."""
        if self._leases is not None:
            await self._leases.__aexit__(exc_type, exc_value, traceback)


class Leases:
    """Leases of a semaphore, made by ``Semaphore.acquire()``. They are given back as a whole: by ``release()``, at the
    end of an ``async with`` block, or when they are garbage-collected, which does not wait for the server.

    Any task may use them and give them back. All methods raise ClientClosed once the client is closed, and Forked in
    the child of a fork.
    """

    def __init__(self, semaphore: Semaphore, leases: native.Leases) -> None:
        """For the semaphore."""
        self._semaphore = semaphore
        self._post = semaphore._post
        self._native = leases

    async def release(self) -> None:
        """Gives all of them back, and waits until the server has confirmed it: for the session timeout at most. Where
        the task is cancelled meanwhile the release goes on.

        Raises NotOwner where they were given back before; LockLost where one of them had been lost, ConnectionLost
        where no server confirmed in time: they are given back all the same.
        """
        await self._post.wait(self._post.start().release_leases(self._native))

    def release_nowait(self) -> None:
        """Gives all of them back, and leaves the removal of the nodes to the library.

        Raises NotOwner and LockLost as ``release()`` does.
        """
        self._native.release_nowait()

    @property
    def quantity(self) -> int:
        """How many there are, or were."""
        return self._native.quantity

    @property
    def is_held(self) -> bool:
        """Whether they are held, and safely so at this moment: their session is surely alive."""
        return self._native.is_held

    @property
    def state(self) -> LockState:
        """How they stand."""
        return self._native.state

    @property
    def remaining(self) -> float:
        """For how many seconds they are safe without hearing from a server; 0.0 where they are not safely held."""
        return self._native.remaining

    @property
    def fencing_token(self) -> int:
        """Their fencing token: an int that grows with the leases of the semaphore, for a store to refuse the stale.

        Raises NotOwner where they were given back, LockLost where they were lost.
        """
        return self._native.fencing_token

    @property
    def node_paths(self) -> list[str]:
        """The paths of their nodes, without the client's chroot. Raises as ``fencing_token`` does."""
        return self._native.node_paths

    async def lost(self) -> bool:
        """Waits until they are safe no more: True as soon as their lease is over or one of them is lost, False where
        they were given back before. With their client closed they are not safe either: True. Raises NotOwner where they
        were given back already.
        """
        self._post.start()
        return await self._watch()

    def while_held(self) -> WhileHeld:
        """A block of an ``async with`` that is cancelled when they are safe no more, and raises LockLost then; see
        ``Lock.while_held()``.
        """
        self._post.start()
        return WhileHeld(self)

    def _watch(self) -> asyncio.Future[bool]:
        watch: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        try:
            hold = (self._semaphore.path, self.fencing_token, 0)
            self._post.watch(self._semaphore._client._connected(), hold, watch)
        except LockLost:
            watch.set_result(True)
        if not watch.done() and self.state not in SAFE:
            watch.set_result(True)
        return watch

    def _loss(self) -> LockLost:
        try:
            self.fencing_token  # noqa: B018
        except LockLost as loss:
            return loss
        except ClientClosed as closed:
            return LockLost(str(closed))
        except Error:
            pass
        return LockLost(f"{self!r}: their lease is over, and they may be lost")

    async def __aenter__(self) -> Self:
        """Raises NotOwner where they were given back before, LockLost where they were lost."""
        self.fencing_token  # noqa: B018
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Gives them back, unless the block did, and raises what ``release()`` raises. An exception of the block is not
        masked: it gets a note. A block that was cancelled does not wait for the server.
        """
        try:
            if goes_at_once(exc_value):
                self.release_nowait()
            else:
                await self.release()
        except NotOwner:
            pass
        except Error as error:
            add_to(exc_value, "giving back the leases", error)

    def __repr__(self) -> str:
        return repr(self._native).replace("<zklock.", "<zklock.aio.", 1)
