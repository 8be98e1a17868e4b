"""Connecting and closing a client, and the state of its locks when the server does not answer."""

from __future__ import annotations

import gc
import socket
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

import zklock
import zklock.aio
from conftest import SLACK, Inspector, Waiter, ends_at_limit, wait_until
from server import ZooKeeper
from zklock import ClientState


def test_client_has_a_session_until_it_is_closed(server: ZooKeeper) -> None:
    with zklock.Client(server.address, session_timeout=4, connect_timeout=5.5, lease_margin=1) as client:
        assert client.state is ClientState.CONNECTED
        assert client.session_id != 0
        assert repr(client) == f"<zklock.Client '{server.address}' CONNECTED session={client.session_id:#x}>"
    assert client.state is ClientState.CLOSED
    assert "CLOSED" in repr(client)
    client.close()
    client.close()


def test_a_chroot(server: ZooKeeper, path: str, inspector: Inspector) -> None:
    with pytest.raises(zklock.ServerError, match=f"the chroot {path} does not exist; .* chroot.create"):
        zklock.Client(server.address + path)
    create = {"chroot.create": "true"}
    with zklock.Client(server.address + path, options=create) as client, client.mutex("/a/b") as lock:
        assert len(inspector.nodes(f"{path}/a/b")) == 1
        assert lock.participants()[0].node_path.startswith("/a/b/")


def test_a_new_server_list(server: ZooKeeper, path: str) -> None:
    with zklock.Client(server.address) as client, client.mutex(path) as lock:
        session = client.session_id
        client.set_servers(f"{server.address},{server.address}")
        assert f"'{server.address},{server.address}'" in repr(client)
        with pytest.raises(ValueError, match='has the chroot "/x", but the client has no chroot'):
            client.set_servers("h:2181/x")
        with pytest.raises(ValueError, match='write it once, after the last server: "h1:2181,h2:2181/team"'):
            client.set_servers("h1:2181/team,h2:2181/team")
        with pytest.raises(TypeError, match="servers: expected str, not int"):
            client.set_servers(2181)  # type: ignore[arg-type]
        assert lock.is_held
        assert client.session_id == session
    with pytest.raises(zklock.ClientClosed):
        client.set_servers(server.address)


def test_a_new_server_list_keeps_the_chroot(server: ZooKeeper, path: str) -> None:
    create = {"chroot.create": "true"}
    with zklock.Client(server.address + path, options=create) as client:
        client.set_servers(server.address)
        assert f"'{server.address}{path}'" in repr(client)
        client.set_servers(server.address + path)


def test_a_server_list_that_is_followed(server: ZooKeeper, path: str) -> None:
    options = {"servers.follow_config": "true"}
    with zklock.Client(server.address, options=options) as client, client.mutex(path) as lock:
        assert lock.is_held
    with pytest.raises(ValueError, match='is "yes"; expected true or false'):
        zklock.Client(server.address, options={"servers.follow_config": "yes"})


def test_the_lease_margin_is_kept(server: ZooKeeper, path: str) -> None:
    with zklock.Client(server.address, session_timeout=10, lease_margin=0.5) as client, client.mutex(path) as lock:
        assert 9 < lock.remaining <= 9.5


def test_options_by_name(server: ZooKeeper, path: str) -> None:
    options = {"session.timeout": "9000", "lease.margin": "500"}
    with zklock.Client(server.address, options=options) as client, client.mutex(path) as lock:
        assert client.metrics().session_timeout == 9.0
        # With the default margin, a third, at most 6 seconds would remain.
        assert 6 < lock.remaining <= 8.5
    with zklock.Client(server.address, session_timeout=8, options=options) as client:
        assert client.metrics().session_timeout == 8.0


def test_options_from_a_file(server: ZooKeeper, path: str, tmp_path: Path) -> None:
    file = tmp_path / "zklock.conf"
    file.write_text("# of this machine\nsession.timeout = 9000\nlease.margin = 500\n")
    with zklock.Client.from_file(server.address, file) as client, client.mutex(path) as lock:
        assert client.metrics().session_timeout == 9.0
        # With the default margin, a third, at most 6 seconds would remain.
        assert 6 < lock.remaining <= 8.5
    options = {"session.timeout": "8000"}
    with zklock.Client.from_file(server.address, str(file), options=options) as client:
        assert client.metrics().session_timeout == 8.0
    with zklock.Client.from_file(server.address, file, options=options, session_timeout=7) as client:
        assert client.metrics().session_timeout == 7.0


@pytest.mark.parametrize("make", [zklock.Client, zklock.aio.Client])
def test_bad_options(make: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='option "session_timeout" is unknown; expected one of '):
        make("h:1", options={"session_timeout": "1"})
    with pytest.raises(ValueError, match=r'option lease\.margin is "x"; expected 0 to 2147483647 milliseconds'):
        make("h:1", options={"lease.margin": "x"})
    for bad in [5, ["session.timeout"], "session.timeout"]:
        with pytest.raises(TypeError, match="options: expected names and values that are str"):
            make("h:1", options=bad)
    for bad in [{"session.timeout": 5000}, {5: "5"}]:
        with pytest.raises(TypeError, match=rf"options: {next(iter(bad))!r}: expected names and values that are str"):
            make("h:1", options=bad)
    file = tmp_path / "zklock.conf"
    with pytest.raises(ValueError, match=r"zklock.conf\": No such file"):
        make.from_file("h:1", file)
    file.write_text("\nlease.margin: 5\n")
    with pytest.raises(ValueError, match=r"zklock.conf\", line 2: .* is not an option; expected name = value"):
        make.from_file("h:1", file)
    file.write_text("lease.margin=5")
    with pytest.raises(TypeError, match="options: expected names"):
        make.from_file("h:1", file, options=5)
    with pytest.raises(TypeError, match="file"):
        make.from_file("h:1", 5)


def cannot_connect(address: str) -> None:
    with pytest.raises(zklock.ConnectionLost, match=address) as raised:
        zklock.Client(address, connect_timeout=0.5)
    assert isinstance(raised.value, ConnectionError)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    ends_at_limit(0.5, lambda: cannot_connect(address))


def test_nobody_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ends_at_limit(0.5, lambda: cannot_connect(f"127.0.0.1:{silent.getsockname()[1]}"))


def test_credentials(server: ZooKeeper, path: str, inspector: Inspector) -> None:
    from kazoo.security import make_digest_acl

    inspector.kazoo.ensure_path(path.rpartition("/")[0])
    inspector.kazoo.create(path, acl=[make_digest_acl("alice", "secret", all=True)])
    for auth in [[("digest", "alice:secret")], iter([("digest", b"alice:secret")])]:
        with zklock.Client(server.address, auth=auth) as client, client.mutex(path) as lock:
            assert lock.is_held
    with zklock.Client(server.address, auth=()) as client, pytest.raises(zklock.PermissionDenied) as denied:
        client.mutex(path).acquire(timeout=60)
    assert denied.value.status == -11
    with pytest.raises(zklock.AuthFailed):
        zklock.Client(server.address, auth=[("no-such-scheme", "x")])


def test_access_control_lists(server: ZooKeeper, path: str, inspector: Inspector) -> None:
    inspector.kazoo.ensure_path(path.rpartition("/")[0])
    inspector.kazoo.add_auth("digest", "team:secret")
    options = {"acl": "auth::rw,world:anyone:r", "acl.lock_directory": "auth::crd", "acl.parents": "open"}
    with zklock.Client(server.address, auth=[("digest", "team:secret")], options=options) as client:
        with client.mutex(f"{path}/lock") as lock:
            expected = {lock.node_paths[0]: [3, 1], f"{path}/lock": [13], path: [31]}
            lists = {node: inspector.kazoo.get_acls(node)[0] for node in expected}
        assert {node: [entry.perms for entry in acl] for node, acl in lists.items()} == expected
        assert [acl[0].id.scheme for acl in lists.values()] == ["digest", "digest", "world"]
        with zklock.Client(server.address) as stranger, pytest.raises(zklock.PermissionDenied) as denied:
            stranger.mutex(f"{path}/lock").acquire(timeout=60)
    assert str(denied.value).endswith(f"this requires the permission c (create) on {path}/lock")
    with pytest.raises(ValueError, match=r"^option acl: entry 1: the scheme \"sals\" is unknown; expected world,"):
        zklock.Client(server.address, options={"acl": "sals:me:r"})
    needs = pytest.raises(zklock.InvalidArgument, match=r"require credentials: set the option auth\.digest")
    with zklock.Client(server.address, options={"acl": "creator_all"}) as client, needs:
        client.mutex(path).acquire(timeout=60)


@pytest.mark.parametrize(
    "settings",
    [
        {"wait_for_kazoo": True},
        {"options": {"locks.wait_for_kazoo": "true"}},
        {"wait_for_kazoo": True, "options": {"locks.wait_for_kazoo": "false"}},
    ],
    ids=["argument", "option", "argument-before-option"],
)
def test_kazoo_and_zklock_wait_for_each_other(
    server: ZooKeeper, path: str, inspector: Inspector, settings: dict[str, Any]
) -> None:
    def kazoo(path: str) -> Any:
        patterns = ["-lock-", "__READ__", "__WRIT__"]
        return inspector.kazoo.Lock(path, extra_lock_patterns=patterns)

    with zklock.Client(server.address, **settings) as client:
        for lock in [client.mutex(f"{path}-a"), client.rwlock(f"{path}-b").read, client.rwlock(f"{path}-c").write]:
            with kazoo(lock.path):
                assert lock.acquire(timeout=0) is False
                waiter = Waiter(lambda lock=lock: (lock.acquire(), lock.release()))
                inspector.wait_for(lock.path, 2)
            waiter.result()
            with lock:
                assert kazoo(lock.path).acquire(blocking=False) is False
        with zklock.Client(server.address) as other, kazoo(path), pytest.raises(zklock.ForeignContender):
            other.mutex(path).acquire(timeout=0)


def test_close_wakes_everybody(server: ZooKeeper, client: zklock.Client, path: str, inspector: Inspector) -> None:
    with client.mutex(path), zklock.Client(server.address) as closing:
        lock = closing.mutex(path)
        waiters = [Waiter(lock.acquire), Waiter(lambda: lock.acquire(timeout=60)), Waiter(lock.__enter__)]
        inspector.wait_for(path, 4)
        closing.close()
        for waiter in waiters:
            with pytest.raises(zklock.ClientClosed):
                waiter.result()
        assert len(inspector.nodes(path)) == 1
    for call in [
        lock.acquire,
        lock.release,
        lock.participants,
        lock.cancel,
        lambda: lock.is_held,
        lambda: lock.fencing_token,
    ]:
        with pytest.raises(zklock.ClientClosed):
            call()
    with pytest.raises(zklock.ClientClosed):
        closing.mutex(path)


def test_exception_in_the_block_propagates(server: ZooKeeper) -> None:
    with pytest.raises(KeyError), zklock.Client(server.address) as client:
        raise KeyError("mine")
    assert client.state is ClientState.CLOSED


@pytest.mark.filterwarnings("ignore:the client of .* was not closed:ResourceWarning")
def test_the_session_ends_with_the_last_handle(server: ZooKeeper, path: str, inspector: Inspector) -> None:
    client = zklock.Client(server.address)
    gone = weakref.ref(client)
    lock = client.mutex(path)
    del client
    gc.collect()
    assert gone() is None
    lock.acquire()
    del lock
    gc.collect()
    assert inspector.nodes(path) == []


def test_the_server_dies(own_server: ZooKeeper, path: str) -> None:
    with zklock.Client(own_server.address, session_timeout=6) as client:
        held, wanted = client.mutex(path), client.mutex(path + "-other")
        held.acquire()
        other = zklock.Client(own_server.address, session_timeout=6)
        other_lock = other.mutex(path)
        waiter = Waiter(lambda: other_lock.acquire(timeout=2))
        wait_until(lambda: len(held.participants()) == 2)
        started = time.monotonic()
        own_server.kill()
        wait_until(lambda: client.state is ClientState.SUSPENDED)
        with pytest.raises(zklock.ConnectionLost):
            wanted.acquire(timeout=0)
        with pytest.raises(zklock.ConnectionLost, match=own_server.address):
            wanted.acquire(timeout=0.3)
        with pytest.raises(zklock.ConnectionLost):
            waiter.result()
        assert time.monotonic() - started < 3.5 + SLACK  # the session leases are still valid
        wait_until(lambda: not held.is_held)
        assert held.state is zklock.LockState.UNCERTAIN
        assert held.remaining == 0.0
        closing = time.monotonic()
        other.close()
        assert time.monotonic() - closing < 2.5 + SLACK


@pytest.mark.filterwarnings("ignore:the client of .* was not closed:ResourceWarning")
@pytest.mark.parametrize("what", ["client", "lock"])
def test_other_threads_go_on_while_a_forgotten_client_closes(own_server: ZooKeeper, what: str) -> None:
    things = [zklock.Client(own_server.address, session_timeout=10)]
    if what == "lock":
        things = [things[0].mutex("/a")]
    own_server.pause()
    done = threading.Event()
    beats: list[float] = []

    def beat() -> None:
        while not done.wait(0.01):
            beats.append(time.monotonic())

    beating = Waiter(beat)
    wait_until(lambda: beats)
    started = time.monotonic()
    del things[0]
    took = time.monotonic() - started
    done.set()
    beating.result()
    assert 1.9 < took < 2.5 + SLACK
    assert sum(started < beat < started + took for beat in beats) > 10
