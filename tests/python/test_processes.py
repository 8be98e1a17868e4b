"""Processes that are killed, stopped and forked, and many processes that take turns."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import zklock
from conftest import SLACK, Inspector, Program, Waiter, wait_until
from server import ZooKeeper

HOLDS = """
import sys, zklock
client = zklock.Client(sys.argv[1], session_timeout=2)
lock = client.mutex(sys.argv[2])
lock.acquire()
print(lock.fencing_token, client.metrics().session_timeout, flush=True)
input()
"""


def test_waiter_proceeds_after_a_killed_holder(
    server: ZooKeeper, client: zklock.Client, path: str, program: Callable[..., Program]
) -> None:
    holder = program(HOLDS, server.address, path)
    token, session_timeout = holder.read_line().split()
    # The limit below cannot tell 2 s from the default, 10 s.
    assert session_timeout == "2.0"
    lock = client.mutex(path)
    assert lock.acquire(timeout=0) is False
    started = time.monotonic()
    holder.process.kill()
    with lock:
        assert time.monotonic() - started < 5 + SLACK
        assert lock.fencing_token > int(token)


def test_a_program_that_ends_leaves_nothing(
    server: ZooKeeper, path: str, inspector: Inspector, program: Callable[..., Program]
) -> None:
    holder = program(HOLDS, server.address, path)
    holder.read_line()
    holder.write_line()
    assert holder.ends() == 0
    assert inspector.nodes(path) == []


# A daemon closes all descriptors, and then opens a file under each number that the library may have used.
CLOSES = """
import os, sys, tempfile, time, zklock
client = zklock.Client(sys.argv[1], session_timeout=10)
lock = client.mutex(sys.argv[2])
lock.acquire()
token = lock.fencing_token
os.closerange(3, 1024)
with tempfile.TemporaryDirectory() as directory:
    files = [os.open(f"{directory}/{n}", os.O_RDWR | os.O_CREAT) for n in range(30)]
    with client.mutex(sys.argv[2] + "-other"):
        print(lock.is_held, lock.fencing_token == token, flush=True)
    lock.release()
    client.close()
    print(sum(os.fstat(file).st_size for file in files), flush=True)
"""


def test_closed_descriptors(server: ZooKeeper, path: str, program: Callable[..., Program]) -> None:
    closes = program(CLOSES, server.address, path)
    assert closes.read_line() == "True True"
    assert closes.read_line() == "0"
    assert closes.ends() == 0


# The process queries the lock continuously. After a pause it prints the first result.
STOPPED = """
import sys, time, zklock
client = zklock.Client(sys.argv[1], session_timeout=4)
lock = client.mutex(sys.argv[2])
lock.acquire()
print(lock.fencing_token, flush=True)
before = time.monotonic()
while True:
    now = time.monotonic()
    held = lock.is_held
    if now - before > 3 or not held:
        break
    before = now
print(held, lock.remaining, lock.state.name in ("UNCERTAIN", "LOST"), flush=True)
try:
    lock.release()
except zklock.LockLost:
    print("LockLost", flush=True)
with lock:
    print("again", lock.is_held, flush=True)
"""


def test_a_stopped_holder_knows(
    server: ZooKeeper, client: zklock.Client, path: str, program: Callable[..., Program]
) -> None:
    holder = program(STOPPED, server.address, path)
    token = int(holder.read_line())
    holder.process.send_signal(signal.SIGSTOP)
    try:
        with client.mutex(path, timeout=60) as lock:
            assert lock.fencing_token > token
            holder.process.send_signal(signal.SIGCONT)
            assert holder.read_line() == "False 0.0 True"
            assert holder.read_line() == "LockLost"
    finally:
        holder.process.send_signal(signal.SIGCONT)
    assert holder.read_line() == "again True"
    assert holder.ends() == 0


# Like a daemon that is stopped inside its blocks, with one block for each kind of lock.
BLOCKS = """
import contextlib, sys, time, zklock
events = []
client = zklock.Client(sys.argv[1], session_timeout=2, on_event=events.append)
path = sys.argv[2]
rw = client.rwlock(path + "-rw")
kinds = [
    client.mutex(path), client.semaphore_mutex(path + "-a"), rw.read, client.rwlock(path + "-w").write,
    client.multi([client.mutex(path + "-b"), client.semaphore_mutex(path + "-c")]),
    client.semaphore(path + "-d", 3).acquire(2),
]
def block(lock, error):
    try:
        with lock:
            yield
            if error is not None:
                raise error
    except zklock.LockLost as lost:
        return "LockLost" if error is None and lost.__cause__ is None else "masked"
    except KeyError as own:
        notes = getattr(own, "__notes__", [own.__context__])
        return "noted" if own is error and notes[0] is not None else "lost"
    return "nothing"
def end(block):
    try:
        next(block)
    except StopIteration as stop:
        return stop.value
blocks = [block(lock, error) for lock, error in zip(kinds, [None] * 3 + [KeyError("mine")] * 3)]
for one in blocks:
    next(one)
print("holding", flush=True)
before = now = time.monotonic()
while now - before < 4.9 and all(lock.is_held for lock in kinds):
    before, now = now, time.monotonic()
print(*(lock.is_held for lock in kinds), *(lock.remaining for lock in kinds), flush=True)
def is_lost(lock):
    return any(event.lock is lock and event.state == zklock.LockState.LOST for event in lock_events())
def lock_events():
    return [event for event in list(events) if isinstance(event, zklock.LockEvent)]
# The server reports the deletion of each node separately.
while not all(map(is_lost, kinds[:4])):
    time.sleep(0.01)
print(*map(end, blocks), flush=True)
# The call waits until the library has reported the last events.
client.close()
for kind in kinds[:5]:
    told = [event for event in lock_events() if event.lock is kind]
    assert kind is kinds[4] or [event.state.name for event in told][-2:] == ["LOST", "FREE"], told
"""


def test_blocks_that_end_after_the_loss(
    server: ZooKeeper, client: zklock.Client, path: str, program: Callable[..., Program]
) -> None:
    holder = program(BLOCKS, server.address, path)
    assert holder.read_line() == "holding"
    holder.process.send_signal(signal.SIGSTOP)
    try:
        time.sleep(5)
        with client.mutex(path, timeout=60):
            holder.process.send_signal(signal.SIGCONT)
            assert holder.read_line() == " ".join(["False"] * 6 + ["0.0"] * 6)
            assert holder.read_line() == " ".join(["LockLost"] * 3 + ["noted"] * 3)
    finally:
        holder.process.send_signal(signal.SIGCONT)
    assert holder.ends() == 0


# No Python code runs for more than two session timeouts, because a thread in C code does not release the interpreter.
STANDS_STILL = """
import ctypes, sys, time, zklock
client = zklock.Client(sys.argv[1], session_timeout=2)
lock = client.mutex(sys.argv[2])
lock.acquire()
print("holding", flush=True)
ctypes.PyDLL(None).usleep(5_000_000)
print(lock.is_held, lock.remaining > 0, lock.state.name, flush=True)
"""


@pytest.mark.parametrize("frozen", [False, True])
def test_session_survives_a_blocked_interpreter(
    own_server: ZooKeeper, path: str, program: Callable[..., Program], frozen: bool
) -> None:
    holder = program(STANDS_STILL, own_server.address, path)
    assert holder.read_line() == "holding"
    if frozen:
        own_server.pause()
        assert holder.read_line() == "False False UNCERTAIN"
    else:
        # zklock's own thread keeps the session alive, and needs no interpreter for that.
        assert holder.read_line() == "True True HELD"


FORKS = """
import gc, os, sys, threading, warnings, zklock
warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
servers, path = sys.argv[1:]
events = []
client = zklock.Client(servers, on_event=events.append)
lock = client.mutex(path)
lock.acquire()
waiting = threading.Thread(target=lambda: (lock.acquire(), lock.release()))
waiting.start()
while len(lock.participants()) < 2:
    pass
rw = client.rwlock(path + "-rw")
rw.read.acquire()
multi = client.multi([client.mutex(path + "-a"), client.semaphore_mutex(path + "-b")])
multi.acquire()
semaphore = client.semaphore(path + "-semaphore", 3)
leases = semaphore.acquire(2)
asked = threading.Event()
for revocable in (rw.read, multi, semaphore):
    revocable.set_revocable(lambda node: asked.set())

def is_forked(call):
    try:
        call()
    except zklock.Forked as error:
        return error.status == -12
    return False

for round in range(10):
    child = os.fork()
    if child == 0:
        del waiting
        calls = [
            lock.acquire, lambda: lock.acquire(timeout=0), lock.release, lock.release_nowait, lock.cancel,
            lock.participants, lock.queue, lock.waiting,
            lock.__enter__, lambda: lock.set_data(b""), lambda: lock.is_held, lambda: lock.is_held_in_process,
            lambda: lock.state, lambda: lock.remaining, lambda: lock.fencing_token,
            lambda: client.mutex("/a"), lambda: client.state, lambda: client.session_id,
            lambda: client.semaphore_mutex("/a"), lambda: client.rwlock("/a"), lambda: client.multi([lock, multi]),
            lambda: client.semaphore("/a", 1), lambda: client.semaphore("/a", count_path="/b", initial=1),
            lambda: client.shared_count_get("/a"), lambda: client.shared_count_set("/a", 1),
            lambda: client.revoke("/a"), lambda: client.fence_check("/a", 1),
            lambda: lock.node_path, lambda: lock.set_revocable(print), lambda: multi.set_revocable(None),
            rw.read.acquire, rw.write.acquire, rw.queue, multi.acquire, multi.release, lambda: multi.node_paths,
            semaphore.acquire, semaphore.cancel, semaphore.participants, semaphore.waiting,
            lambda: semaphore.set_data(b""), lambda: semaphore.set_revocable(print),
            leases.release, leases.release_nowait, leases.__enter__,
            lambda: leases.is_held, lambda: leases.state, lambda: leases.remaining, lambda: leases.fencing_token,
            lambda: leases.node_paths,
        ]
        assert all(is_forked(call) for call in calls)
        # Closing an object of the parent does nothing.
        assert client.close() is None and semaphore.close() is None
        assert client.__exit__(None, None, None) is None
        assert all(is_forked(call) for call in calls)
        assert all("FORKED" in repr(thing) for thing in (lock, client, rw.read, multi, leases))
        del lock, client, rw, multi, semaphore, leases, revocable, calls
        gc.collect()
        events = []
        with zklock.Client(servers, on_event=events.append) as own:
            assert not own.mutex(path).acquire(timeout=0)
            with own.mutex(path + "-of-the-child") as mine:
                asked = threading.Event()
                mine.set_revocable(lambda node: asked.set())
                own.revoke(mine.node_path)
                assert asked.wait(60)
            assert not own.rwlock(path + "-rw").write.acquire(timeout=0)
            with own.semaphore(path + "-semaphore", 3).acquire(1, timeout=0):
                pass
        states = [event.state.name for event in events if isinstance(event, zklock.ClientEvent)]
        assert states == ["CONNECTED", "CLOSED"]
        sys.exit(7)
    status = os.waitpid(child, 0)[1]
    assert os.WEXITSTATUS(status) == 7, status
    assert lock.is_held and rw.read.is_held and multi.is_held and leases.is_held
assert client.state is zklock.ClientState.CONNECTED
assert not asked.is_set()
client.revoke(leases.node_paths[0])
assert asked.wait(60)
leases.release()
multi.release()
rw.read.release()
lock.release()
waiting.join()
with lock:
    print("fine", flush=True)
client.close()
assert events[-1].state is zklock.ClientState.CLOSED
"""


def test_fork(server: ZooKeeper, path: str, inspector: Inspector, program: Callable[..., Program]) -> None:
    parent = program(FORKS, server.address, path)
    assert parent.read_line() == "fine"
    assert parent.ends() == 0
    assert inspector.nodes(path) == []


MULTIPROCESSING = """
import multiprocessing, sys, warnings, zklock
warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)

def child(results):
    try:
        with lock:
            results.put("held")
    except zklock.Error as error:
        results.put(error)

with zklock.Client(sys.argv[1]) as client:
    lock = client.mutex(sys.argv[2])
    with lock:
        fork = multiprocessing.get_context("fork")
        results = fork.Queue()
        process = fork.Process(target=child, args=(results,))
        process.start()
        error = results.get()
        process.join()
        print(type(error).__name__, error.status, process.exitcode, lock.is_held, flush=True)
"""


def test_multiprocessing_fork(server: ZooKeeper, path: str, program: Callable[..., Program]) -> None:
    parent = program(MULTIPROCESSING, server.address, path)
    assert parent.read_line() == "Forked -12 0 True"
    assert parent.ends() == 0


# Workers that end as programs do that close their client with atexit.
AT_EXIT = """
import atexit, multiprocessing, os, sys, warnings, zklock
warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
client = zklock.Client(sys.argv[1])
lock = client.mutex(sys.argv[2])
semaphore = client.semaphore(sys.argv[2] + "-semaphore", 1)
atexit.register(client.close)
atexit.register(semaphore.close)

def work():
    # multiprocessing runs only the finalizers that the worker registers. The second line runs the handlers of atexit.
    multiprocessing.util.Finalize(None, client.close, exitpriority=1)
    atexit._run_exitfuncs()

lock.acquire()
child = os.fork()
if child == 0:
    sys.exit(3)
print(os.WEXITSTATUS(os.waitpid(child, 0)[1]), flush=True)
worker = multiprocessing.get_context("fork").Process(target=work)
worker.start()
worker.join()
print(worker.exitcode, lock.is_held, client.state.name, flush=True)
"""


def test_closing_at_the_end_of_a_forked_worker_does_nothing(
    server: ZooKeeper,
    path: str,
    inspector: Inspector,
    program: Callable[..., Program],
    capfd: pytest.CaptureFixture[str],
) -> None:
    parent = program(AT_EXIT, server.address, path)
    assert parent.read_line() == "3"
    assert parent.read_line() == "0 True CONNECTED"
    assert parent.ends() == 0
    assert capfd.readouterr().err == ""
    assert inspector.nodes(path) == []


# A child that leaves the with blocks of its parent.
UNWINDS = """
import os, sys, warnings, zklock
warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
with zklock.Client(sys.argv[1]) as client, client.mutex(sys.argv[2]) as lock:
    child = os.fork()
    if child == 0:
        sys.exit(9)
    assert os.WEXITSTATUS(os.waitpid(child, 0)[1]) == 9
    print(lock.is_held, flush=True)
"""


def test_a_child_leaves_the_blocks_of_its_parent(server: ZooKeeper, path: str, program: Callable[..., Program]) -> None:
    parent = program(UNWINDS, server.address, path)
    assert parent.read_line() == "True"
    assert parent.ends() == 0


# Each line says of each hold whether it is lost. The first three holds were released: by their object, by the lock, and
# by a member lock.
RELEASES = """
import os, sys, warnings, zklock
warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
servers, path = sys.argv[1:]
with zklock.Client(servers) as client, zklock.Client(servers) as other:
    lock = client.mutex(path)
    holds = [lock.hold()]
    holds[0].release()
    holds.append(lock.hold())
    lock.release()
    multi = client.multi([path + "-a", other.mutex(path + "-b")])
    holds.append(multi.hold())
    multi.locks[1].release()
    holds.append(lock.hold())
    print([hold.is_lost for hold in holds], flush=True)
    child = os.fork()
    if child == 0:
        print([hold.is_lost for hold in holds], [hold.is_held for hold in holds], flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    lock.release()
    multi.locks[0].release()
"""


def test_released_hold_of_the_parent_is_not_lost_in_a_forked_child(
    server: ZooKeeper, path: str, program: Callable[..., Program]
) -> None:
    parent = program(RELEASES, server.address, path)
    assert parent.read_line() == "[False, False, False, False]"
    assert parent.read_line() == "[False, False, False, True] [False, False, False, False]"
    assert parent.ends() == 0


# The process prints its tokens, and the growth of its memory in the second half in bytes. The memory excludes the pages
# of files: code that runs for the first time adds 128 KiB of the library at once. The lock protects a file that only
# one process at a time can create.
TAKES_TURNS = """
import os, resource, sys, zklock
servers, path, marker, rounds = sys.argv[1:]
def anonymous():
    with open("/proc/self/statm") as statm:
        resident, of_files = statm.read().split()[1:3]
        return (int(resident) - int(of_files)) * resource.getpagesize()
def turns(lock):
    for turn in range(int(rounds) // 2):
        with lock:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
            tokens[turn] = lock.fencing_token
            os.unlink(marker)
    return " ".join(map(str, tokens))
tokens = [0] * (int(rounds) // 2)
with zklock.Client(servers) as client:
    lock = client.mutex(path)
    print("ready", flush=True)
    input()
    print(turns(lock), flush=True)
    before = anonymous()
    print(turns(lock), flush=True)
    print(anonymous() - before, flush=True)
"""


def test_processes_take_turns_and_leak_nothing(
    own_server: ZooKeeper, path: str, tmp_path: Path, program: Callable[..., Program]
) -> None:
    rounds = 640
    arguments = [own_server.address, path, str(tmp_path / "marker"), str(rounds)]
    workers = [program(TAKES_TURNS, *arguments) for _ in range(4)]
    for worker in workers:
        assert worker.read_line() == "ready"
    for worker in workers:
        worker.write_line()
    turns = [Waiter(lambda worker=worker: " ".join(worker.read_line() for _ in range(2))) for worker in workers]
    tokens = [[int(token) for token in turn.result(120).split()] for turn in turns]
    growths = [int(worker.read_line()) for worker in workers]
    assert [worker.ends() for worker in workers] == [0] * 4
    assert all(own == sorted(own) for own in tokens)
    assert len({token for own in tokens for token in own}) == 4 * rounds
    # A leak of 410 bytes in each round of the second half is found.
    assert all(growth < 1 << 17 for growth in growths), growths
    with zklock.Client(own_server.address) as client:
        assert client.mutex(path).participants() == []
    wait_until(lambda: own_server.sessions() == set() and own_server.watches() == 0)


LEAKS = """
import os, sys, time, zklock
def count():
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
def threads_end():
    # The kernel removes a thread from the list a moment after another thread has joined it.
    end = time.monotonic() + 60
    while count()[0] != before[0]:
        assert time.monotonic() < end, (before, count())
        time.sleep(0.001)
before = count()
for _ in range(5):
    clients = [zklock.Client(sys.argv[1]) for _ in range(5)]
    for client in clients:
        with client.mutex(sys.argv[2]):
            client.mutex(sys.argv[2] + "-other").acquire(timeout=1)
        rw = client.rwlock(sys.argv[2] + "-rw")
        with client.semaphore(sys.argv[2] + "-semaphore", 2).acquire(2), client.multi([rw.write]):
            pass
    assert count()[0] == before[0] + 1, (before, count())
    for client in clients:
        client.close()
    threads_end()
    del client, clients, rw
    assert count() == before, (before, count())
print("fine", flush=True)
"""


def test_nothing_leaks(server: ZooKeeper, path: str, program: Callable[..., Program]) -> None:
    leaking = program(LEAKS, server.address, path)
    assert leaking.read_line() == "fine"
    assert leaking.ends() == 0


# The main thread ends while a daemon thread waits. The interpreter no longer exists when the wait ends.
DAEMON = """
import sys, threading, zklock
client = zklock.Client(sys.argv[1])
lock = client.mutex(sys.argv[2])
threading.Thread(target=lock.acquire, daemon=True).start()
while len(lock.participants()) < 2:
    pass
print("leaves", flush=True)
"""


def test_a_daemon_thread_does_not_disturb_the_end(
    server: ZooKeeper, client: zklock.Client, path: str, program: Callable[..., Program]
) -> None:
    with client.mutex(path):
        leaving = program(DAEMON, server.address, path)
        assert leaving.read_line() == "leaves"
        assert leaving.ends() == 0
        # The session has been closed, although it could have lasted for seconds.
        assert len(client.mutex(path).participants()) == 1


# A callback is registered, and may run, while the interpreter ends. Leases and locks are held.
REVOCABLE = """
import sys, threading, time, zklock
client = zklock.Client(sys.argv[1])
path = sys.argv[2]
lock, semaphore = client.mutex(path), client.semaphore(path + "-semaphore", 3)
leases = semaphore.acquire(2)
lock.acquire()
entered = threading.Event()
def callback(node):
    entered.set()
    {body}
lock.set_revocable(callback)
semaphore.set_revocable(callback)
client.revoke({node})
entered.wait({timeout})
print("leaves", flush=True)
"""


@pytest.mark.parametrize(
    "body",
    [
        "pass",
        "threading.Event().wait()",
        "time.sleep(1000)",
        "exec('while True: pass')",
        "exec('while True: time.sleep(0.0001)')",
        "client.mutex(path + '-other').acquire(timeout=0), threading.Event().wait()",
        "[client.revoke(node) for _ in iter(int, 1)]",
        "[zklock.Client(sys.argv[1]) for _ in iter(int, 1)]",
    ],
)
@pytest.mark.parametrize("node", ["lock.node_path", "leases.node_paths[0]", "'/nobody'"])
def test_a_callback_does_not_disturb_the_end(
    server: ZooKeeper, path: str, inspector: Inspector, program: Callable[..., Program], body: str, node: str
) -> None:
    timeout = 0 if node == "'/nobody'" else 10
    leaving = program(REVOCABLE.format(body=body, node=node, timeout=timeout), server.address, path)
    assert leaving.read_line() == "leaves"
    assert leaving.ends() == 0
    inspector.wait_for(path, 0)
    inspector.wait_for(f"{path}-semaphore/leases", 0)


def test_a_wait_survives_its_session(
    server: ZooKeeper, client: zklock.Client, path: str, inspector: Inspector, program: Callable[..., Program]
) -> None:
    code = HOLDS.replace("lock.acquire()", "print('waits', flush=True); lock.acquire()")
    with client.mutex(path) as lock:
        waiting = program(code, server.address, path)
        assert waiting.read_line() == "waits"
        inspector.wait_for(path, 2)
        first = lock.participants()[1]
        waiting.process.send_signal(signal.SIGSTOP)
        try:
            inspector.wait_for(path, 1)
        finally:
            waiting.process.send_signal(signal.SIGCONT)
        wait_until(lambda: len(lock.participants()) == 2)
        assert lock.participants()[1].session_id != first.session_id
    assert int(waiting.read_line().split()[0]) > first.czxid
    waiting.write_line()
    assert waiting.ends() == 0
