"""The stream of events that ``zklock.aio.Client.events()`` returns. A stream must not keep a lock object alive."""

from __future__ import annotations

import asyncio
import weakref
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Hashable
from dataclasses import replace
from typing import TYPE_CHECKING

from zklock._events import ClientEvent, Event, LockEvent
from zklock._states import ClientState, LockState

if TYPE_CHECKING:
    from zklock.aio._loop_bridge import LoopBridge

MAX_UNMERGED = 1024
"""The number of events that a stream stores before it begins to merge events. The stream then merges additional events
of the same hold, and additional events of the session.
"""

_QueuedEvent = tuple[Event, "weakref.ref[object] | None"]
"""An event, and a weak reference to its lock. The event itself does not refer to the lock. Because the reference is
weak, a lock can be garbage-collected before a task reads the events of the lock.
"""


class EventStream(AsyncIterator[Event]):
    """A stream of the events of a client. The stream contains all events since ``Client.events()`` was called.

    When the client is closed, the iteration ends after the last event. If a client has several streams, each stream
    receives every event. If several tasks read the same stream, each event goes to only one of these tasks. If a task
    is cancelled while it waits for an event, the stream does not lose any event.

    A stream stores up to 1024 events without merging them. If more events occur before a task reads the stream, the
    stream merges the additional events of each hold. The stream also merges the additional events of the session.
    Merged events still report the last state of each hold and of the session, and the loss of every hold. If several
    sessions are lost one after the other, merged events may report only one of these losses. After a stream is
    garbage-collected, the client stores no more events for the stream.
    """

    def __init__(self, client: object, bridge: LoopBridge) -> None:
        """The client calls this constructor."""
        self._client = client  # an unreferenced client would be closed
        self._bridge = bridge
        self._unmerged: deque[_QueuedEvent] = deque()
        # `_merged` maps numbers to the events that the stream may merge. `_last_number_of` maps each hold, and the
        # session, to the number of its last event.
        self._merged: OrderedDict[int, _QueuedEvent] = OrderedDict()
        self._last_number_of: dict[Hashable, int] = {}
        self._last_number = 0
        self._readers: set[asyncio.Future[None]] = set()
        self._has_ended = False

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> Event:
        """Wait for the next event, and return the event. The iteration ends when the client is closed. Raises
        RuntimeError outside the client's event loop, and Forked in a forked child process.
        """
        self._bridge.queue_for_call()
        while not self._unmerged and not self._merged:
            if self._has_ended:
                raise StopAsyncIteration
            await self._wait_for_event()
        return self._pop()

    async def _wait_for_event(self) -> None:
        reader: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._readers.add(reader)
        self._bridge.await_stream(self, is_awaited=True)
        try:
            await reader
        finally:
            self._readers.discard(reader)
            self._bridge.await_stream(self, is_awaited=bool(self._readers))

    def _pop(self) -> Event:
        if self._unmerged:
            event, lock = self._unmerged.popleft()
        else:
            number, (event, lock) = self._merged.popitem(last=False)
            subject = _subject_of(event)
            if self._last_number_of.get(subject) == number:
                del self._last_number_of[subject]
        if isinstance(event, LockEvent) and lock is not None:
            return replace(event, lock=lock())
        return event

    # The client calls the methods below.

    def put(self, event: Event) -> None:
        """Add an event."""
        lock: weakref.ref[object] | None = None
        if isinstance(event, LockEvent) and event.lock is not None:
            lock = weakref.ref(event.lock)
            event = replace(event, lock=None)
        self._put(event, lock)
        self._wake()

    def end(self) -> None:
        """End the stream. Tasks can still read the events that the stream has stored."""
        self._has_ended = True
        self._wake()

    def _wake(self) -> None:
        for reader in self._readers:
            if not reader.done():
                reader.set_result(None)

    def _put(self, event: Event, lock: weakref.ref[object] | None) -> None:
        if not self._merged and len(self._unmerged) < MAX_UNMERGED:
            self._unmerged.append((event, lock))
            return
        subject = _subject_of(event)
        last = self._last_number_of.get(subject)
        merged = None if last is None else _merge(self._merged[last][0], event)
        if last is None or merged is None:
            self._last_number += 1
            self._merged[self._last_number] = (event, lock)
            self._last_number_of[subject] = self._last_number
        elif merged.state is merged.previous:
            # Together, the merged events do not change the state, so remove the merged event.
            del self._merged[last], self._last_number_of[subject]
        else:
            self._merged[last] = (merged, lock)


def _subject_of(event: Event) -> Hashable:
    return (event.path, event.token, event.fencing_pass) if isinstance(event, LockEvent) else None


def _merge(waiting: Event, newer: Event) -> Event | None:
    """Merge two events of the same hold, or two events of the session. Return None if the first event is a loss,
    because the stream must not replace a loss by a later state.
    """
    if isinstance(waiting, LockEvent) and isinstance(newer, LockEvent):
        return None if waiting.state is LockState.LOST else replace(waiting, lock=None, state=newer.state)
    if isinstance(waiting, ClientEvent) and isinstance(newer, ClientEvent):
        return None if waiting.state is ClientState.LOST else replace(waiting, state=newer.state)
    return None
