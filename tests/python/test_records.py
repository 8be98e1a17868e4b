"""Events, participants and waiting calls are plain data: they can be pickled, converted and inspected."""

from __future__ import annotations

import dataclasses
import pickle
import typing
import warnings

import pytest

import zklock
from conftest import Waiter, wait_until
from server import ZooKeeper


def test_events_and_participants_are_data(client: zklock.Client, path: str) -> None:
    seen: list[zklock.LockEvent] = []
    lock = client.mutex(path, data=b"me")
    listener = lock.on_event(seen.append)
    with lock:
        waiter = Waiter(lambda: client.mutex(path).acquire(timeout=60))
        wait_until(lambda: len(lock.participants()) == 2 and seen)
        holder = lock.participants()[0]
        token = lock.fencing_token
    assert waiter.result()
    listener.stop()
    event = seen[0]
    assert event.lock is lock
    fields = {"path": path, "state": zklock.LockState.HELD, "previous": zklock.LockState.FREE, "token": token}
    assert dataclasses.asdict(event) == {**fields, "fencing_pass": 0}
    copy = pickle.loads(pickle.dumps(event))
    assert copy == event
    assert copy.lock is None
    assert dataclasses.asdict(holder) == {
        "node_path": holder.node_path,
        "holds": True,
        "session_id": client.session_id,
        "czxid": token,
        "data": b"me",
    }
    assert pickle.loads(pickle.dumps(holder)) == holder
    assert hash(holder) == hash(dataclasses.replace(holder))
    client_event = zklock.ClientEvent(zklock.ClientState.LOST, zklock.ClientState.SUSPENDED)
    assert pickle.loads(pickle.dumps(client_event)) == client_event
    for kind in (zklock.LockEvent, zklock.ClientEvent, zklock.Participant, zklock.Waiting, zklock.Metrics):
        assert typing.get_type_hints(kind)


def test_waiting_calls_are_data(client: zklock.Client, path: str) -> None:
    lock = client.mutex(path)
    with lock:
        waiter = Waiter(lambda: lock.acquire(timeout=60))
        wait_until(lambda: lock.waiting() and lock.waiting()[0].session_id)
        call = lock.waiting()[0]
        assert (call.waits_for, call.session_id) == (zklock.WaitsFor.NODE, client.session_id)
        assert pickle.loads(pickle.dumps(call)) == call
        assert dataclasses.asdict(call)["ahead"] == lock.node_path
    assert waiter.result()


def test_an_open_client_that_is_collected_warns(server: ZooKeeper) -> None:
    with pytest.warns(ResourceWarning, match=f"the client of '{server.address}' was not closed"):
        zklock.Client(server.address)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with zklock.Client(server.address):
            pass
        zklock.Client(server.address).close()


def test_names_of_other_libraries_are_answered(client: zklock.Client, path: str) -> None:
    with pytest.raises(TypeError, match=r'^Client\(\) got an unexpected keyword argument "hosts"; .* called servers$'):
        zklock.Client(hosts="localhost:2181")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^Client\(\) missing 1 required positional argument: 'servers'$"):
        zklock.Client()  # type: ignore[call-arg]
    for call in (client.mutex(path).acquire, client.mutex(path).hold):
        with pytest.raises(TypeError, match='unexpected keyword argument "blocking"; timeout=0 makes one attempt'):
            call(blocking=False)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r'unexpected keyword argument "limit"$'):
            call(limit=1)  # type: ignore[call-arg]
