"""The connection between the library's threads and an event loop. The threads put finished calls and pending callbacks
into a queue, and the event loop processes the queue.

Each client has one descriptor, which the event loop watches. The loop calls the program's callbacks with the context
variables that were current when the loop began to watch the descriptor. The library's threads run no Python code for
this file. The other files of this package import this file, so this file must not import their classes.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from zklock._errors import Error, Forked, NotOwner, Unsupported
from zklock._events import Event, LockEvent
from zklock._zklock import _CompletionQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from zklock import _zklock as native
    from zklock._zklock import _Op, _Settings

T = TypeVar("T")


class EventSink(Protocol):
    """A stream that receives all events of a client."""

    def put(self, event: Event) -> None:
        """Add an event."""
        ...

    def end(self) -> None:
        """End the stream, because the client is closed."""
        ...


class LoopBridge:
    """The state of a client in its event loop. A LoopBridge exists from the call to ``connect()`` until the client
    ends. Only the thread of the loop may call the methods, except the checks ``queue_for_call()`` and ``is_forked()``.
    Any thread may make a lock, and thereby add the lock to ``aio_locks``.
    """

    def __init__(self, on_event: Callable[[Event], object] | None) -> None:
        self.aio_locks: weakref.WeakValueDictionary[native.Lock, object] = weakref.WeakValueDictionary()
        """A mapping from native locks to the program's lock objects. Events contain the lock objects of this mapping.
        """
        self.held_locks: set[object] = set()
        """The lock objects that acquire() or an ``async with`` block has acquired. A hold lasts until its release or
        the end of the client, even if the program drops the lock object.
        """
        self._loop = asyncio.get_running_loop()
        self._queue = _CompletionQueue()
        self._on_event = on_event
        self._is_listening = on_event is not None
        self._streams: weakref.WeakSet[EventSink] = weakref.WeakSet()
        self._awaited_streams: set[EventSink] = set()
        self._completions: dict[int, asyncio.Future[None]] = {}
        self._over: list[int] = []
        self._calls: list[tuple[Callable[[Any], object], Event | str]] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closing = False
        self._reader = _LoopReader(self, self._loop, self._queue)

    def queue_for_call(self) -> _CompletionQueue:
        """Return the completion queue, which provides the methods that start calls. Raises Forked in a forked child
        process, and RuntimeError in another event loop.
        """
        self._queue.check()
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(
                "this client of zklock.aio belongs to the event loop in which it connected; "
                "make another client in this loop"
            )
        return self._queue

    def is_forked(self) -> bool:
        """Return whether this process is a forked child and the object belongs to its parent."""
        try:
            self._queue.check()
        except Forked:
            return True
        return False

    def has_loop_ended(self) -> bool:
        """Return whether the program has closed the event loop."""
        return self._loop.is_closed()

    # Calls.

    async def wait(self, op: _Op[T]) -> T:
        """Wait for a call, and return the result of the call. If the task is cancelled during the wait, the method
        abandons the call and does not wait any longer.
        """
        if not op.is_over:
            try:
                await self._completion_of(op)
            except BaseException:
                op.abandon()
                raise
            finally:
                self._completions.pop(op.key, None)
                self._update_registration()
        return op.result()

    def loss_future(self, op: _Op[bool]) -> asyncio.Future[bool]:
        """Return a future. The future resolves to False when the hold is released, and to True when the hold is no
        longer safe or the client is closed. If the caller cancels the future, the library abandons the wait.
        """
        wait: asyncio.Future[bool] = self._loop.create_future()
        if op.is_over:
            _resolve(op, wait)
        else:
            self._completion_of(op).add_done_callback(lambda _: _resolve(op, wait))
            wait.add_done_callback(lambda _: self._abandon(op))
        return wait

    def _abandon(self, op: _Op[bool]) -> None:
        op.abandon()
        self._completions.pop(op.key, None)
        self._update_registration()

    def _completion_of(self, op: _Op[T]) -> asyncio.Future[None]:
        completion: asyncio.Future[None] = self._loop.create_future()
        self._completions[op.key] = completion
        if op.is_over:
            # The queue may never return the key of this call.
            completion.set_result(None)
        # If the client is closed, the loop no longer watches the descriptor. A multi-lock of a closed client may still
        # wait for member locks of open clients, so watch the descriptor again.
        self._reader.register()
        self._update_registration()
        return completion

    async def connect(self, settings: _Settings) -> native.Client:
        """Connect a client. Raises Unsupported if the event loop cannot watch a descriptor."""
        self._reader.register()
        return await self.wait(self._queue.connect(settings, self._deliver, self._is_listening))

    def fail_waiters(self, error: Error) -> None:
        """Make all waiting calls raise ``error``."""
        for completion in self._completions.values():
            if not completion.done():
                completion.set_exception(error)

    def close_client(self, client: native.Client) -> asyncio.Future[None]:
        """End the client's session and all holds. The session ends even if the caller does not wait for the result."""
        op = self.queue_for_call().close_client(client)
        ended: asyncio.Future[None] = self._loop.create_future()

        def finish(_: asyncio.Future[None]) -> None:
            self._completions.pop(op.key, None)
            try:
                op.result()
            except Error as error:
                ended.set_exception(error)
                ended.exception()  # asyncio logs an exception that no code has read
            else:
                ended.set_result(None)
            self.finish()

        self._completion_of(op).add_done_callback(finish)
        return ended

    def finish(self) -> None:
        """End the streams. Once no more calls are waiting, stop watching the completion queue."""
        self._is_closing = True
        for stream in list(self._streams):
            stream.end()
        self._update_registration()

    def _update_registration(self) -> None:
        self._reader.strong_reference = self if self._completions or self._awaited_streams else None
        if self._is_closing and not self._completions:
            self._reader.deregister()

    # Callbacks.

    def call_program(self, callback: Callable[[Any], object], argument: object) -> None:
        """Call a program callback. If the callback returns a coroutine, the coroutine runs as a task."""
        result = callback(argument)
        if asyncio.iscoroutine(result):
            task: asyncio.Task[Any] = self._loop.create_task(result)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _deliver(self, event: Event) -> None:
        event = self._with_aio_lock(event)
        for stream in list(self._streams):
            stream.put(event)
        if self._on_event is not None:
            self.call_program(self._on_event, event)

    def deliver_to(self, callback: Callable[[Any], object], event: Event) -> None:
        """Call a callback with an event from a client, a lock or leases."""
        self.call_program(callback, self._with_aio_lock(event))

    def _with_aio_lock(self, event: Event) -> Event:
        """Replace the native lock in an event with the program's lock object."""
        if isinstance(event, LockEvent) and event.lock is not None:
            return replace(event, lock=self.aio_locks.get(event.lock))
        return event

    def listen(self, client: native.Client) -> None:
        """Make the client report all later events to this object."""
        if not self._is_listening:
            self._queue.start_listening(client)
            self._is_listening = True

    def add_stream(self, client: native.Client, stream: EventSink) -> None:
        """Put the client's events into a stream, until the stream is garbage-collected."""
        if self._is_closing:
            stream.end()
            return
        self.listen(client)
        self._streams.add(stream)

    def await_stream(self, stream: EventSink, *, is_awaited: bool) -> None:
        """Keep a stream alive if ``is_awaited`` is true, because a task waits for the next event of the stream.
        Otherwise, allow the garbage collector to free the stream.
        """
        if is_awaited:
            self._awaited_streams.add(stream)
        else:
            self._awaited_streams.discard(stream)
        self._update_registration()

    def drain(self) -> None:
        """Process the items in the completion queue. Schedule the callbacks first. The program then receives an event
        before the end of the call that caused the event.

        Ctrl-C may interrupt this method between any two instructions. The method therefore removes an item from a list
        only after it has processed the item. The program may run the loop again.
        """
        try:
            self._queue.take(self._over, self._calls)
            while self._calls:
                callback, argument = self._calls[0]
                self._loop.call_soon(callback, argument)
                del self._calls[0]
            while self._over:
                completion = self._completions.get(self._over[0])
                if completion is not None and not completion.done():
                    completion.set_result(None)
                del self._over[0]
        except Forked:
            # The remaining items belong to the parent process.
            self._calls.clear()
            self._over.clear()
        finally:
            if self._calls or self._over:
                self._loop.call_soon(self.drain)


class _LoopReader:
    """The part of a LoopBridge that is registered with the event loop. While a call waits, the _LoopReader keeps the
    LoopBridge alive, because no other object would keep the waiting tasks alive.
    """

    def __init__(self, bridge: LoopBridge, loop: asyncio.AbstractEventLoop, queue: _CompletionQueue) -> None:
        self.strong_reference: LoopBridge | None = None
        self._loop = loop
        self._queue = queue
        self._is_registered = False
        self._bridge = weakref.ref(bridge, self._on_collected)

    def register(self) -> None:
        """Start watching the descriptor, unless the loop already watches it."""
        if self._is_registered:
            return
        try:
            self._loop.add_reader(self._queue.fileno(), self._drain)
        except NotImplementedError:
            kind = type(self._loop)
            raise Unsupported(
                f"zklock.aio needs an event loop with add_reader(), like asyncio's SelectorEventLoop or uvloop's; "
                f"{kind.__module__}.{kind.__qualname__} has none"
            ) from None
        self._is_registered = True

    def deregister(self) -> None:
        if self._is_registered:
            self._is_registered = False
            self._loop.remove_reader(self._queue.fileno())

    def _drain(self) -> None:
        bridge = self._bridge()
        if bridge is not None:
            bridge.drain()

    def _on_collected(self, _: weakref.ref[LoopBridge]) -> None:
        """Stop watching the descriptor. The garbage collector may call this method on any thread."""
        with contextlib.suppress(RuntimeError):  # a closed loop watches no descriptor
            self._loop.call_soon_threadsafe(self.deregister)


def _resolve(op: _Op[bool], wait: asyncio.Future[bool]) -> None:
    if wait.done():
        return
    try:
        wait.set_result(op.result())
    except NotOwner:
        wait.set_result(False)
    except Error:
        wait.set_result(True)
