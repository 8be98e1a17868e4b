"""Tests of ``lock.hold()``, and of the answers of a lock to threads that do not hold it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator
from typing import Any

import pytest

import zklock
from conftest import LIMIT, Inspector, Waiter, wait_until
from server import ZooKeeper
from zklock import Client, Hold, LockState
from zklock.testing import StandaloneServer

MAKERS: list[Callable[[Client, str], zklock.Lock]] = [
    lambda client, path: client.mutex(path),
    lambda client, path: client.semaphore_mutex(path),
    lambda client, path: client.rwlock(path).read,
    lambda client, path: client.rwlock(path).write,
    lambda client, path: client.multi([path]),
]
KINDS = ["mutex", "semaphore mutex", "read", "write", "multi"]


@pytest.mark.parametrize("make", MAKERS, ids=KINDS)
def test_hold_has_token_state_and_remaining_time(
    client: Client, path: str, inspector: Inspector, make: Callable[[Client, str], zklock.Lock]
) -> None:
    lock = make(client, path)
    with lock.hold(timeout=60.0) as hold:
        assert isinstance(hold, Hold)
        assert hold.lock is lock
        assert lock.is_held
        assert hold.token == lock.fencing_token > 0
        assert (hold.fencing_pass, hold.state, hold.is_held, hold.is_lost) == (0, LockState.HELD, True, False)
        assert 0 < hold.remaining <= lock.remaining + 1
        assert repr(hold).startswith(f"<zklock.Hold '{path}' HELD token=")
        if isinstance(lock, zklock.MultiLock):
            with pytest.raises(AttributeError):
                _ = hold.path
        else:
            assert hold.path == path
    assert not lock.is_held
    assert (hold.state, hold.is_held, hold.is_lost, hold.remaining) == (LockState.FREE, False, False, 0.0)
    assert hold.token > 0
    assert inspector.below(path) == []
    for late in (hold.release, hold.__enter__):
        with pytest.raises(zklock.NotOwner):
            late()


def test_a_hold_that_is_not_acquired_in_time_raises(client: Client, other_client: Client, path: str) -> None:
    with other_client.mutex(path):
        for timeout in (0, 1.0):
            with pytest.raises(zklock.LockTimeout) as raised, client.mutex(path).hold(timeout=timeout):
                pytest.fail("it is held by another client")
            assert isinstance(raised.value, TimeoutError)
            assert raised.value.status is zklock.Status.TIMEOUT


def test_hold_counts_as_reentry_of_its_thread(client: Client, path: str) -> None:
    lock = client.mutex(path)
    with lock.hold() as outer:
        with lock, lock.hold(timeout=0) as inner:
            assert inner.token == outer.token
        assert outer.is_held
        assert Waiter(lambda: lock.acquire(timeout=0)).result() is False
    assert not lock.is_held_in_process


def test_any_thread_may_use_and_release_a_hold(client: Client, path: str) -> None:
    lock = client.mutex(path)
    hold = lock.hold()
    assert Waiter(lambda: (hold.is_held, hold.state, lock.is_held)).result() == (True, LockState.HELD, False)
    Waiter(hold.release).result()
    assert not lock.is_held
    with Waiter(lock.hold).result() as moved:
        assert moved.is_held
        assert not lock.is_held
    assert not lock.is_held_in_process


def test_one_of_two_that_release_a_hold_does(client: Client, path: str) -> None:
    lock = client.mutex(path)
    lock.acquire()
    hold = lock.hold()
    waiters = [Waiter(hold.release) for _ in range(8)]
    errors = []
    for waiter in waiters:
        try:
            waiter.result()
        except zklock.NotOwner as error:
            errors.append(error)
    assert len(errors) == 7
    assert lock.is_held
    lock.release()


def test_a_hold_that_the_lock_released_is_over(client: Client, path: str) -> None:
    lock = client.mutex(path)
    hold = lock.hold()
    lock.release()
    with lock.hold() as second:
        assert second.token > hold.token
        assert (hold.state, hold.is_held, hold.is_lost, hold.remaining) == (LockState.FREE, False, False, 0.0)
        with pytest.raises(zklock.NotOwner):
            hold.release()
        assert second.is_held


def test_block_that_releases_its_hold_exits_without_error(client: Client, path: str) -> None:
    with client.mutex(path).hold() as hold:
        hold.release()
    with pytest.raises(KeyError) as raised, client.mutex(path).hold() as hold:
        hold.lock.release()
        raise KeyError("mine")
    assert "releasing the lock" in str(getattr(raised.value, "__notes__", raised.value.__context__))


def test_a_block_whose_hold_was_lost_raises(client: Client, path: str, inspector: Inspector) -> None:
    lock = client.mutex(path)
    with pytest.raises(zklock.LockLost), lock.hold() as hold:
        inspector.kazoo.delete(lock.node_path)
        wait_until(lambda: hold.is_lost)
        assert hold.state is LockState.LOST
        assert hold.token > 0
        assert not hold.is_held
        with pytest.raises(zklock.LockLost):
            hold.__enter__()
    assert (hold.state, hold.is_lost) == (LockState.FREE, False)
    with lock.hold(timeout=60):
        pass


BLOCKS: dict[str, Callable[[Client, str], zklock.Lock | Hold | zklock.Leases]] = {
    "lock": lambda client, path: client.mutex(path),
    "hold": lambda client, path: client.mutex(path).hold(),
    "leases": lambda client, path: client.semaphore(path, 1).acquire(),
}


def end_blocks_without_a_server(
    server: ZooKeeper, path: str, work: Callable[[Any], None], session_timeout: float
) -> list[type | None]:
    """End a block of each kind while the server answers nothing. ``work`` is the end of each block. Return the type of
    the exception of each block.
    """
    entered, paused = threading.Barrier(len(BLOCKS) + 1), threading.Event()

    def run(kind: str) -> type | None:
        with Client(server.address, session_timeout=session_timeout) as client:
            try:
                with BLOCKS[kind](client, f"{path}/{kind}") as held:
                    entered.wait(LIMIT)
                    assert paused.wait(LIMIT)
                    work(held)
            except zklock.Error as error:
                return type(error)
            assert not held.is_held
            return None

    blocks = [Waiter(lambda kind=kind: run(kind)) for kind in BLOCKS]
    entered.wait(LIMIT)
    server.pause()
    paused.set()
    errors = [block.result() for block in blocks]
    server.resume()
    return errors


def test_a_block_that_was_safe_raises_nothing_if_no_server_confirms_the_release(
    own_server: ZooKeeper, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    def work(held: Any) -> None:
        assert held.is_held

    assert end_blocks_without_a_server(own_server, path, work, session_timeout=6) == [None] * len(BLOCKS)
    assert caplog.text.count("no server has confirmed the release yet: no answer from") == len(BLOCKS)
    event = "no server has confirmed the release yet"
    fields = [record.zklock for record in caplog.records if event in record.getMessage()]  # type: ignore[attr-defined]
    assert {(one["event"], one["path"]) for one in fields} == {(event, f"{path}/{kind}") for kind in BLOCKS}
    assert all(one["error"].startswith("no answer from") for one in fields)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_failing_log_filter_does_not_make_a_block_fail(
    own_server: ZooKeeper, path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reports: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", reports.append)

    def fail(record: logging.LogRecord) -> bool:
        raise ZeroDivisionError

    logger = logging.getLogger("zklock.lock")
    logger.addFilter(fail)
    try:
        errors = end_blocks_without_a_server(own_server, path, lambda held: None, session_timeout=6)
    finally:
        logger.removeFilter(fail)
    assert errors == [None] * len(BLOCKS)
    assert sum(isinstance(report.exc_value, ZeroDivisionError) for report in reports) >= len(BLOCKS)


@pytest.mark.parametrize("way", ["close", "drop"])
def test_release_that_fails_in_a_closed_generator_is_logged(
    client: Client, path: str, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    lock = client.mutex(path)

    def generate() -> Generator[None, None, None]:
        with lock:
            yield

    generators = [generate()]
    next(generators[0])
    Waiter(generators[0].close if way == "close" else generators.clear).result()
    assert lock.is_held
    (record,) = [record for record in caplog.records if "generator" in record.getMessage()]
    assert (record.name, record.levelname) == ("zklock.lock", "WARNING")
    fields: dict[str, object] = record.zklock  # type: ignore[attr-defined]
    assert fields["event"] == "the end of a block failed when a generator was closed"
    assert fields["path"] == path
    assert "the caller does not hold the lock" in str(fields["error"])
    lock.release()


def test_generator_that_is_closed_after_its_client_logs_nothing(
    server: ZooKeeper, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    def generate(client: Client) -> Generator[None, None, None]:
        with client.mutex(path):
            yield

    with Client(server.address) as client:
        generator = generate(client)
        next(generator)
    generator.close()
    assert "generator" not in caplog.text


def test_a_block_that_was_not_safe_raises_if_no_server_confirms_the_release(own_server: ZooKeeper, path: str) -> None:
    def work(held: Any) -> None:
        wait_until(lambda: not held.is_held)

    errors = end_blocks_without_a_server(own_server, path, work, session_timeout=3)
    assert set(errors) <= {zklock.ConnectionLost, zklock.LockLost}


def test_a_hold_of_a_closed_client_is_lost(server: ZooKeeper, path: str) -> None:
    client = Client(server.address)
    hold, over = client.mutex(path).hold(), client.mutex(f"{path}/over").hold()
    over.release()
    client.close()
    assert (hold.is_held, hold.is_lost) == (False, True)
    assert (over.is_held, over.is_lost) == (False, False)
    for _ in range(2):
        with pytest.raises(zklock.ClientClosed):
            hold.release()
        assert (hold.is_held, hold.is_lost) == (False, True)


@pytest.mark.parametrize("make", MAKERS, ids=KINDS)
def test_hold_that_its_lock_released_is_not_lost_after_the_client_is_closed(
    server: ZooKeeper, path: str, make: Callable[[Client, str], zklock.Lock]
) -> None:
    client = Client(server.address)
    lock = make(client, path)
    hold = lock.hold()
    lock.release()
    later = lock.hold()
    assert (hold.is_lost, later.is_lost) == (False, False)
    client.close()
    assert (hold.is_held, hold.is_lost) == (False, False)
    assert (later.is_held, later.is_lost) == (False, True)


def test_hold_of_a_partly_released_multi_lock_is_not_lost_after_the_client_is_closed(
    server: ZooKeeper, path: str
) -> None:
    client = Client(server.address)
    multi = client.multi([f"{path}/a", f"{path}/b"])
    hold = multi.hold()
    multi.locks[0].release()
    assert (hold.state, hold.is_lost) == (LockState.FREE, False)
    client.close()
    assert not hold.is_lost


@pytest.mark.parametrize("first_to_close", [0, 1])
def test_released_hold_of_a_multi_lock_over_two_clients_is_not_lost_after_one_is_closed(
    server: ZooKeeper, path: str, first_to_close: int
) -> None:
    clients = [Client(server.address), Client(server.address)]
    multi = clients[0].multi([f"{path}/a", clients[1].mutex(f"{path}/b")])
    by_object = multi.hold()
    by_object.release()
    by_lock = multi.hold()
    multi.release()
    by_member = multi.hold()
    multi.locks[0].release()
    for client in (clients[first_to_close], clients[1 - first_to_close]):
        client.close()
        assert not any(hold.is_lost for hold in (by_object, by_lock, by_member))


def test_release_nowait_of_a_hold(client: Client, path: str, inspector: Inspector) -> None:
    lock = client.mutex(path)
    hold = lock.hold()
    hold.release_nowait()
    assert (hold.state, lock.is_held) == (LockState.FREE, False)
    wait_until(lambda: inspector.below(path) == [])
    with lock, pytest.raises(zklock.NotOwner):
        hold.release_nowait()


def test_a_hold_of_a_multi_lock_of_which_one_lock_was_released_releases_the_others(
    client: Client, path: str, inspector: Inspector
) -> None:
    multi = client.multi([f"{path}/a", f"{path}/b"])
    hold = multi.hold()
    multi.locks[0].release()
    assert hold.state is LockState.FREE
    with pytest.raises(zklock.NotOwner, match=f"{path}/a"):
        hold.release()
    assert not multi.locks[1].is_held_in_process
    assert inspector.below(f"{path}/b") == []
    with pytest.raises(zklock.NotOwner, match="already released"):
        hold.release()


@pytest.mark.parametrize("way", ["release", "release_nowait", "garbage", "with"])
@pytest.mark.parametrize("rest", ["released", "held"])
def test_an_old_hold_of_a_multi_lock_releases_no_later_hold_of_a_member(
    client: Client, path: str, inspector: Inspector, recwarn: pytest.WarningsRecorder, way: str, rest: str
) -> None:
    a, b = client.mutex(f"{path}/a"), client.rwlock(f"{path}/b").read
    hold = client.multi([a, b]).hold()
    if rest == "released":
        a.release()
    b.release()
    later = b.hold()
    assert (hold.state, hold.is_held, hold.remaining) == (LockState.FREE, False, 0.0)
    if way == "garbage":
        del hold
    elif way == "with":
        with pytest.raises(zklock.NotOwner, match="already released"):
            hold.__exit__(None, None, None)
    else:
        with pytest.raises(zklock.NotOwner, match="already released"):
            getattr(hold, way)()
    assert (later.state, b.fencing_token) == (LockState.HELD, later.token)
    assert not a.is_held_in_process
    wait_until(lambda: inspector.below(f"{path}/a") == [])
    warned = way == "garbage" and rest == "held"
    assert [w.category for w in recwarn] == [ResourceWarning] * warned
    later.release()


def test_a_hold_of_a_multi_lock_does_not_come_back_with_a_later_hold_of_a_member(
    client: Client, other_client: Client, path: str
) -> None:
    a, b = client.mutex(f"{path}/a"), client.mutex(f"{path}/b")
    hold = client.multi([a, b]).hold()
    a.release()
    with other_client.mutex(f"{path}/a"):
        pass
    with a.hold() as later:
        assert (hold.state, hold.is_held, hold.is_lost, hold.remaining) == (LockState.FREE, False, False, 0.0)
        with pytest.raises(zklock.NotOwner):
            hold.wait_lost(0)
        with pytest.raises(zklock.NotOwner):
            hold.release()
        assert later.is_held
        assert b.state is LockState.FREE


@pytest.mark.parametrize("make", MAKERS[:1] + MAKERS[2:], ids=KINDS[:1] + KINDS[2:])
def test_only_the_holder_gets_answers(client: Client, path: str, make: Callable[[Client, str], zklock.Lock]) -> None:
    """Without this check, a thread whose acquire had failed wrote to the store with the token of the thread that held
    the lock.
    """
    lock = make(client, path)

    def other() -> None:
        assert not lock.is_held
        assert (lock.state, lock.remaining) == (LockState.FREE, 0.0)
        for name in ("fencing_token", "fencing_pass", "node_path", "node_paths"):
            if name == "node_path" and isinstance(lock, zklock.MultiLock):
                continue
            with pytest.raises(zklock.NotOwner):
                getattr(lock, name)
        assert lock.is_held_in_process
        assert lock.state_in_process is LockState.HELD
        assert repr(lock).endswith(" HELD by another owner>")

    with lock:
        token = lock.fencing_token
        Waiter(other).result()
        assert repr(lock).endswith(f" HELD token={token}>")
    assert lock.state_in_process is LockState.FREE
    assert repr(lock).endswith(" FREE>")


def test_a_hold_that_is_cut_off_is_not_safe(zklock_server: StandaloneServer) -> None:
    with Client(zklock_server.address, session_timeout=1) as client:
        lock = client.mutex("/a")
        hold = lock.hold()
        zklock_server.freeze(client)
        wait_until(lambda: hold.is_lost)
        assert hold.state in (LockState.UNCERTAIN, LockState.LOST)
        assert hold.remaining == 0.0
        zklock_server.thaw(client)


class LockStandIn:
    """An object that replaces a lock in a program's tests."""

    is_held, state, remaining, fencing_token = True, LockState.HELD, 1.0, 7

    def nothing(self, *args: object, **kwargs: object) -> None: ...

    acquire = hold = release = cancel = wait_lost = __enter__ = __exit__ = nothing


@pytest.mark.parametrize("make", MAKERS, ids=KINDS)
def test_every_lock_is_like_a_lock(client: Client, path: str, make: Callable[[Client, str], zklock.Lock]) -> None:
    """No thread holds the lock, so reading its properties would raise."""
    assert isinstance(make(client, path), zklock.LockLike)
    assert isinstance(LockStandIn(), zklock.LockLike)
    for other in (client, client.rwlock(path), client.semaphore(path, 1), threading.Lock(), None):
        assert not isinstance(other, zklock.LockLike)

    class Own(zklock.LockLike): ...

    assert not isinstance(LockStandIn(), Own)


def test_holds_from_many_threads_exclude_each_other(client: Client, path: str) -> None:
    lock, inside, most = client.mutex(path), 0, 0
    guard = threading.Lock()

    def work() -> None:
        nonlocal inside, most
        for _ in range(5):
            with lock.hold(timeout=30):
                with guard:
                    inside += 1
                    most = max(most, inside)
                with guard:
                    inside -= 1

    for waiter in [Waiter(work) for _ in range(4)]:
        waiter.result()
    assert most == 1


def test_the_timeout_of_the_lock_is_the_default(client: zklock.Client, server: ZooKeeper, path: str) -> None:
    with zklock.Client(server.address) as other:
        with other.mutex(f"{path}/m"), other.semaphore_mutex(f"{path}/j"), other.rwlock(f"{path}/r").write:
            for lock in (
                client.mutex(f"{path}/m", timeout=0.1),
                client.semaphore_mutex(f"{path}/j", timeout=0),
                client.rwlock(f"{path}/r", timeout=0.1).read,
                client.multi([f"{path}/m"], timeout=0.1),
            ):
                assert lock.acquire() is False
                assert lock.acquire(timeout=0) is False
                with pytest.raises(zklock.LockTimeout):
                    lock.hold()
        with other.semaphore(path, 1).acquire(), pytest.raises(zklock.LockTimeout):
            client.semaphore(path, 1, timeout=0.1).acquire()
        # None means without limit: the call waits until another thread releases the lock.
        with other.mutex(path).hold() as hold:
            waiter = Waiter(lambda: client.mutex(path, timeout=0).acquire(timeout=None))
            wait_until(lambda: len(other.mutex(path).participants()) == 2)
            hold.release()
            assert waiter.result() is True


def test_the_error_names_the_thread_that_holds(client: zklock.Client, path: str) -> None:
    lock = client.mutex(path)
    end = threading.Event()

    def work() -> None:
        with lock:
            held.set()
            end.wait(LIMIT)

    held = threading.Event()
    worker = threading.Thread(target=work, name="worker-7")
    worker.start()
    try:
        assert held.wait(LIMIT)
        for release in (lock.release, lock.release_nowait):
            with pytest.raises(zklock.NotOwner, match=r"thread 'worker-7' holds it: .*any thread can release a Hold"):
                release()
    finally:
        end.set()
        worker.join()
    with pytest.raises(zklock.NotOwner) as raised:
        lock.release()
    assert "worker-7" not in str(raised.value)


@pytest.mark.parametrize("make", MAKERS, ids=KINDS)
def test_try_hold_holds_a_free_lock_and_stands_for_none_if_it_is_busy(
    client: Client, other_client: Client, path: str, make: Callable[[Client, str], zklock.Lock]
) -> None:
    lock, rival = make(client, path), other_client.mutex(path)
    if isinstance(lock, (zklock.ReadLock, zklock.WriteLock)):
        rival = other_client.rwlock(path).write
    elif isinstance(lock, zklock.SemaphoreMutex):
        rival = other_client.semaphore_mutex(path)
    with lock.try_hold() as hold:
        assert hold
        assert (hold.state, hold.lock) == (LockState.HELD, lock)
        busy = rival.try_hold()
        assert not busy
        with rival.try_hold() as none:
            assert none is None
    assert repr(busy).startswith("<zklock: ")
    assert repr(busy).endswith(" is busy>")
    free = rival.try_hold()
    assert isinstance(free, Hold)
    free.release()
    with rival.hold(), pytest.raises(KeyError), lock.try_hold() as none:
        raise KeyError(none)


def test_check_raises_unless_the_hold_is_safe(client: Client, path: str, inspector: Inspector) -> None:
    with client.mutex(path).hold() as hold:
        hold.check()
    with pytest.raises(zklock.NotOwner, match="already released"):
        hold.check()
    lost = client.mutex(path).hold()
    inspector.kazoo.delete(inspector.below(path)[0])
    wait_until(lambda: lost.is_lost)
    with pytest.raises(zklock.LockLost, match=path):
        lost.check()
    with pytest.raises(zklock.LockLost):
        lost.release()


def test_leases_answer_like_a_hold(client: Client, path: str, inspector: Inspector) -> None:
    with client.semaphore(path, 3).acquire(2) as leases:
        leases.check()
        assert leases.token == leases.fencing_token > 0
        assert not leases.is_lost
    with pytest.raises(zklock.NotOwner):
        leases.check()
    assert (leases.token > 0, leases.is_lost) == (True, False)
    lost = client.semaphore(path, 3).acquire()
    inspector.kazoo.delete(lost.node_paths[0])
    wait_until(lambda: lost.is_lost)
    with pytest.raises(zklock.LockLost):
        lost.check()
    with pytest.raises(zklock.LockLost):
        _ = lost.fencing_token
    assert lost.token > leases.token
    with pytest.raises(zklock.LockLost):
        lost.release()
