"""Tests of ``async for event in client.events()`` and ``client.on_event()`` of zklock.aio."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import random
import sys
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import zklock
from conftest import Loops, until
from server import ZooKeeper
from zklock import ClientEvent, ClientState, LockEvent, LockState
from zklock.aio import Client, EventStream, Lock
from zklock.aio._events import MAX_UNMERGED
from zklock.testing import StandaloneServer

FREE, HELD = LockState.FREE, LockState.HELD
SUSPENDED, UNCERTAIN, LOST = LockState.SUSPENDED, LockState.UNCERTAIN, LockState.LOST


async def all_of(events: EventStream) -> list[zklock.Event]:
    return [event async for event in events]


def test_every_consumer_gets_every_event_until_the_client_is_closed(loops: Loops, server: ZooKeeper, path: str) -> None:
    async def main() -> None:
        client = Client(server.address)
        with pytest.raises(RuntimeError, match="not connected yet"):
            client.events()
        async with client:
            consumers = [asyncio.create_task(all_of(client.events())) for _ in range(3)]
            unread = client.events()
            lock = client.mutex(path)
            async with lock:
                token = lock.fencing_token
            await until(lambda: len(unread._unmerged) == 2)
            late = client.events()
            async with client.semaphore(f"{path}-pool", 1).acquire() as leases:
                pool = leases.fencing_token
        expected = [
            LockEvent(lock, path, HELD, FREE, token),  # type: ignore[arg-type]
            LockEvent(lock, path, FREE, HELD, token),  # type: ignore[arg-type]
            LockEvent(None, f"{path}-pool", HELD, FREE, pool),
            LockEvent(None, f"{path}-pool", FREE, HELD, pool),
            ClientEvent(ClientState.CLOSED, ClientState.CONNECTED),
        ]
        for read in await asyncio.wait_for(asyncio.gather(*consumers), 60):
            assert read == expected
            assert isinstance(read[0], LockEvent)
            assert read[0].lock is lock
        assert await all_of(unread) == expected
        assert await all_of(late) == expected[2:]
        # A stream that has ended yields no more events.
        for ended in (unread, client.events()):
            with pytest.raises(StopAsyncIteration):
                await ended.__anext__()
        never = Client(server.address)
        await never.close()
        with pytest.raises(zklock.ClientClosed):
            never.events()

    loops.run(main())


def test_a_client_is_closed_while_a_task_waits_for_events(loops: Loops, server: ZooKeeper) -> None:
    async def main() -> None:
        client = await Client(server.address).connect()
        tasks = [asyncio.create_task(all_of(client.events())) for _ in range(2)]
        await asyncio.sleep(0.01)
        await client.close()
        for read in await asyncio.wait_for(asyncio.gather(*tasks), 60):
            assert read == [ClientEvent(ClientState.CLOSED, ClientState.CONNECTED)]

    loops.run(main())


def test_tasks_that_are_cancelled_take_no_event_with_them(loops: Loops, server: ZooKeeper, path: str) -> None:
    """Several tasks read one stream and are cancelled at every point."""

    async def main() -> None:
        async with Client(server.address) as client:
            events, read = client.events(), []

            async def reader() -> None:
                while True:
                    # The task keeps the event without another await.
                    read.append(await events.__anext__())

            async def work() -> None:
                for _ in range(30):
                    async with client.mutex(path):
                        await asyncio.sleep(0)

            working, readers = asyncio.create_task(work()), [asyncio.create_task(reader()) for _ in range(3)]
            while not working.done():
                for turn in range(random.randrange(4)):
                    await asyncio.sleep(0.0005 * turn)
                number = random.randrange(3)
                readers[number].cancel()
                readers[number] = asyncio.create_task(reader())
            await until(lambda: len(read) == 60)
            for task in readers:
                task.cancel()
            await asyncio.wait(readers)
            # wait_for() cancels as well.
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(events.__anext__(), 0.01)
            assert [event.state for event in read] == [HELD, FREE] * 30
            assert client._bridge is not None
            assert not client._bridge._awaited_streams

    loops.run(main())


def test_event_during_reader_cancellation_is_not_lost(loops: Loops, server: ZooKeeper) -> None:
    async def main() -> None:
        async with Client(server.address) as client:
            events = client.events()
            event = ClientEvent(ClientState.SUSPENDED, ClientState.CONNECTED)
            for cancel_first in (True, False):
                task = asyncio.ensure_future(events.__anext__())
                await asyncio.sleep(0)
                if cancel_first:
                    task.cancel()
                events.put(event)
                task.cancel()
                await asyncio.wait([task])
                assert task.cancelled()
                assert await asyncio.wait_for(events.__anext__(), 60) == event

    loops.run(main())


def test_a_slow_consumer_never_loses_a_loss(loops: Loops) -> None:
    async def main(server: StandaloneServer) -> None:
        async with Client(server.address) as client:
            events = client.events()
            # There are more events than a stream keeps unmerged.
            lock = client.mutex("/a")
            for _ in range(MAX_UNMERGED // 2 + 50):
                async with lock:
                    pass
            lost, pool = client.mutex("/lost"), client.semaphore("/pool", 2)
            await lost.acquire()
            leases = await pool.acquire(2)
            tokens = {lost.fencing_token, leases.fencing_token}
            server.expire(client)
            await until(lambda: lost.state is leases.state is LOST)
            for held in (lost, leases):
                with pytest.raises(zklock.LockLost):
                    await held.release()  # type: ignore[attr-defined]
            for _ in range(50):
                async with lock:
                    pass
            await until(lambda: client.state is ClientState.CONNECTED)
            assert len(events._unmerged) == MAX_UNMERGED
            # Holds that began and ended while no task read the stream do not appear in it.
            assert len(events._merged) < 20
        read = await all_of(events)
        losses = [event.token for event in read if isinstance(event, LockEvent) and event.state is LOST]
        assert len(losses) == 2
        assert set(losses) == tokens
        assert ClientState.LOST in [event.state for event in read if isinstance(event, ClientEvent)]
        assert [event.state for event in read if isinstance(event, ClientEvent)][-1] is ClientState.CLOSED

    with StandaloneServer() as server:
        loops.run(main(server))


def test_merged_events_form_a_sequence(loops: Loops, server: ZooKeeper) -> None:
    """Each event begins with the state at which the last event of its subject ended, at whatever time the stream is
    read.
    """

    async def main() -> None:
        async with Client(server.address) as client:
            chance = random.Random(7)
            for _ in range(30):
                events = client.events()
                is_now: dict[Any, Any] = {}
                told: dict[Any, Any] = {}
                lost: set[Any] = set()
                lost_told: list[Any] = []

                def take(stream: EventStream, told: dict[Any, Any], lost_told: list[Any]) -> None:
                    event = stream._pop()
                    key = event.token if isinstance(event, LockEvent) else None
                    start = FREE if isinstance(event, LockEvent) else ClientState.CONNECTED
                    assert told.get(key, start) is event.previous
                    assert event.state is not event.previous
                    told[key] = event.state
                    if event.state is LOST:
                        lost_told.append(key)

                for step in range(MAX_UNMERGED + 3000):
                    if chance.random() < 0.2:
                        key = None
                        before = is_now.get(key, ClientState.CONNECTED)
                        choice = [ClientState.CONNECTED, ClientState.SUSPENDED, ClientState.LOST]
                        state = chance.choice([one for one in choice if one is not before])
                        events._put(ClientEvent(state, before), None)
                        is_now[key] = state
                    else:
                        # There are a few holds at a time, and each ends eventually.
                        key = chance.randrange(6) + step // 500 * 6
                        before = is_now.get(key, FREE)
                        if before is LOST:
                            continue
                        states = [one for one in LockState if one is not before]
                        state = chance.choice(states)
                        events._put(LockEvent(None, "/a", state, before, key), None)
                        is_now[key] = state
                        if state is LOST:
                            lost.add(key)
                    if step > MAX_UNMERGED and chance.random() < 0.1:
                        take(events, told, lost_told)
                    assert len(events._unmerged) + len(events._merged) < MAX_UNMERGED + 200
                while events._unmerged or events._merged:
                    take(events, told, lost_told)
                for key, state in is_now.items():
                    assert told.get(key, FREE if key is not None else ClientState.CONNECTED) is state
                assert sorted(lost_told) == sorted(lost)
                assert not events._last_number_of

    loops.run(main())


def test_collected_stream_consumes_no_events(loops: Loops, server: ZooKeeper, path: str) -> None:
    async def first_of(client: Client) -> zklock.Event:
        async for event in client.events():
            return event
        raise AssertionError("no event")

    async def main() -> None:
        async with Client(server.address) as client:
            assert client._bridge is not None
            events = client.events()
            assert len(client._bridge._streams) == 1
            task = asyncio.create_task(first_of(client))
            await asyncio.sleep(0)
            assert len(client._bridge._streams) == 2
            async with client.mutex(path) as lock:
                event = await asyncio.wait_for(task, 60)
                assert event == LockEvent(lock, path, HELD, FREE, lock.fencing_token)  # type: ignore[arg-type]
            del events, task
            gc.collect()
            assert len(client._bridge._streams) == 0

    loops.run(main())


def test_an_event_that_nobody_reads_keeps_no_lock(loops: Loops, server: ZooKeeper, path: str) -> None:
    async def main() -> None:
        async with Client(server.address) as client:
            events, lock = client.events(), client.mutex(path)
            async with lock:
                pass
            await until(lambda: len(events._unmerged) == 2)
            gone = weakref.ref(lock)
            del lock
            gc.collect()
            assert gone() is None
            event = await events.__anext__()
            assert isinstance(event, LockEvent)
            assert (event.lock, event.path) == (None, path)

    loops.run(main())


def test_waiting_reader_is_kept_alive(loops: Loops, server: ZooKeeper, path: str) -> None:
    """A loop refers to a task only through the object that the task waits for."""
    read: list[zklock.Event] = []

    async def consume(client: Client) -> None:
        async for event in client.events():
            read.append(event)
        read.append(ClientEvent(ClientState.CLOSED, ClientState.CLOSED))

    async def main() -> None:
        client = await Client(server.address).connect()
        task = asyncio.create_task(consume(client))
        await asyncio.sleep(0.01)
        gone = weakref.ref(task)
        del task
        gc.collect()
        assert gone() is not None
        async with client.mutex(path):
            pass
        await client.close()
        await until(lambda: len(read) == 4)

    loops.run(main())


def test_on_event_at_any_time(loops: Loops, server: ZooKeeper, path: str) -> None:
    first: list[zklock.Event] = []
    second: list[zklock.Event] = []

    async def coroutine(event: zklock.Event) -> None:
        assert asyncio.get_running_loop()
        await asyncio.sleep(0)
        second.append(event)

    async def main() -> None:
        client = Client(server.address)
        with pytest.raises(RuntimeError, match="not connected yet"):
            client.on_event(first.append)
        async with client:
            lock = client.mutex(path)
            await lock.acquire()
            listener = client.on_event(first.append)
            client.on_event(coroutine)
            await lock.release()
            await until(lambda: first == second != [])
            assert first[-1] == LockEvent(lock, path, FREE, HELD, first[-1].token)  # type: ignore[arg-type, union-attr]
            assert first[-1].lock is lock  # type: ignore[union-attr]
            listener.stop()
            listener.stop()
            told = len(first)
            async with lock:
                pass
            await until(lambda: len(second) >= told + 2)
            assert len(first) == told
            for wrong in (1, None):
                with pytest.raises(TypeError, match=f"callback: expected a callable, not {type(wrong).__name__}"):
                    client.on_event(wrong)  # type: ignore[arg-type]
        await until(lambda: second[-1] == ClientEvent(ClientState.CLOSED, ClientState.CONNECTED))
        with pytest.raises(zklock.ClientClosed):
            client.on_event(first.append)

    loops.run(main())


Take = Callable[[Client, str], Coroutine[Any, Any, Any]]


async def take_lock(client: Client, path: str) -> Any:
    lock = client.mutex(path)
    await lock.acquire()
    return lock


async def take_leases(client: Client, path: str) -> Any:
    return await client.semaphore(path, 2).acquire(2)


def test_a_callback_that_another_one_stops_is_not_called(loops: Loops, server: ZooKeeper, path: str) -> None:
    """Both callbacks are due for the same event, and the loop has scheduled the second one too."""

    async def main() -> None:
        async with Client(server.address) as client:
            lock, first, second = client.mutex(path), [], []

            def stop(event: object) -> None:
                first.append(event)
                listener.stop()

            lock.on_event(stop)
            listener = lock.on_event(second.append)
            await lock.acquire()
            await until(lambda: first)
            await lock.release()
            await until(lambda: len(first) == 2)
            assert second == []

    loops.run(main())


@pytest.mark.parametrize("take", [take_lock, take_leases])
def test_on_lost_and_on_event_of_a_lock_and_of_leases(loops: Loops, take: Take) -> None:
    async def main(server: StandaloneServer) -> None:
        async with Client(server.address) as client:
            # Another lock of the same client, for which no callback is registered.
            other = client.mutex("/other")
            await other.acquire()
            held = await take(client, "/a")
            token = held.fencing_token
            lost: list[LockEvent] = []
            every: list[LockEvent] = []
            stopped: list[LockEvent] = []
            in_task: list[LockEvent] = []

            async def coroutine(event: LockEvent) -> None:
                in_task.append(event)

            held.on_lost(lost.append)
            held.on_lost(coroutine)
            held.on_lost(stopped.append).stop()
            held.on_event(every.append)
            server.expire(client)
            await until(lambda: lost and every and in_task)
            with pytest.raises(zklock.LockLost):
                await held.release()
            await until(lambda: every[-1].state is FREE)
            assert lost == in_task
            assert lost[0].state in (LOST, UNCERTAIN)
            assert lost[0].lock is (held if isinstance(held, Lock) else None)
            assert {(event.path, event.token) for event in (*lost, *every)} == {("/a", token)}
            assert every[-1].previous is LOST
            assert (len(lost), stopped) == (1, [])
            with pytest.raises(TypeError, match="callback: expected a callable, not int"):
                held.on_lost(1)
            if not isinstance(held, Lock):
                with pytest.raises(zklock.NotOwner):
                    held.on_lost(lost.append)
                return
            # A release is no loss. The callback also receives events of the next hold.
            async with held:
                pass
            assert len(lost) == 1
            await held.acquire()
            server.expire(client)
            await until(lambda: len(lost) == 2)
            assert lost[1].token > token

    with StandaloneServer() as server:
        loops.run(main(server))


@pytest.mark.parametrize("take", [take_lock, take_leases])
def test_the_end_of_a_client_is_a_loss(loops: Loops, server: ZooKeeper, path: str, take: Take) -> None:
    """The callback is called before ``close()`` returns. A release before that is no loss."""

    async def main() -> None:
        async with Client(server.address) as client, Client(server.address) as other:
            held, queue = await take(client, path), other.mutex(path)
            lost: list[LockEvent] = []
            held.on_lost(lost.append)
            token = held.fencing_token
            released = client.mutex(f"{path}-released")
            released.on_lost(lambda event: pytest.fail(f"{event}"))
            async with released:
                pass
            await client.close()
            assert [(event.state, event.previous, event.path, event.token) for event in lost] == [
                (FREE, HELD, path, token)
            ]
            assert await queue.participants() == []

    loops.run(main())


def test_on_lost_of_a_multi_lock_is_called_for_each_of_its_locks(loops: Loops) -> None:
    async def main(server: StandaloneServer) -> None:
        async with Client(server.address) as client:
            lost: list[LockEvent] = []
            multi = client.multi(["/a", client.rwlock("/b").read])
            multi.on_lost(lost.append)
            async with multi.hold() as hold:
                server.expire(client)
                assert await hold.wait_lost(timeout=60)
                await until(lambda: len(lost) == 2)
                assert {id(event.lock) for event in lost} == {id(lock) for lock in multi.locks}
                await hold.wait_lost()
                with pytest.raises(zklock.LockLost):
                    await hold.release()

    with StandaloneServer() as server:
        loops.run(main(server))


def test_a_callback_that_refers_to_its_lock_is_collected_with_it(loops: Loops, server: ZooKeeper, path: str) -> None:
    async def main() -> None:
        async with Client(server.address) as client:
            lock = client.mutex(path)
            lock.on_lost(lambda event: lock.cancel())  # noqa: F821
            gone = weakref.ref(lock)
            del lock
            gc.collect()
            assert gone() is None

    loops.run(main())


def test_callbacks_have_the_context_of_the_task_that_connected(loops: Loops, server: ZooKeeper, path: str) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    values: list[str] = []

    def callback(_: object) -> None:
        values.append(variable.get())
        # Each call has a copy of the context.
        variable.set("callback")

    async def coroutine(argument: object) -> None:
        callback(argument)

    async def main() -> None:
        variable.set("connect")
        async with Client(server.address, on_event=callback) as client:
            variable.set("register")
            lock = client.mutex(path)
            listeners = [client.on_event(callback), client.on_event(coroutine), lock.on_event(callback)]
            lock.set_revocable(callback)
            async with lock:
                await client.revoke(lock.node_path)
                # Four callbacks for the acquired lock, and one for the request.
                await until(lambda: len(values) >= 5)
            del listeners

    loops.run(main())
    assert set(values) == {"connect"}


def test_no_python_code_runs_while_the_library_makes_an_event(server: ZooKeeper, path: str) -> None:
    """A signal handler runs only in Python code. An exception of a handler must not drop an event."""
    callers: list[tuple[str, str]] = []

    def profile(frame: Any, event: str, _: object) -> None:
        if event == "call" and frame.f_back is not None:
            callers.append((frame.f_back.f_code.co_name, frame.f_code.co_name))

    async def main() -> None:
        gc.collect()
        gc.disable()  # a destructor may be Python code
        sys.setprofile(profile)
        try:
            async with Client(server.address, on_event=events.append) as client, client.mutex(path):
                pass
            await until(lambda: len(events) == 4)
        finally:
            sys.setprofile(None)
            gc.enable()

    events: list[zklock.Event] = []
    Loops(asyncio.SelectorEventLoop).run(main())
    assert {callee for caller, callee in callers if caller == "drain"} == {"call_soon"}
    assert events[0] == ClientEvent(ClientState.CONNECTED, ClientState.CONNECTING)
    for event, (state, previous) in zip(events[1:3], [(HELD, FREE), (FREE, HELD)]):
        assert isinstance(event, LockEvent)
        assert event.token > 0
        assert event == LockEvent(event.lock, path, state, previous, event.token)
