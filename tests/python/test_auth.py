"""Credentials from callables, options and files."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kazoo.security import make_digest_acl

import zklock
import zklock.aio
from conftest import Inspector, Loops, Program, wait_until
from server import ZooKeeper


def connections(server: ZooKeeper) -> set[int]:
    """The descriptors of the connections of this process to the server."""
    port = int(server.address.rsplit(":", 1)[1])
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(entry).startswith("socket:"):
                with socket.socket(fileno=os.dup(int(entry.name))) as duplicate:
                    if duplicate.family == socket.AF_INET and duplicate.getpeername()[1] == port:
                        found.add(int(entry.name))
    return found


def cut(descriptors: set[int]) -> None:
    for descriptor in descriptors:
        with socket.socket(fileno=os.dup(descriptor)) as duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def protected(path: str, inspector: Inspector) -> str:
    inspector.kazoo.ensure_path(path.rsplit("/", 1)[0])
    inspector.kazoo.create(path, acl=[make_digest_acl("alice", "secret", all=True)])
    return path


def test_callable_returns_credentials_for_each_connection(server: ZooKeeper, protected: str) -> None:
    threads: list[str] = []

    def credentials() -> bytes | str:
        threads.append(threading.current_thread().name)
        return "alice:secret" if len(threads) % 2 else b"alice:secret"

    before = connections(server)
    with zklock.Client(server.address, auth=[("digest", credentials)]) as client, client.mutex(protected) as lock:
        assert threads == ["zklock-auth"]
        session = client.session_id
        cut(connections(server) - before)
        wait_until(lambda: len(threads) >= 2 and client.state is zklock.ClientState.CONNECTED)
        assert client.session_id == session
        wait_until(lambda: lock.is_held)
    with pytest.raises(zklock.PermissionDenied), zklock.Client(server.address) as client:
        client.mutex(protected).acquire(timeout=60)


def raises() -> bytes:
    raise RuntimeError("the vault is sealed")


def exits() -> bytes:
    raise SystemExit


async def coroutine() -> bytes:
    return b"alice:secret"


@pytest.mark.filterwarnings("ignore:coroutine 'coroutine' was never awaited:RuntimeWarning")
@pytest.mark.parametrize(
    ("credentials", "message"),
    [
        (raises, 'the auth callback for "digest" failed: RuntimeError: the vault is sealed'),
        (exits, "failed: SystemExit"),
        (lambda: 7, "failed: it returned int; expected bytes or str"),
        (lambda: None, "failed: it returned NoneType; expected bytes or str"),
        (lambda: "\ud800", "failed: it returned text that UTF-8 cannot encode"),
        (coroutine, "failed: it returned coroutine; expected bytes or str"),
        (lambda needed: b"a:b", "failed: TypeError: "),
        (lambda: "secret", "returned no user:password"),
        (lambda: b":" * 65537, "returned 65537 bytes; at most 65536 are allowed"),
    ],
)
def test_failing_callable_raises_auth_failed_at_once(server: ZooKeeper, credentials: Any, message: str) -> None:
    started = time.monotonic()
    with pytest.raises(zklock.AuthFailed) as raised:
        zklock.Client(server.address, connect_timeout=60, auth=[("digest", credentials)])
    assert message in str(raised.value)
    assert "secret" not in str(raised.value)
    assert time.monotonic() - started < 5


def test_callable_that_blocks_delays_no_deadline_and_no_close(server: ZooKeeper, path: str) -> None:
    gate, calls = threading.Event(), []

    def credentials() -> str:
        calls.append(1)
        if len(calls) > 1:
            gate.wait()
        return "alice:secret"

    try:
        before = connections(server)
        client = zklock.Client(server.address, auth=[("digest", credentials)])
        cut(connections(server) - before)
        wait_until(lambda: len(calls) == 2)
        started = time.monotonic()
        with pytest.raises(zklock.ConnectionLost, match="auth callback"):
            client.mutex(path).acquire(timeout=0.3)
        with zklock.Client(server.address) as other, other.mutex(path):
            pass
        client.close()
        assert time.monotonic() - started < 10
        with pytest.raises(zklock.ConnectionLost, match="the client has not loaded the result of the auth callback"):
            zklock.Client(server.address, connect_timeout=0.3, auth=[("digest", credentials)])
    finally:
        gate.set()


def test_callable_must_not_wait_for_a_lock(server: ZooKeeper, path: str) -> None:
    with zklock.Client(server.address) as other:

        def credentials() -> str:
            with pytest.raises(zklock.Deadlock):
                other.mutex(path).acquire()
            return "alice:secret"

        zklock.Client(server.address, auth=[("digest", credentials)]).close()


@pytest.mark.filterwarnings("ignore:the client of .* was not closed:ResourceWarning")
def test_client_in_a_cycle_with_its_callable_is_collected(server: ZooKeeper) -> None:
    class Service:
        def __init__(self) -> None:
            self.client = zklock.Client(server.address, auth=[("digest", self.credentials)])

        def credentials(self) -> str:
            return "alice:secret"

    service = weakref.ref(Service())
    wait_until(lambda: gc.collect() is not None and service() is None)


@pytest.mark.parametrize("make", [zklock.Client.from_file, zklock.aio.Client.from_file])
def test_wrong_credentials_are_not_in_messages(make: Any, tmp_path: Path) -> None:
    file = tmp_path / "options"
    for text in ["auth.digest = hunter2", "auth.digest hunter2", "auth.digest: hunter2 = 3"]:
        file.write_text(text)
        with pytest.raises(ValueError, match=r"auth\.digest") as raised:
            make("h:1", file)
        assert "hunter2" not in str(raised.value)
    with pytest.raises(ValueError, match=r"option auth\.digest is not valid; expected user:password"):
        make("h:1", file, options={"auth.digest": "hunter2"})


def test_options_and_files_with_credentials(server: ZooKeeper, protected: str, tmp_path: Path) -> None:
    password, file = tmp_path / "password", tmp_path / "options"
    password.write_text("alice:secret\n")
    file.write_text(f"auth.digest_file = {password}\n")
    for client in [
        zklock.Client(server.address, options={"auth.digest": "alice:secret"}),
        zklock.Client(server.address, options={"auth.digest_file": str(password)}),
        zklock.Client.from_file(server.address, file),
        # An iterator can be used only once.
        zklock.Client.from_file(server.address, file, auth=iter([("digest", "bob:other")])),
    ]:
        with client, client.mutex(protected):
            pass
    password.unlink()
    with pytest.raises(ValueError, match=r"auth\.digest_file .*No such file"):
        zklock.Client.from_file(server.address, file)


def test_aio_client_with_callable(loops: Loops, server: ZooKeeper, protected: str, tmp_path: Path) -> None:
    file = tmp_path / "options"
    file.write_text("session.timeout = 8000\n")

    async def main() -> None:
        threads: list[str] = []

        def credentials() -> str:
            threads.append(threading.current_thread().name)
            return "alice:secret"

        for client in [
            zklock.aio.Client(server.address, auth=[("digest", credentials)]),
            zklock.aio.Client.from_file(server.address, file, auth=iter([("digest", credentials)])),
        ]:
            before = len(threads)
            async with client, client.mutex(protected):
                assert threads[before:] == ["zklock-auth"]
        with pytest.raises(zklock.AuthFailed, match="the vault is sealed"):
            await zklock.aio.Client(server.address, auth=[("digest", raises)]).connect()

    loops.run(main())


EXITS = """
import sys, threading, time
import zklock
started = threading.Event()
def credentials():
    if len(sys.argv) > 2 and sys.argv[2] == "first":
        started.set()
        time.sleep(3600)
    return "alice:secret"
def connect():
    try:
        zklock.Client(sys.argv[1], auth=[("digest", credentials)], connect_timeout=3600)
    except zklock.ClientClosed:
        pass
if sys.argv[2] == "first":
    threading.Thread(target=connect, daemon=True).start()
    started.wait()
else:
    client = zklock.Client(sys.argv[1], auth=[("digest", credentials)])
print("ends", flush=True)
"""


@pytest.mark.parametrize("when", ["first", "never"])
def test_interpreter_ends_although_a_callable_blocks(
    server: ZooKeeper, program: Callable[..., Program], when: str
) -> None:
    ending = program(EXITS, server.address, when)
    assert ending.read_line() == "ends"
    assert ending.ends(10) == 0


DROPPED = """
import gc, os, sys, time, zklock

class Application:
    def __init__(self):
        self.client = zklock.Client(sys.argv[1], auth=[("digest", self.credentials)])

    def credentials(self):
        return "user:password"

applications = [Application() for _ in range(3)]
print("connected", flush=True)
sys.stdin.readline()
applications.clear()
gc.collect()
end = time.monotonic() + 60
while any(open(f"/proc/self/task/{task}/comm").read() == "zkl-load\\n" for task in os.listdir("/proc/self/task")):
    assert time.monotonic() < end, "a thread still loads credentials"
    time.sleep(0.01)
print("fine", flush=True)
"""


def test_dropped_clients_stop_loading(own_server: ZooKeeper, program: Callable[..., Program]) -> None:
    # The garbage collector ends the callable before it ends the client, which then tries to connect to end its session.
    dropping = program(DROPPED, own_server.address)
    assert dropping.read_line() == "connected"
    own_server.kill()
    dropping.write_line()
    assert dropping.read_line() == "fine"
    assert dropping.ends() == 0
