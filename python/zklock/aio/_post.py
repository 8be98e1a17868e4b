"""The way from the library's threads to an event loop: calls that are over, and callbacks that are to be called.

There is one descriptor for each client, which its loop watches. No other thread than the loop's runs any Python for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from zklock._errors import Error, Forked
from zklock._events import Event, LockEvent
from zklock._states import LockState
from zklock._zklock import _Inbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from zklock import _zklock as native
    from zklock._zklock import _Op, _Settings
    from zklock.aio._locks import Lock

T = TypeVar("T")
Hold = tuple[str, int, int]
"""A hold, as events name it: path, token, passes."""

SAFE = (LockState.HELD, LockState.SUSPENDED)


class Post:
    """What a client has on its loop, from its connecting to its end. It belongs to the loop's thread."""

    def __init__(self, on_event: Callable[[Event], object] | None) -> None:
        self.faces: weakref.WeakValueDictionary[native.Lock, Lock] = weakref.WeakValueDictionary()
        """The locks, as programs have them, that events may be about."""
        self._loop = asyncio.get_running_loop()
        self._inbox = _Inbox()
        self._on_event = on_event
        self._is_told = on_event is not None
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._watches: dict[Hold, set[asyncio.Future[bool]]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ends = False
        self._reader = _Reader(self, self._loop, self._inbox)

    def start(self) -> _Inbox:
        """To start a call with that is waited for here. Raises Forked in a child, RuntimeError in another loop."""
        self._inbox.check()
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(
                "this client of zklock.aio belongs to the event loop it connected in: make another one in this loop"
            )
        return self._inbox

    def is_parents(self) -> bool:
        """Whether it belongs to the parent of this forked process."""
        try:
            self._inbox.check()
        except Forked:
            return True
        return False

    # Calls.

    async def wait(self, op: _Op[T]) -> T:
        """What comes of a call. Who is cancelled meanwhile gives it up, and waits for nothing any more."""
        if not op.is_over:
            try:
                await self._over(op)
            except BaseException:
                op.abandon()
                raise
            finally:
                self._waiting.pop(op.key, None)
                self._settle()
        return op.result()

    def _over(self, op: _Op[T]) -> asyncio.Future[None]:
        over: asyncio.Future[None] = self._loop.create_future()
        self._waiting[op.key] = over
        self._reader.begin()  # a multi-lock of other clients' locks outlives the client that made it
        self._settle()
        return over

    async def connect(self, settings: _Settings) -> native.Client:
        """Raises NotImplementedError where the loop can't watch a descriptor."""
        self._reader.begin()
        return await self.wait(self._inbox.connect(settings, self._tell, self._is_told))

    def give_up(self, error: Error) -> None:
        """Whoever waits for anything is told this."""
        for over in self._waiting.values():
            if not over.done():
                over.set_exception(error)

    def close(self, client: native.Client) -> asyncio.Future[None]:
        """Ends the client's session, whoever waits for it. What is held until now is lost: nobody gave it back."""
        op = self.start().end(client)
        for watch in [watch for watches in self._watches.values() for watch in watches]:
            _resolve(watch, True)
        ended: asyncio.Future[None] = self._loop.create_future()

        def finish(_: asyncio.Future[None]) -> None:
            self._waiting.pop(op.key, None)
            try:
                op.result()
            except Error as error:
                ended.set_exception(error)
                ended.exception()  # nobody has to ask for it
            else:
                ended.set_result(None)
            self.end()

        self._over(op).add_done_callback(finish)
        return ended

    def end(self) -> None:
        """Nothing more is to come than what is waited for."""
        self._ends = True
        self._settle()

    def _settle(self) -> None:
        self._reader.kept = self if self._waiting or self._watches else None
        if self._ends and not self._waiting:
            self._reader.end()

    # Callbacks.

    def call(self, callback: Callable[[Any], object], argument: object) -> None:
        """Calls a callback of the program's. A coroutine that it returns goes on as a task."""
        result = callback(argument)
        if asyncio.iscoroutine(result):
            task: asyncio.Task[Any] = self._loop.create_task(result)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _tell(self, event: Event) -> None:
        if isinstance(event, LockEvent):
            if event.state not in SAFE:
                for watch in list(self._watches.get((event.path, event.token, event.passes), ())):
                    _resolve(watch, event.state is not LockState.FREE)
            if event.lock is not None:
                # What events name is an object of the program's.
                event = replace(event, lock=self.faces.get(event.lock))  # type: ignore[arg-type]
        if self._on_event is not None:
            self.call(self._on_event, event)

    def watch(self, client: native.Client, hold: Hold, watch: asyncio.Future[bool]) -> None:
        """Resolves ``watch``: with True when the hold is safe no more, with False when it was given back before."""
        if not self._is_told:
            self._inbox.listen(client)
            self._is_told = True
        self._watches.setdefault(hold, set()).add(watch)
        watch.add_done_callback(lambda _: self._watch_no_more(hold, watch))
        self._settle()

    def _watch_no_more(self, hold: Hold, watch: asyncio.Future[bool]) -> None:
        watches = self._watches.get(hold, set())
        watches.discard(watch)
        if not watches:
            self._watches.pop(hold, None)
        self._settle()

    def drain(self) -> None:
        """Takes over what has come in. Callbacks have their turn first: what a call caused is told before its end."""
        try:
            over, calls = self._inbox.take()
        except Forked:
            return  # what is left in it is the parent's
        for callback, argument in calls:
            self._loop.call_soon(callback, argument)
        for key in over:
            waiting = self._waiting.get(key)
            if waiting is not None and not waiting.done():
                waiting.set_result(None)


class _Reader:
    """What the loop has of a Post. It keeps it while something is waited for: nothing else keeps who waits."""

    def __init__(self, post: Post, loop: asyncio.AbstractEventLoop, inbox: _Inbox) -> None:
        self.kept: Post | None = None
        self._loop = loop
        self._inbox = inbox
        self._reads = False
        self._post = weakref.ref(post, self._forget)

    def begin(self) -> None:
        """Unless it has begun."""
        if self._reads:
            return
        try:
            self._loop.add_reader(self._inbox.fileno(), self._drain)
        except NotImplementedError:
            kind = type(self._loop)
            raise NotImplementedError(
                f"zklock.aio needs an event loop with add_reader(), like asyncio's SelectorEventLoop or uvloop's; "
                f"{kind.__module__}.{kind.__qualname__} has none"
            ) from None
        self._reads = True

    def end(self) -> None:
        if self._reads:
            self._reads = False
            self._loop.remove_reader(self._inbox.fileno())

    def _drain(self) -> None:
        post = self._post()
        if post is not None:
            post.drain()

    def _forget(self, _: weakref.ref[Post]) -> None:
        """The garbage collector has it, in any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and watches nothing any more
            self._loop.call_soon_threadsafe(self.end)


def _resolve(watch: asyncio.Future[bool], is_lost: bool) -> None:
    if not watch.done():
        watch.set_result(is_lost)
