"""Every mistake of a program raises TypeError, ValueError or zklock.Error.

There is no crash, no panic, no SystemError and no hang.

The tests find the functions by inspection of the module, so they also call functions that are added later.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import inspect
import itertools
import math
import pickle
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import zklock
import zklock.aio
from zklock import _zklock
from zklock._zklock import StandaloneServer

REFUSALS = (TypeError, ValueError, OverflowError, zklock.Error)


class Awkward:
    """An object that has every special method, all of which fail."""

    def _fail(self, *_: object) -> Any:
        raise ZeroDivisionError

    __index__ = __float__ = __int__ = __bool__ = __iter__ = __len__ = __call__ = __str__ = __getitem__ = _fail


class Text(str):
    """A subclass of str."""


WRONG: list[Any] = [
    None,
    True,
    0,
    -1,
    2**31,
    -(2**63),
    2**200,
    -1.5,
    math.nan,
    math.inf,
    -math.inf,
    1e308,
    5e-324,
    "",
    "/",
    "//",
    "/a/",
    "/a/../b",
    "/zookeeper",
    "/a\0b",
    "/\ud800",
    "/\U0001f512",
    "/" + "x" * 1_000_000,
    "/a" * 10_000,
    Text("/a//b"),
    b"/a",
    bytearray(b"/a"),
    memoryview(b"/a"),
    b"x" * 2_000_000,
    [None],
    ["/a", 1],
    {"a": 1},
    (),
    object(),
    object,
    Awkward(),
    Awkward,
]

numbers = itertools.count()


def fresh() -> str:
    return f"/misuse/{next(numbers)}"


def participant(client: zklock.Client) -> zklock.Participant:
    lock = client.mutex(fresh())
    with lock:
        return lock.participants()[0]


def waiting(client: zklock.Client) -> zklock.Waiting:
    lock = client.mutex(fresh())
    found: list[zklock.Waiting] = []
    with lock:
        waiter = threading.Thread(target=lambda: lock.acquire(timeout=60) and lock.release())
        waiter.start()
        while not found:
            found = lock.waiting()
    waiter.join()
    return found[0]


def task_lock(client: zklock.Client) -> _zklock._TaskLock:
    return _zklock._TaskLock(client.mutex(fresh()), 1)


def busy(client: zklock.Client) -> Any:
    """Return what ``try_hold()`` returns for a lock that is held."""
    lock = client.semaphore_mutex(fresh())
    with lock:
        return lock.try_hold()


def once_per(client: zklock.Client) -> zklock.OncePer:
    return client.mutex(fresh()).hold(timeout=60).once_per("day")


def run(client: zklock.Client) -> Any:
    return once_per(client).__enter__()


# Functions that make a usable object of each class.
MAKERS: dict[type, Callable[[zklock.Client, StandaloneServer], Any]] = {
    zklock.Client: lambda client, server: zklock.Client(server.address),
    zklock.Mutex: lambda client, server: client.mutex(fresh()),
    zklock.SemaphoreMutex: lambda client, server: client.semaphore_mutex(fresh()),
    zklock.RwLock: lambda client, server: client.rwlock(fresh()),
    zklock.ReadLock: lambda client, server: client.rwlock(fresh()).read,
    zklock.WriteLock: lambda client, server: client.rwlock(fresh()).write,
    zklock.MultiLock: lambda client, server: client.multi([client.mutex(fresh()), client.mutex(fresh())]),
    zklock.Semaphore: lambda client, server: client.semaphore(fresh(), 3),
    zklock.Leases: lambda client, server: client.semaphore(fresh(), 3).acquire(timeout=60),
    zklock.Hold: lambda client, server: client.mutex(fresh()).hold(timeout=60),
    zklock.OncePer: lambda client, server: once_per(client),
    zklock.Run: lambda client, server: run(client),
    zklock.Listener: lambda client, server: client.on_event(print),
    zklock.Participant: lambda client, server: participant(client),
    zklock.Waiting: lambda client, server: waiting(client),
    _zklock._Busy: lambda client, server: busy(client),
    _zklock._Settings: lambda client, server: _zklock._Settings(server.address, connect_timeout=0.05),
    _zklock._CompletionQueue: lambda client, server: _zklock._CompletionQueue(),
    _zklock._Op: lambda client, server: _zklock._CompletionQueue().acquire(task_lock(client)),
    _zklock._TaskLock: lambda client, server: task_lock(client),
    _zklock.Session: lambda client, server: server.sessions()[0],
    StandaloneServer: lambda client, server: StandaloneServer(),
}
# Classes that have no instances except those of their subclasses.
ABSTRACT = [zklock.Lock]
CLASSES = [value for value in vars(_zklock).values() if inspect.isclass(value) and not issubclass(value, BaseException)]
MADE = [cls for cls in CLASSES if cls not in ABSTRACT]


@pytest.fixture(scope="module")
def standalone() -> Iterator[StandaloneServer]:
    with StandaloneServer() as server:
        yield server


@pytest.fixture
def ours(standalone: StandaloneServer) -> Iterator[zklock.Client]:
    with zklock.Client(standalone.address) as client:
        yield client


def test_each_class_can_be_made_here() -> None:
    missing = [cls.__name__ for cls in MADE if cls not in MAKERS]
    assert not missing, f"add to MAKERS how a live one is made of: {missing}"


def members(cls: type) -> list[str]:
    own = [name for name in dir(cls) if not name.startswith("_")]
    return own + [name for name in ("__enter__", "__exit__") if hasattr(cls, name)]


def wrong_arguments(function: Any) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    try:
        parameters = [p.name for p in inspect.signature(function).parameters.values() if p.name not in ("self", "cls")]
    except ValueError:
        parameters = []
    yield (), {}
    yield (None,) * (len(parameters) + 1), {}
    yield (), {"no_such_parameter": 1}
    for wrong in WRONG:
        yield (wrong,), {}
        for at in range(1, len(parameters)):
            yield ("/misuse/sound",) * at + (wrong,), {}
        for name in parameters:
            yield (), {name: wrong}


def attempt(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call the function and return its result, or None if it refuses the call with an allowed exception."""
    began = time.monotonic()
    try:
        return function(*arguments, **named)
    except REFUSALS as error:
        assert str(error), "a refusal without a message"  # noqa: PT017
    except ZeroDivisionError:
        # An exception that an argument raises goes through.
        assert any(isinstance(value, Awkward) or value is Awkward for value in (*arguments, *named.values()))
    finally:
        assert time.monotonic() - began < 5, f"{function} with {arguments!r:.200} {named!r:.200} took too long"
    return None


def look(thing: Any, name: str) -> Any:
    """Return an attribute. A multi-lock lacks the attributes that only its member locks have."""
    try:
        return getattr(thing, name)
    except AttributeError:
        assert isinstance(thing, zklock.MultiLock)
        return None


def undo(thing: Any, name: str, result: Any) -> None:
    """Release what a call has acquired despite its arguments."""
    if name == "acquire" and result:
        (thing if result is True else result).release()
    elif name == "hold" and result is not None:
        result.release()
    elif name in ("on_event", "on_lost") and result is not None:
        result.stop()
    elif name == "__enter__" and result is not None and not isinstance(thing, (zklock.Client, StandaloneServer)):
        attempt(thing.__exit__, None, None, None)


# A callable argument may fail when a listener calls it; see the next comment.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("cls", MADE, ids=lambda cls: cls.__name__)
def test_every_method_with_wrong_arguments(cls: type, ours: zklock.Client, standalone: StandaloneServer) -> None:
    for name in members(cls):
        if not callable(getattr(cls, name)):
            continue
        thing = MAKERS[cls](ours, standalone)
        method = getattr(thing, name)
        if name == "wait_lost" and isinstance(thing, (zklock.Hold, zklock.Leases)):
            thing.release()  # the call would wait for the loss
        for arguments, named in wrong_arguments(method):
            undo(thing, name, attempt(method, *arguments, **named))
        if hasattr(thing, "close"):
            thing.close()


# If a callback fails when it is called, its exception goes to sys.unraisablehook.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_constructors_with_wrong_arguments(standalone: StandaloneServer) -> None:
    address = standalone.address
    sound = {"session_timeout": 10, "connect_timeout": 0.05}
    options = [p.name for p in inspect.signature(zklock.Client).parameters.values() if p.name != "servers"]
    for wrong in WRONG:
        attempt(zklock.Client, wrong, **sound)
        attempt(StandaloneServer, wrong)
        for name in options:
            client = attempt(zklock.Client, address, **{**sound, name: wrong})
            if client is not None:
                client.close()
    for auth in (
        [("digest",)],
        [("digest", 1)],
        [(b"digest", b"a")],
        [("digest", b"a", b"b")],
        ["ab"],
        "ab",
        [("\0", b"")],
    ):
        with pytest.raises(REFUSALS):
            zklock.Client(address, auth=auth)


@pytest.mark.parametrize("name", ["session_timeout", "connect_timeout", "lease_margin"])
def test_a_setting_that_is_too_long_is_named_in_seconds(standalone: StandaloneServer, name: str) -> None:
    for seconds, text in ((float("inf"), "inf"), (1e9, "1000000000"), (10**400, "inf")):
        with pytest.raises(zklock.InvalidArgument, match=f"^{name}: {text} seconds; expected at most 2147483.647"):
            zklock.Client(standalone.address, **{name: seconds})  # type: ignore[arg-type]


# Valid values for the other required arguments of a call with one wrong argument.
SOUND: dict[str, Any] = {
    "servers": "127.0.0.1:1",
    "file": "/misuse/none",
    "path": "/misuse/sound",
    "max_leases": 1,
    "locks": (),
    "value": 1,
    "token": 1,
    "node": "/misuse/sound",
    "callback": None,
    "data": None,
    "max_passes": 0,
    "seconds": 0,
    "op": 1,
    "period": "day",
    "how": "a failure",
}


def one_wrong(function: Any) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield the name of a parameter, a value of a wrong type, and the arguments of a call with that value."""
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name not in ("self", "cls")]
    for parameter in parameters:
        needed = [p.name for p in parameters if p.default is p.empty and p is not parameter]
        # A time limit accepts the numbers, and the call then waits that long.
        for wrong in (object(), 0.01, 1, "seven", b"seven", [7], print):
            yield parameter.name, wrong, {**{name: SOUND[name] for name in needed}, parameter.name: wrong}


def check_names_it(error: TypeError, function: Any, name: str, wrong: Any) -> None:
    message = f"{function.__qualname__}({name}={wrong!r}): {error}"
    assert str(error).startswith(f"{name}: expected "), message
    # If several types are possible, the message names the wrong one. It does not show credentials.
    assert name in ("locks", "labels", "auth") or f"not {type(wrong).__name__}" in str(error), message


def refuses_an_object(function: Any, name: str, wrong: Any, named: dict[str, Any]) -> bool:
    """Call the function and return whether it refuses. No parameter accepts any object at all."""
    try:
        undo(getattr(function, "__self__", None), function.__name__, function(**named))
    except TypeError as error:
        if not str(error).startswith("semaphore: "):  # semaphore() needs one of two arguments
            check_names_it(error, function, name, wrong)
        return True
    except (ValueError, zklock.Error):
        pass
    return type(wrong) is not object


@pytest.mark.filterwarnings("ignore:the client of .* was not closed:ResourceWarning")
@pytest.mark.parametrize("cls", [cls for cls in MADE if not cls.__name__.startswith("_")], ids=lambda cls: cls.__name__)
def test_a_wrong_type_is_reported_with_its_parameter(
    cls: type, ours: zklock.Client, standalone: StandaloneServer
) -> None:
    for name in members(cls):
        if name.startswith("_") or not callable(getattr(cls, name)):
            continue
        for parameter, wrong, named in one_wrong(getattr(MAKERS[cls](ours, standalone), name)):
            method = getattr(MAKERS[cls](ours, standalone), name)
            assert refuses_an_object(method, parameter, wrong, named), f"{cls.__name__}.{name}({parameter}=object())"


@pytest.mark.filterwarnings("ignore:the client of .* was not closed:ResourceWarning")
@pytest.mark.parametrize("cls", [zklock.Client, zklock.aio.Client, StandaloneServer], ids=["Client", "aio", "Server"])
def test_a_wrong_type_is_reported_with_the_constructors_parameter(cls: type) -> None:
    for parameter, wrong, named in one_wrong(cls):
        if cls is zklock.Client:
            named.setdefault("connect_timeout", 0.01)
        try:
            cls(**named)
        except TypeError as error:
            check_names_it(error, cls, parameter, wrong)
        except (ValueError, zklock.Error):
            assert type(wrong) is not object
        else:
            assert type(wrong) is not object


async def aio_once_per(client: zklock.aio.Client) -> zklock.aio.OncePer:
    return (await client.mutex(fresh()).hold(timeout=60)).once_per("day")


async def aio_run(client: zklock.aio.Client) -> Any:
    return await (await aio_once_per(client)).__aenter__()


# Functions that make a usable object of each class of zklock.aio.
AIO_MAKERS: dict[str, Callable[[zklock.aio.Client], Any]] = {
    "Client": lambda client: client,
    "Mutex": lambda client: client.mutex(fresh()),
    "SemaphoreMutex": lambda client: client.semaphore_mutex(fresh()),
    "RwLock": lambda client: client.rwlock(fresh()),
    "ReadLock": lambda client: client.rwlock(fresh()).read,
    "WriteLock": lambda client: client.rwlock(fresh()).write,
    "MultiLock": lambda client: client.multi([client.mutex(fresh()), client.mutex(fresh())]),
    "Semaphore": lambda client: client.semaphore(fresh(), 3),
    "Hold": lambda client: client.mutex(fresh()).hold(timeout=60),
    "OncePer": aio_once_per,
    "Run": aio_run,
}


def test_a_wrong_type_is_reported_with_its_parameter_in_aio(standalone: StandaloneServer) -> None:
    public = {name for name in zklock.aio.__all__ if inspect.isclass(getattr(zklock.aio, name))}
    without_arguments = {"Lock", "Leases", "EventStream", "LockLike", "HoldLike"}
    assert public - without_arguments == set(AIO_MAKERS), "add to AIO_MAKERS how a live one is made"

    async def live(made: Any) -> Any:
        return await made if inspect.isawaitable(made) else made

    async def main() -> None:
        async with zklock.aio.Client(standalone.address) as client:
            for kind, make in AIO_MAKERS.items():
                for name in [name for name in dir(getattr(zklock.aio, kind)) if not name.startswith("_")]:
                    if not callable(getattr(getattr(zklock.aio, kind), name)):
                        continue
                    for parameter, wrong, named in one_wrong(getattr(await live(make(client)), name)):
                        method = getattr(await live(make(client)), name)
                        try:
                            result = method(**named)
                            if inspect.isawaitable(result):
                                await asyncio.wait_for(result, 1)
                        except TypeError as error:
                            if not str(error).startswith("semaphore: "):
                                check_names_it(error, method, parameter, wrong)
                        except (ValueError, zklock.Error, asyncio.TimeoutError):
                            assert type(wrong) is not object, (kind, name, parameter)
                        else:
                            assert type(wrong) is not object, (kind, name, parameter)
                        if name == "set_servers":
                            # The wrong text may be the name of a server.
                            client.set_servers(standalone.address)

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore:the client of .* was not closed:ResourceWarning")
@pytest.mark.parametrize("cls", MADE, ids=lambda cls: cls.__name__)
def test_objects_cannot_be_copied_subclassed_or_modified(
    cls: type, ours: zklock.Client, standalone: StandaloneServer
) -> None:
    thing = MAKERS[cls](ours, standalone)
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            copied(thing)
    with pytest.raises(TypeError):
        object.__new__(cls)
    with pytest.raises(TypeError):
        type("Sub", (cls,), {})
    with pytest.raises(AttributeError):
        thing.no_such_attribute = 1
    for name in members(cls):
        with pytest.raises((AttributeError, TypeError)):
            setattr(thing, name, None)
    if cls not in (zklock.Client, StandaloneServer, _zklock._Settings, _zklock._CompletionQueue):
        for arguments in ((), (None,), ("/a",)):
            with pytest.raises(TypeError):
                cls(*arguments)
    assert repr(thing)
    assert thing == thing
    assert thing != object()
    assert thing != None  # noqa: E711
    with pytest.raises(TypeError):
        thing < thing  # noqa: B015


def test_a_lock_can_only_be_made_by_a_client() -> None:
    with pytest.raises(TypeError):
        zklock.Lock()
    with pytest.raises(TypeError):
        type("Own", (zklock.Lock,), {})()
    with pytest.raises(TypeError):
        object.__new__(zklock.Lock)


@pytest.mark.parametrize("cls", MADE, ids=lambda cls: cls.__name__)
def test_every_member_of_a_closed_object_raises_closed(cls: type, standalone: StandaloneServer) -> None:
    with StandaloneServer() as server:
        client = zklock.Client(server.address)
        thing = MAKERS[cls](client, server)
        if cls in (zklock.Client, StandaloneServer):
            attempt(thing.close if cls is zklock.Client else thing.stop)
        client.close()
        for name in members(cls):
            value = attempt(look, thing, name)
            for arguments in ((), (None,), ("/a",)) if callable(value) else ():
                result = attempt(value, *arguments)
                assert not (name == "acquire" and result), "what is closed was acquired"


def test_from_many_threads_while_all_of_it_is_closed(standalone: StandaloneServer) -> None:
    dice = random.Random(1)
    clients = [zklock.Client(standalone.address) for _ in range(3)]
    kinds = [cls for cls in MADE if members(cls) and cls not in (zklock.Client, StandaloneServer)]
    things = [MAKERS[cls](dice.choice(clients), standalone) for cls in kinds for _ in range(2)]
    over = threading.Event()
    failures: list[BaseException] = []

    def call_randomly(seed: int) -> None:
        own = random.Random(seed)
        while not over.is_set():
            thing = own.choice(things)
            name = own.choice(members(type(thing)))
            try:
                value = attempt(look, thing, name)
                if name == "acquire":
                    # Another thread may have released it in the meantime.
                    attempt(undo, thing, name, attempt(value, timeout=0.01))
                elif callable(value) and name != "__enter__":
                    attempt(value)
            except BaseException as error:
                failures.append(error)

    threads = [threading.Thread(target=call_randomly, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for client in clients:
        time.sleep(0.3)
        client.close()
    over.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not failures, failures[:3]


def test_a_callback_may_close_what_calls_it(ours: zklock.Client, standalone: StandaloneServer) -> None:
    client = zklock.Client(standalone.address)
    lock = client.mutex(fresh())
    closed = threading.Event()

    def close(node: str) -> None:
        lock.set_revocable(None)
        client.close()
        closed.set()

    lock.set_revocable(close)
    lock.acquire()
    ours.revoke(lock.node_path)
    assert closed.wait(60)
    with pytest.raises(zklock.ClientClosed):
        lock.release()


@pytest.mark.filterwarnings("ignore:the client of .* was not closed:ResourceWarning")
def test_cycles_can_be_collected(standalone: StandaloneServer) -> None:
    for _ in range(20):
        client = zklock.Client(standalone.address)
        lock = client.mutex(fresh())
        around: dict[str, Any] = {"client": client, "lock": lock}
        around["self"] = around
        lock.set_revocable(lambda node, around=around: around)
        del client, lock, around
    gc.collect()


AT_EXIT = """
import atexit, sys, threading, time, zklock
client = zklock.Client(sys.argv[1])
held, wanted = client.mutex("/misuse/exit"), client.semaphore_mutex("/misuse/exit-semaphore")

class Late:
    def __del__(self):
        mutex, state, acquire = lambda: client.mutex("/a"), lambda: held.state, lambda: wanted.acquire(timeout=0.1)
        for call in (held.release, acquire, client.close, mutex, state):
            try:
                call()
            except Exception:
                pass

def late():
    Late().__del__()

atexit.register(late)
keep = [Late()]
keep.append(keep)
held.acquire()
wanted.acquire()
for lock in (held, wanted):
    threading.Thread(target=lock.acquire, daemon=True).start()
held.set_revocable(lambda node: time.sleep(10))
time.sleep(0.2)
"""


def test_use_while_the_interpreter_ends(standalone: StandaloneServer, program: Callable[..., Any]) -> None:
    assert program(AT_EXIT, standalone.address).ends(20) == 0
