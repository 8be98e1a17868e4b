"""Tests of the standalone server and of its faults."""

from __future__ import annotations

import gc
import inspect
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

import zklock
import zklock.testing
from conftest import Waiter, wait_until
from zklock import ClientState, LockState
from zklock.testing import Op, Session, StandaloneServer

PATH = "/locks/a"


def test_server_runs_during_its_block() -> None:
    with StandaloneServer() as server:
        assert server.address.startswith("127.0.0.1:")
        assert repr(server) == f"<zklock.testing.StandaloneServer '{server.address}'>"
        with zklock.Client(server.address) as client, client.mutex(PATH) as lock:
            assert lock.is_held
            [session] = server.sessions()
            assert (session.id, session.timeout, session.is_connected) == (client.session_id, 10.0, True)
            assert [session] == server.sessions()
            assert repr(session) == f"<zklock.testing.Session {session.id:#x} timeout=10 connected>"
        assert server.sessions() == []
    with pytest.raises(zklock.ConnectionLost):
        zklock.Client(server.address, connect_timeout=0.1)
    server.stop()
    for call in [server.sessions, server.expire, server.cut, server.halt, server.restart, lambda: server.delay(1)]:
        with pytest.raises(zklock.ClientClosed, match="was stopped"):
            call()
    with StandaloneServer(server.address) as again:
        assert again.address == server.address


def test_server_stops_with_its_last_reference() -> None:
    server = StandaloneServer()
    address = server.address
    del server
    gc.collect()
    StandaloneServer(address).stop()


def test_a_stopped_server_has_no_descriptor() -> None:
    code = """
import os
from zklock.testing import StandaloneServer

before, servers = len(os.listdir("/proc/self/fd")), []
for _ in range(10):
    with StandaloneServer() as server:
        servers.append(server)
assert len(os.listdir("/proc/self/fd")) == before
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_session_that_expires_in_a_block_is_lost_at_its_end(zklock_server: StandaloneServer) -> None:
    with zklock.Client(zklock_server.address) as client:
        lock = client.mutex(PATH)
        with pytest.raises(zklock.LockLost), lock:
            before = client.session_id
            zklock_server.expire(client)
            wait_until(lambda: lock.state is LockState.LOST)
            assert not lock.is_held
        wait_until(lambda: client.state is ClientState.CONNECTED)
        assert client.session_id != before
        with lock:
            zklock_server.cut(client.session_id)


def test_expire_without_argument_ends_all_sessions(zklock_server: StandaloneServer) -> None:
    with zklock.Client(zklock_server.address) as one, zklock.Client(zklock_server.address) as two:
        before = {one.session_id, two.session_id}
        zklock_server.expire()
        wait_until(lambda: not before & {one.session_id, two.session_id, 0})


def test_holder_keeps_its_token_after_a_cut(zklock_server: StandaloneServer) -> None:
    with zklock.Client(zklock_server.address) as client, client.mutex(PATH) as lock:
        token = lock.fencing_token
        zklock_server.cut(client)
        assert lock.is_held
        assert len(lock.participants()) == 1
        assert lock.fencing_token == token


def test_frozen_holder_is_replaced_and_lost_after_thaw(zklock_server: StandaloneServer) -> None:
    with (
        zklock.Client(zklock_server.address, session_timeout=3) as frozen,
        zklock.Client(zklock_server.address) as other,
    ):
        held, wanted = frozen.mutex(PATH), other.mutex(PATH)
        held.acquire()
        zklock_server.freeze(frozen)
        assert wanted.acquire(timeout=60)
        assert held.state is LockState.UNCERTAIN
        zklock_server.thaw(frozen)
        wait_until(lambda: held.state is LockState.LOST)
        with pytest.raises(zklock.LockLost):
            held.release()
        wanted.release()


def test_a_delay(zklock_server: StandaloneServer) -> None:
    with zklock.Client(zklock_server.address) as client:
        lock = client.mutex(PATH)
        zklock_server.delay(0.2, client)
        started = time.monotonic()
        assert lock.acquire(timeout=60)
        assert time.monotonic() - started >= 0.2
        zklock_server.delay(0)
        lock.release()


@pytest.mark.parametrize("op", [Op.CREATE2, Op.GET_CHILDREN2, Op.DELETE, 15])
def test_a_lost_reply_leaves_no_node(zklock_server: StandaloneServer, op: int) -> None:
    kazoo = KazooClient(zklock_server.address)
    kazoo.start()
    with zklock.Client(zklock_server.address) as client:
        lock = client.mutex(PATH)
        zklock_server.lose_reply(op, client)
        with lock:
            assert len(kazoo.get_children(PATH)) == 1
        assert kazoo.get_children(PATH) == []
    kazoo.stop()
    kazoo.close()


def test_a_restart_keeps_everything(zklock_server: StandaloneServer) -> None:
    with zklock.Client(zklock_server.address) as client, client.mutex(PATH) as lock:
        zklock_server.halt()
        wait_until(lambda: lock.state is LockState.SUSPENDED)
        with pytest.raises(zklock.ConnectionLost):
            zklock.Client(zklock_server.address, connect_timeout=0.1)
        zklock_server.restart()
        wait_until(lambda: lock.state is LockState.HELD)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda server: server.expire(7), ValueError, "the server has no session 0x7"),
        (lambda server: server.cut(0), ValueError, "the server has no session 0x0"),
        (
            lambda server: server.freeze(1 << 70),
            ValueError,
            "session is 1180591620717411303424; expected the id of a session",
        ),
        (
            lambda server: server.thaw("x"),
            TypeError,
            "session: expected a zklock.Client, a session id or None, not str",
        ),
        (lambda server: server.cut(True), TypeError, "session: expected .*, not bool"),
        (lambda server: server.delay(-1), ValueError, "seconds: -1 seconds"),
        (lambda server: server.delay("1"), TypeError, "seconds: expected a number of seconds, not str"),
        (
            lambda server: server.lose_reply(12345),
            ValueError,
            "op is 12345; expected the number of a ZooKeeper request",
        ),
        (lambda server: server.lose_reply("create"), TypeError, "op: expected an int, not str"),
        (lambda server: StandaloneServer("nonsense"), ValueError, "not an address to listen on"),
        (lambda server: StandaloneServer(2181), TypeError, "address: expected str, not int"),
        (lambda server: StandaloneServer(server.address), zklock.ServerError, "cannot listen on 127.0.0.1:"),
    ],
)
def test_wrong_arguments(
    zklock_server: StandaloneServer, call: Callable[[Any], Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        call(zklock_server)


def test_ctrl_c_during_the_message_about_a_wrong_session_is_raised(zklock_server: StandaloneServer) -> None:
    class Interrupted(int):
        def __repr__(self) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        zklock_server.expire(Interrupted(1 << 70))


def test_a_client_of_another_server(zklock_server: StandaloneServer) -> None:
    with zklock.Client(zklock_server.address), StandaloneServer() as other, zklock.Client(other.address) as client:
        who = f"the server has no session {client.session_id:#x}"
        with pytest.raises(ValueError, match=who):
            zklock_server.expire(client)
    with pytest.raises(ValueError, match="the client has no session now"):
        zklock_server.expire(client)


def test_a_forked_child_leaves_the_server_alone(zklock_server: StandaloneServer) -> None:
    child = os.fork()
    if child == 0:
        # The child must not go on with the tests in any case.
        try:
            with pytest.raises(zklock.Forked):
                zklock_server.cut()
            with StandaloneServer() as own:
                assert own.sessions() == []
            os._exit(0)
        finally:
            os._exit(1)
    assert Waiter(lambda: os.waitpid(child, 0)).result()[1] == 0
    assert zklock_server.sessions() == []


def test_all_that_is_public_is_documented() -> None:
    assert zklock.testing.__doc__
    assert sorted(zklock.testing.__all__) == ["Op", "Session", "StandaloneServer"]
    for thing in [Op, Session, StandaloneServer]:
        assert inspect.getdoc(thing)
        assert thing.__module__ == "zklock.testing"
        for name, member in vars(thing).items():
            if not name.startswith("_") and (callable(member) or inspect.isdatadescriptor(member)):
                assert inspect.getdoc(member), name


USES_THE_FIXTURE = """
import zklock

def test_fixture_works(zklock_server):
    with zklock.Client(zklock_server.address) as client, client.mutex("/a") as lock:
        assert lock.is_held
"""

USES_NOTHING = """
import sys

def test_it():
    assert "pytest_zklock" in sys.modules
    assert not [name for name in sys.modules if name.partition(".")[0] == "zklock"]
"""


@pytest.mark.parametrize("code", [USES_THE_FIXTURE, USES_NOTHING], ids=["used", "unused"])
def test_pytest_finds_the_fixture_by_itself_and_pays_nothing_for_it(tmp_path: Path, code: str) -> None:
    (tmp_path / "test_it.py").write_text(code)
    command = [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_fixture_of_a_client(zklock_server: StandaloneServer, zklock_client: zklock.Client) -> None:
    assert zklock_client.state is zklock.ClientState.CONNECTED
    assert [session.id for session in zklock_server.sessions()] == [zklock_client.session_id]
    with zklock_client.mutex(PATH) as lock, zklock.Client(zklock_server.address) as other:
        assert not other.mutex(PATH).acquire(timeout=0)
        zklock_server.expire(zklock_client)
        wait_until(lambda: lock.state is zklock.LockState.LOST)
        assert other.mutex(PATH).acquire(timeout=60)
        with pytest.raises(zklock.LockLost):
            lock.release()
        other.close()
        lock.acquire()
