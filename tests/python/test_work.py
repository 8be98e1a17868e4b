"""Work under a lock: the decorator ``locked``, the terms of a leader, and clients at the module level."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

import zklock
import zklock.aio
from conftest import Inspector, Loops, Program, Waiter, wait_until
from server import ZooKeeper
from zklock.testing import StandaloneServer


def test_a_decorated_function_runs_under_the_lock(
    client: zklock.Client, other_client: zklock.Client, path: str, inspector: Inspector
) -> None:
    lock, other = client.mutex(path), other_client.mutex(path)

    @zklock.locked(lock)
    def add(one: int, *, two: int) -> int:
        """Add two numbers."""
        assert lock.is_held
        assert other.acquire(timeout=0) is False
        return one + two

    assert (add.__name__, add.__doc__) == ("add", "Add two numbers.")
    assert [add(1, two=2), add(3, two=4)] == [3, 7]
    assert inspector.nodes(path) == []

    @zklock.locked(lock, timeout=0.05)
    def late() -> None:
        raise AssertionError

    @zklock.locked(lock, skip_if_busy=True)
    def skipped() -> str:
        return "ran"

    with other:
        with pytest.raises(zklock.LockTimeout):
            late()
        assert skipped() is None
    assert skipped() == "ran"

    @zklock.locked(lock)
    def fails() -> None:
        raise KeyError("key")

    with pytest.raises(KeyError):
        fails()
    assert lock.state is zklock.LockState.FREE


def test_a_decorated_coroutine_function_runs_under_the_lock(loops: Loops, server: ZooKeeper, path: str) -> None:
    async def main() -> None:
        async with zklock.aio.Client(server.address) as client, zklock.aio.Client(server.address) as another:
            lock, other = client.mutex(path), another.mutex(path)

            @zklock.locked(lock)
            async def twice(number: int) -> int:
                assert lock.is_held
                assert await other.acquire(timeout=0) is False
                return 2 * number

            assert asyncio.iscoroutinefunction(twice)
            assert await twice(4) == 8

            @zklock.locked(lock, skip_if_busy=True)
            async def skipped() -> str:
                return "ran"

            async with other:
                assert await skipped() is None
            assert await skipped() == "ran"

    loops.run(main())


def test_a_decorator_refuses_what_it_cannot_decorate(client: zklock.Client, path: str) -> None:
    lock = client.mutex(path)

    async def work() -> None: ...

    def numbers() -> object:
        yield 1

    with pytest.raises(zklock.InvalidType, match=r"work: a coroutine function needs a lock of zklock.aio"):
        zklock.locked(lock)(work)
    with pytest.raises(zklock.InvalidType, match="numbers: expected a function that is no generator"):
        zklock.locked(lock)(numbers)
    with pytest.raises(zklock.InvalidType, match=r"lock: expected a lock, such as client.mutex"):
        zklock.locked(path)
    with pytest.raises(zklock.InvalidType, match="timeout and skip_if_busy"):
        zklock.locked(lock, timeout=1, skip_if_busy=True)


def test_leaders_take_turns(client: zklock.Client, other_client: zklock.Client, path: str) -> None:
    tokens: list[int] = []
    leads, resigns = threading.Event(), threading.Event()

    def first() -> None:
        for term in client.lead(path):
            tokens.append(term.token)
            leads.set()
            resigns.wait(60)
            break

    thread = threading.Thread(target=first)
    thread.start()
    assert leads.wait(60)
    waiter = Waiter(lambda: next(iter(other_client.lead(path, data=b"second"))).token)
    wait_until(lambda: len(client.mutex(path).participants()) == 2)
    assert client.mutex(path).participants()[1].data == b"second"
    resigns.set()
    thread.join()
    assert waiter.result() > tokens[0]


def test_an_exception_ends_a_term(client: zklock.Client, path: str, inspector: Inspector) -> None:
    with pytest.raises(KeyError):
        for _term in client.lead(path):
            raise KeyError("key")
    assert inspector.nodes(path) == []


def test_a_leader_that_has_lost_its_term_leads_again(path: str) -> None:
    with StandaloneServer() as server, zklock.Client(server.address) as client:
        tokens = []
        for term in client.lead(path):
            tokens.append(term.token)
            if len(tokens) == 3:
                break
            server.expire(client.session_id)
            assert term.wait_lost(timeout=60)
        assert tokens == sorted(set(tokens))


def test_closing_the_client_ends_the_terms(client: zklock.Client, path: str) -> None:
    seen = 0
    for _term in client.lead(path):
        seen += 1
        client.close()
    assert seen == 1


def test_terms_in_tasks(loops: Loops, server: ZooKeeper, path: str, inspector: Inspector) -> None:
    async def main() -> None:
        async with zklock.aio.Client(server.address) as client:
            tokens = []
            terms = client.lead(path)
            async for term in terms:
                tokens.append(term.token)
                if len(tokens) == 2:
                    break
            await terms.aclose()
            assert tokens == sorted(set(tokens))
            assert inspector.nodes(path) == []

    loops.run(main())


LAZY = """
import os, sys, threading, zklock
client = zklock.LazyClient(sys.argv[1], session_timeout=10)
lock = client.mutex(sys.argv[2], timeout=30)
both = client.multi([lock, sys.argv[2] + "-more"])
table = client.rwlock(sys.argv[2] + "-table")
pool = client.semaphore(sys.argv[2] + "-pool", 2)
assert isinstance(lock, zklock.LockLike) and isinstance(table.read, zklock.LockLike)
assert "not" not in repr(client) and threading.active_count() == 1, repr(client)

@zklock.locked(lock)
def work():
    return lock.fencing_token, client.session_id

print(*work(), flush=True)
for _ in range(2):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with both, table.write, pool.acquire() as leases:
            assert leases.is_held and table.write.is_held
        os.write(write, "{} {}".format(*work()).encode())
        client.close()
        try:
            lock.acquire()
        except zklock.ClientClosed:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    print(os.read(read, 100).decode(), flush=True)
print(*work(), flush=True)
"""


def test_a_lazy_client_connects_at_its_first_use_and_in_each_child(
    server: ZooKeeper, path: str, program: Callable[..., Program], inspector: Inspector
) -> None:
    process = program(LAZY, server.address, path)
    results = [tuple(map(int, process.read_line().split())) for _ in range(4)]
    assert process.ends() == 0
    tokens, sessions = zip(*results)
    assert list(tokens) == sorted(set(tokens))
    assert len(set(sessions)) == 3
    assert sessions[0] == sessions[3]
    assert inspector.nodes(path) == []


def test_a_lazy_client_checks_its_arguments_at_once() -> None:
    with pytest.raises(ValueError, match="session_timeout: -1 seconds; expected more than zero"):
        zklock.LazyClient("localhost:2181", session_timeout=-1)
    with pytest.raises(ValueError, match="is not a server"):
        zklock.LazyClient("")


def test_a_lazy_client_tries_again_after_a_failure(server: ZooKeeper, path: str) -> None:
    client = zklock.LazyClient("127.0.0.1:1", connect_timeout=0.1)
    lock = client.mutex(path)
    for _ in range(2):
        with pytest.raises(zklock.ConnectionLost):
            lock.acquire()
    client.close()
    with pytest.raises(zklock.ClientClosed):
        lock.acquire()


def test_threads_share_a_lazy_client(server: ZooKeeper, path: str) -> None:
    with zklock.LazyClient(server.address) as client:
        lock = client.mutex(path)
        waiters = [Waiter(lambda: client.session_id) for _ in range(8)]
        assert len({waiter.result() for waiter in waiters}) == 1
        with lock as held:
            assert held.is_held
            assert lock.is_held
            assert repr(lock).startswith("<zklock.Mutex")
