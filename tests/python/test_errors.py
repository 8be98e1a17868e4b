"""Tests of the exceptions against the core's table of statuses, and of wrong arguments."""

from __future__ import annotations

import contextlib
import copy
import math
import pickle
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

import zklock
from server import ZooKeeper
from zklock import _zklock

C_ONLY = [zklock.Status.HANDLE, zklock.Status.BUFFER, zklock.Status.PENDING]


@pytest.mark.parametrize(("number", "macro", "name", "text"), _zklock._statuses())
def test_every_status_has_its_class(number: int, macro: str, name: str, text: str) -> None:
    assert number < 0
    assert macro.startswith("ZKL_E_")
    assert text
    assert zklock.Status[macro.removeprefix("ZKL_E_")] == number
    raised = getattr(zklock, name)
    assert issubclass(raised, zklock.Error)
    assert name in zklock.__all__
    assert raised.__module__ == "zklock"
    assert raised.__doc__
    # Only C programs receive the statuses that share the class of another status.
    assert raised.status is zklock.Status(number) or number in C_ONLY


def test_every_class_has_its_status() -> None:
    named = {name for _, _, name, _ in _zklock._statuses()} | {"Error", "InvalidType"}
    classes = {
        name
        for name in zklock.__all__
        if isinstance(getattr(zklock, name), type) and issubclass(getattr(zklock, name), zklock.Error)
    }
    assert named == classes


def test_exceptions_travel_between_processes() -> None:
    for name in ["Error", "LockTimeout", "ConnectionLost", "NotOwner"]:
        error = getattr(zklock, name)("a message")
        back = pickle.loads(pickle.dumps(error))
        assert type(back) is type(error)
        assert (str(back), back.status) == ("a message", error.status)


@pytest.mark.parametrize(
    ("raised", "base"),
    [
        (zklock.InvalidArgument, ValueError),
        (zklock.InvalidType, TypeError),
        (zklock.LockTimeout, TimeoutError),
        (zklock.NotOwner, RuntimeError),
        (zklock.Deadlock, RuntimeError),
        (zklock.ClientClosed, RuntimeError),
        (zklock.ConnectionLost, ConnectionError),
        (zklock.AuthFailed, PermissionError),
        (zklock.PermissionDenied, PermissionError),
        (zklock.Forked, RuntimeError),
        (zklock.Exhausted, OSError),
        (zklock.InternalError, RuntimeError),
        (zklock.Unsupported, NotImplementedError),
    ],
)
def test_an_exception_is_also_the_builtin_that_fits(raised: type[zklock.Error], base: type[Exception]) -> None:
    with pytest.raises(base, match=r"^a message$") as caught:
        raise raised("a message")
    assert isinstance(caught.value, zklock.Error)


def test_statuses_are_numbers_with_names() -> None:
    error = zklock.LockTimeout("late")
    assert error.status is zklock.Status.TIMEOUT
    assert error.status == -3
    assert error.status.name == "TIMEOUT"
    assert zklock.Status(0) is zklock.Status.OK


def test_wrong_arguments_have_the_status(client: zklock.Client, path: str) -> None:
    calls: list[tuple[type[Exception], Callable[[], object]]] = [
        (ValueError, lambda: client.mutex("no slash")),
        (ValueError, lambda: client.mutex("/\ud800")),
        (ValueError, lambda: client.mutex(path, timeout=-1)),
        (ValueError, lambda: client.semaphore(path, 2**31)),
        (ValueError, lambda: client.multi([path, path])),
        (TypeError, lambda: client.mutex(1)),  # type: ignore[arg-type]
        (TypeError, lambda: client.mutex(path, timeout="1")),  # type: ignore[arg-type]
        (TypeError, lambda: client.semaphore(path, "1")),  # type: ignore[call-overload]
        (TypeError, lambda: client.multi(path)),
        (TypeError, lambda: client.mutex(path).set_revocable(1)),  # type: ignore[arg-type]
    ]
    for raised, call in calls:
        with pytest.raises(raised) as caught:
            call()
        assert isinstance(caught.value, zklock.Error)
        assert caught.value.status is zklock.Status.INVALID


NOT_NUMBERS = [True, False, "1", b"1", [], object(), 1j]
NOT_DURATIONS = [-1, -0.001, -(10**400), math.nan, -math.inf]


@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_not_a_number(client: zklock.Client, server: ZooKeeper, path: str, value: Any) -> None:
    lock = client.mutex(path)
    with pytest.raises(TypeError, match="timeout: expected a number"):
        lock.acquire(timeout=value)
    for make in [
        client.mutex,
        client.semaphore_mutex,
        client.rwlock,
        lambda _, timeout: client.multi([lock], timeout=timeout),
    ]:
        with pytest.raises(TypeError, match="timeout: expected a number"):
            make(path, timeout=value)
    with pytest.raises(TypeError, match="timeout: expected a number"):
        client.semaphore(path, 1).acquire(1, timeout=value)
    for name in ["session_timeout", "connect_timeout", "lease_margin"]:
        with pytest.raises(TypeError, match=f"{name}: expected a number"):
            zklock.Client(server.address, **{name: value})


@pytest.mark.parametrize("value", NOT_DURATIONS)
def test_not_a_duration(client: zklock.Client, server: ZooKeeper, path: str, value: float) -> None:
    lock = client.mutex(path)
    with pytest.raises(ValueError, match=r"seconds; expected (zero or more|more than zero)"):
        lock.acquire(timeout=value)
    for make in [
        client.mutex,
        client.semaphore_mutex,
        client.rwlock,
        lambda _, timeout: client.multi([lock], timeout=timeout),
    ]:
        with pytest.raises(ValueError, match="seconds; expected zero or more"):
            make(path, timeout=value)
    with pytest.raises(ValueError, match="seconds; expected zero or more"):
        client.semaphore(path, 1).acquire(1, timeout=value)
    for name in ["session_timeout", "connect_timeout", "lease_margin"]:
        with pytest.raises(ValueError, match=r"seconds; expected (zero or more|more than zero)"):
            zklock.Client(server.address, **{name: value})


def test_any_real_number_is_a_duration(client: zklock.Client, path: str) -> None:
    lock = client.mutex(path, timeout=Fraction(1, 2))
    assert lock.acquire(timeout=Fraction(1, 2))
    lock.release()
    assert lock.acquire(timeout=-0.0)
    lock.release()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("session_timeout", 0),
        ("session_timeout", math.inf),
        ("session_timeout", 1e12),
        ("connect_timeout", 0),
        ("lease_margin", 10**400),
    ],
)
def test_out_of_range(server: ZooKeeper, name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name.replace("_", "[_ ]")):
        zklock.Client(server.address, **{name: value})


@pytest.mark.parametrize("name", ["session_timeout", "connect_timeout"])
def test_short_timeouts_are_rounded_up(server: ZooKeeper, name: str) -> None:
    for value in [1e-9, 0.0001, 0.0015]:
        # A server need not answer within one millisecond, but the timeout is not zero.
        with contextlib.suppress(zklock.ConnectionLost):
            zklock.Client(server.address, **{"connect_timeout": 0.1, name: value}).close()


@pytest.mark.parametrize(
    "bad", ["", "a", "/", "/a/", "//a", "/a/../b", "/a\0b", "/\x07", "/\ud800", "/\U0001f512", "/x" * 40000]
)
def test_bad_paths(client: zklock.Client, bad: str) -> None:
    for make in [client.mutex, client.semaphore_mutex, client.rwlock, lambda path: client.semaphore(path, 1)]:
        with pytest.raises(ValueError):  # noqa: PT011
            make(bad)


@pytest.mark.parametrize(
    "bad",
    ["", ":1", "host:0", "host:65536", "host:x", "a,,b", "[::1", "host\0:1", "h\ud800:1", "::1", "h:1/a/"],
)
def test_bad_connect_strings(bad: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        zklock.Client(bad, connect_timeout=0.1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda client: client.revoke("/\ud800"), r"node: expected text that UTF-8 can encode, not '/\ud800'"),
        (
            lambda client: client.prometheus({"a": "\ud800"}),
            r"labels: expected text that UTF-8 can encode, not '\ud800'",
        ),
        (
            lambda client: client.prometheus({"\ud800": "a"}),
            r"labels: expected text that UTF-8 can encode, not '\ud800'",
        ),
        # These messages do not contain the text, because the text may be a password.
        (
            lambda _: zklock.Client("h:1", options={"auth.digest": "u:\ud800"}),
            "options: 'auth.digest': expected text that UTF-8 can encode",
        ),
        (
            lambda _: zklock.Client("h:1", auth=[("digest", "u:\ud800")]),
            "auth: expected text that UTF-8 can encode",
        ),
        (
            lambda _: zklock.aio.Client("h:1", auth=[("u:\ud800", "digest")]),
            "auth: expected text that UTF-8 can encode",
        ),
    ],
)
def test_text_that_utf_8_cannot_encode_is_reported_with_its_argument(
    client: zklock.Client, call: Callable[[zklock.Client], object], message: str
) -> None:
    with pytest.raises(zklock.InvalidArgument) as refused:
        call(client)
    assert str(refused.value) == message


RECIPES = ["Mutex", "SemaphoreMutex", "ReadLock", "WriteLock", "MultiLock"]
THINGS: list[Callable[[zklock.Client, str], Any]] = [
    lambda client, path: client.semaphore_mutex(path),
    lambda client, path: client.rwlock(path),
    lambda client, path: client.rwlock(path).read,
    lambda client, path: client.multi([client.mutex(path)]),
    lambda client, path: client.semaphore(path, 1),
    lambda client, path: client.semaphore(path, 1).acquire(),
]


@pytest.mark.parametrize(
    "call",
    [
        lambda client, path: client.mutex(),
        lambda client, path: client.mutex(path.encode()),
        lambda client, path: client.mutex(None),
        lambda client, path: client.mutex(path, data="text"),
        lambda client, path: client.mutex(path, 1),
        lambda client, path: client.mutex(path, timeout=1, data=b"", local_handover="2"),
        lambda client, path: client.mutex(path).set_data("text"),
        lambda client, path: client.mutex(path).set_data(),
        lambda client, path: client.mutex(path).acquire(1),
        lambda client, path: client.mutex(path).acquire(False),
        lambda client, path: client.mutex(path).acquire(blocking=False),
        lambda client, path: zklock.Client(),
        lambda client, path: zklock.Client(2181),
        lambda client, path: zklock.Client(b"localhost"),
        lambda client, path: zklock.Client("localhost", 10.0),
        lambda client, path: zklock.Client("localhost", auth=1),
        lambda client, path: zklock.Client("localhost", auth="digest:me:secret"),
        lambda client, path: zklock.Client("localhost", auth=("digest", "me:secret")),
        lambda client, path: zklock.Client("localhost", auth=[("digest", 7)]),
        lambda client, path: zklock.Client("localhost", auth=[("digest", "me:secret", 3)]),
        lambda client, path: zklock.Mutex(),
        lambda client, path: zklock.Participant(),
        lambda client, path: copy.copy(client),
        lambda client, path: pickle.dumps(client.mutex(path)),
        lambda client, path: type("Sub", (zklock.Mutex,), {}),
        *(
            lambda client, path, name=name: type("Sub", (getattr(zklock, name),), {})()
            for name in [*RECIPES, "Lock", "RwLock", "Semaphore", "Leases"]
        ),
        *(lambda client, path, name=name: getattr(zklock, name)() for name in [*RECIPES, "Lock", "RwLock"]),
        lambda client, path: zklock.Semaphore(),
        lambda client, path: zklock.Leases(),
        *(
            lambda client, path, copy=copy, make=make: copy(make(client, path))
            for copy in [copy.copy, copy.deepcopy, pickle.dumps]
            for make in THINGS
        ),
        lambda client, path: client.semaphore_mutex(path.encode()),
        lambda client, path: client.semaphore_mutex(path, data="text"),
        lambda client, path: client.rwlock(None),
        lambda client, path: client.rwlock(path, 1),
        lambda client, path: client.semaphore_mutex(path, 1),
        lambda client, path: client.multi(),
        lambda client, path: client.multi(path),
        lambda client, path: client.multi([path], 1),
        lambda client, path: client.semaphore(path.encode(), 1),
        lambda client, path: client.semaphore(path, 1, "/a", 1),
        lambda client, path: client.semaphore(path, 1).acquire(1, timeout="2"),
        lambda client, path: client.semaphore(path, 1).acquire(1, 2),
        lambda client, path: client.semaphore(path, 1).set_data("text"),
        lambda client, path: client.mutex(path).set_revocable(),
        lambda client, path: client.revoke(),
        lambda client, path: client.fence_check(path, "1"),
        lambda client, path: client.fence_check(path, True),
        lambda client, path: client.fence_check(path.encode(), 1),
        lambda client, path: zklock.Client("localhost", wait_for_kazoo=1),
    ],
)
def test_wrong_types(client: zklock.Client, path: str, call: Callable[[zklock.Client, str], Any]) -> None:
    with pytest.raises(TypeError) as raised:
        call(client, path)
    assert "secret" not in str(raised.value)


def test_attributes_are_fixed(client: zklock.Client, path: str) -> None:
    lock = client.mutex(path)
    for thing, name in [(client, "state"), (lock, "is_held"), (lock, "path"), (lock, "new")]:
        with pytest.raises(AttributeError):
            setattr(thing, name, 1)


def test_exception_of_the_iterable_propagates() -> None:
    def pairs() -> Any:
        yield ("digest", "a:b")
        raise KeyError("mine")

    with pytest.raises(KeyError):
        zklock.Client("localhost", auth=pairs())
