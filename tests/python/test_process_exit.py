"""The ends of Python programs that use zklock, and the processes that they start.

Nothing hangs, nothing crashes, and no child inherits a lock.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Inspector, Program
from server import ZooKeeper

# A client that holds a lock, and a daemon thread that waits without limit.
BEGINS = """
import atexit, faulthandler, os, sys, threading
def release_late():
    try:
        lock.release()
    except zklock.ClientClosed:
        print("already closed", flush=True)
atexit.register(release_late)
import zklock
client = zklock.Client(sys.argv[1], session_timeout=4)
lock, other = client.mutex(sys.argv[2]), client.mutex(sys.argv[2])
lock.acquire()
threading.Thread(target=other.acquire, daemon=True).start()
while len(lock.participants()) < 2:
    pass
"""
QUIETLY = "os.dup2(os.open(os.devnull, os.O_WRONLY), 2); "
COUNT = "import os, sys; sys.exit(len(os.listdir('/proc/self/fd')))"


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("pass", 0),
        ("sys.exit(3)", 3),
        ("thread = threading.Thread(target=sys.exit, args=(4,)); thread.start(); thread.join()", 0),
        (QUIETLY + "raise ValueError", 1),
        ("del client", 0),
        ("cycle = [client, lock]; cycle.append(cycle); del client, other, cycle", 0),
        (
            "import signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(5)); os.kill(os.getpid(), 15)",
            5,
        ),
    ],
)
def test_an_orderly_end(
    server: ZooKeeper, path: str, inspector: Inspector, program: Callable[..., Program], end: str, code: int
) -> None:
    """All clients are closed before exit handlers that were registered earlier run."""
    ending = program(BEGINS + end, server.address, path)
    assert ending.read_line() == "already closed"
    assert ending.ends(5) == code
    assert inspector.nodes(path) == []


# While the interpreter shuts down, a daemon thread still runs a Python function that the native module has called.
PYTHON_CALLED = """
import logging, sys, threading, time, zklock
client = zklock.Client(sys.argv[1])
lock, other = client.mutex(sys.argv[2]), client.mutex(sys.argv[2])
logging.getLogger("zklock").addHandler(logging.NullHandler())
lock.acquire()
is_called = threading.Event()

def replace(owner, name):
    original = getattr(owner, name)
    def call(*arguments, **options):
        if threading.get_ident() == main:
            return original(*arguments, **options)
        is_called.set()
        while True:
            time.sleep(0.0001)
    setattr(owner, name, call)

main = threading.get_ident()
replace(*eval(sys.argv[3]))
threading.Thread(target=exec, args=(sys.argv[4], globals()), daemon=True).start()
assert is_called.wait(30)
"""


@pytest.mark.parametrize(
    ("replaced", "call"),
    [
        ("logging.getLogger('zklock.lock'), 'getEffectiveLevel'", "other.acquire()"),
        ("threading, 'current_thread'", "other.acquire()"),
        ("threading, 'main_thread'", "other.acquire()"),
        ("zklock.NotOwner, '__init__'", "other.release()"),
        ("zklock.Metrics, '__init__'", "client.metrics()"),
        ("sys, 'unraisablehook'", "kept = zklock.Client(sys.argv[1], on_event=lambda event: 1 / 0)"),
    ],
)
def test_a_daemon_thread_that_runs_python_code(
    server: ZooKeeper, path: str, program: Callable[..., Program], replaced: str, call: str
) -> None:
    assert program(PYTHON_CALLED, server.address, path, replaced, call).ends() == 0


# An exit handler waits for a daemon thread, and the daemon thread waits for a lock.
JOINED = """
import atexit, sys, threading
def join():
    thread.join()
    print("joined", flush=True)
atexit.register(join)
import zklock
client = zklock.Client(sys.argv[1])
lock, other = client.mutex(sys.argv[2]), client.mutex(sys.argv[2])
lock.acquire()
def work():
    try:
        other.acquire()
    except zklock.ClientClosed:
        print("closed", flush=True)
thread = threading.Thread(target=work, daemon=True)
thread.start()
while not other.waiting():
    pass
"""


def test_an_exit_handler_that_joins_a_daemon_thread(
    server: ZooKeeper, path: str, program: Callable[..., Program]
) -> None:
    ending = program(JOINED, server.address, path)
    assert [ending.read_line(), ending.read_line()] == ["closed", "joined"]
    assert ending.ends() == 0


# Each process acquires a lock and ends without releasing the lock. Ctrl-C interrupts its first attempt to make a
# client.
CHILDREN = """
import concurrent.futures, multiprocessing.util, sys, threading, zklock
from unittest import mock

def interrupted_finalize():
    return mock.patch.object(multiprocessing.util, "Finalize", side_effect=KeyboardInterrupt)

def acquire(servers, path):
    global client, mutex, pool
    # The worker of this pool ends only when the interpreter ends.
    pool = concurrent.futures.ThreadPoolExecutor(1)
    pool.submit(int).result()
    with interrupted_finalize():
        try:
            zklock.Client(servers)
        except KeyboardInterrupt:
            pass
    client = zklock.Client(servers, session_timeout=60)
    mutex = client.mutex(path)
    mutex.acquire()
    def use_late():
        threading.main_thread().join(0.2)
        assert mutex.is_held_in_process
        print("held", flush=True)
    threading.Thread(target=use_late).start()

def main(method, servers, path):
    child = multiprocessing.get_context(method).Process(target=acquire, args=(servers, path))
    child.start()
    child.join()
    assert child.exitcode == 0
    with zklock.Client(servers) as client, client.mutex(path, timeout=30):
        print("acquired", flush=True)
"""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_child_of_multiprocessing_closes_its_client(
    server: ZooKeeper, path: str, tmp_path: Path, program: Callable[..., Program], method: str
) -> None:
    (tmp_path / "children.py").write_text(CHILDREN)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import children; children.main(*sys.argv[1:])"
    parent = program(code, method, server.address, path)
    assert [parent.read_line(), parent.read_line()] == ["held", "acquired"]
    assert parent.ends() == 0


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("os._exit(6)", 6),
        ("os.abort()", -signal.SIGABRT),
        (QUIETLY + "faulthandler.enable(); os.kill(os.getpid(), 11)", -signal.SIGSEGV),
        ("os.kill(os.getpid(), 9)", -signal.SIGKILL),
        # Three descriptors, and the one that lists the directory.
        (f"os.execv(sys.executable, [sys.executable, '-c', {COUNT!r}])", 4),
    ],
)
def test_abrupt_exit_does_not_hang(
    server: ZooKeeper, path: str, program: Callable[..., Program], end: str, code: int
) -> None:
    ending = program(BEGINS + end, server.address, path)
    assert ending.read_line() == ""
    assert ending.ends(5) == code


# Destructors that run while the interpreter clears its modules may still call zklock.
ASKS_AT_THE_END = """
import sys, zklock
class Asks:
    def __init__(self):
        self.client = zklock.Client(sys.argv[1])
        self.lock = self.client.mutex(sys.argv[2])
        self.lock.acquire()
    def __del__(self, print=print, Error=zklock.Error):
        try:
            self.lock.release()
        except Error as error:
            print(error.status, flush=True)
        self.client.close()
asks = Asks()
asks.itself = asks
"""


def test_a_destructor_at_the_end(
    server: ZooKeeper, path: str, inspector: Inspector, program: Callable[..., Program]
) -> None:
    ending = program(ASKS_AT_THE_END, server.address, path)
    assert ending.read_line() == "-8"
    assert ending.ends(5) == 0
    assert inspector.nodes(path) == []


# Other programs inherit no descriptor, even if the parent does not close its descriptors.
STARTS_OTHERS = f"""
import os, shlex, subprocess, sys, zklock
counts = [sys.executable, "-c", {COUNT!r}]
def inherited():
    return subprocess.run(counts, close_fds=False).returncode, os.system(shlex.join(counts))
before = inherited()
with zklock.Client(sys.argv[1]) as client, client.mutex(sys.argv[2]) as lock:
    assert inherited() == before
    print(lock.is_held, flush=True)
"""


def test_other_programs_inherit_nothing(server: ZooKeeper, path: str, program: Callable[..., Program]) -> None:
    starting = program(STARTS_OTHERS, server.address, path)
    assert starting.read_line() == "True"
    assert starting.ends() == 0


# Each worker makes its own client after the fork, while the parent holds a lock.
WORKERS = """
import concurrent.futures, multiprocessing, os, zklock

def begin(servers):
    global client
    client = zklock.Client(servers)

def take_turn(path):
    with client.mutex(path) as lock:
        return os.getpid(), lock.fencing_token

def main(method, servers, path):
    with zklock.Client(servers) as own, own.mutex(path + "-of-the-parent") as held:
        context = multiprocessing.get_context(method)
        options = dict(mp_context=context, initializer=begin, initargs=(servers,))
        with concurrent.futures.ProcessPoolExecutor(3, **options) as pool:
            turns = list(pool.map(take_turn, [path] * 30))
        assert len({token for _, token in turns}) == 30
        assert os.getpid() not in {process for process, _ in turns}
        assert own.state is zklock.ClientState.CONNECTED
        print(held.is_held, flush=True)
"""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_with_clients_of_their_own(
    server: ZooKeeper, path: str, inspector: Inspector, tmp_path: Path, program: Callable[..., Program], method: str
) -> None:
    (tmp_path / "workers.py").write_text(WORKERS)
    code = f"""
import sys, warnings
warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
sys.path.insert(0, {str(tmp_path)!r})
import workers
workers.main(*sys.argv[1:])
"""
    parent = program(code, method, server.address, path)
    assert parent.read_line() == "True"
    assert parent.ends() == 0
    assert inspector.nodes(path) == []


# A server forks before it makes a client. Its workers end in different ways.
PRE_FORK = """
import os, sys, zklock
workers = []
for ending in (sys.exit, os._exit, sys.exit):
    worker = os.fork()
    if worker == 0:
        client = zklock.Client(sys.argv[1], session_timeout=4)
        for _ in range(5):
            with client.mutex(sys.argv[2]):
                pass
        ending(7)
    workers.append(worker)
with zklock.Client(sys.argv[1]) as client:
    for worker in workers:
        assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == 7
        with client.mutex(sys.argv[2]) as lock:
            assert lock.is_held
print("fine", flush=True)
"""


def test_a_server_that_forks_first(server: ZooKeeper, path: str, program: Callable[..., Program]) -> None:
    parent = program(PRE_FORK, server.address, path)
    assert parent.read_line() == "fine"
    assert parent.ends() == 0


def test_forked_error_message_suggests_a_new_client(
    server: ZooKeeper, path: str, program: Callable[..., Program]
) -> None:
    code = """
import os, sys, warnings, zklock
warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
client = zklock.Client(sys.argv[1])
if os.fork() == 0:
    try:
        client.mutex(sys.argv[2])
    except zklock.Forked as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
"""
    parent = program(code, server.address, path)
    said = parent.read_line()
    assert "spawn" in said
    assert "forkserver" in said
    assert "make a client in the child" in said
    assert parent.ends() == 0


# The child goes on in a copy of the thread that calls callbacks. That copy makes no further calls, and the child ends
# when the callback returns.
FORK_IN_CALLBACK = """
import os, sys, threading, warnings, zklock
warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
children, has_forked = [], threading.Event()

def on_event(event):
    if not children:
        children.append(os.fork())
        has_forked.set()

with zklock.Client(sys.argv[1], on_event=on_event) as client:
    assert has_forked.wait(60)
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
    with client.mutex(sys.argv[2]) as lock:
        print(lock.is_held, flush=True)
"""


def test_a_child_that_returns_from_a_callback_ends(
    server: ZooKeeper, path: str, program: Callable[..., Program]
) -> None:
    parent = program(FORK_IN_CALLBACK, server.address, path)
    assert parent.read_line() == "True"
    assert parent.ends() == 0


# Only one interpreter of a process may use zklock, because all clients would be closed at the end of the first
# interpreter.
SUBINTERPRETER = """
import sys, zklock
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
with zklock.Client(sys.argv[1]) as client, client.mutex(sys.argv[2]) as lock:
    other = interpreters.create()
    refused = interpreters.run_string(other, '''
try:
    import zklock
except ImportError as error:
    assert "interpreter" in str(error), error
else:
    raise AssertionError("it was imported")
''')
    assert refused is None, refused
    interpreters.destroy(other)
    print(lock.is_held, flush=True)
"""


def test_a_subinterpreter(server: ZooKeeper, path: str, program: Callable[..., Program]) -> None:
    running = program(SUBINTERPRETER, server.address, path)
    assert running.read_line() == "True"
    assert running.ends() == 0


# The child leaves its lock behind, and ends without the handlers of atexit.
FORKED = """
import os, sys, warnings, zklock
warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
def work():
    client = zklock.Client(sys.argv[1], session_timeout=60)
    client.mutex(sys.argv[2]).acquire()
    print("held", flush=True)
    os._exit(7)
child = os.fork()
if child == 0:
    if sys.argv[3] == "grandchild" and os.fork() != 0:
        os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
    work()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
with zklock.Client(sys.argv[1]) as client, client.mutex(sys.argv[2], timeout=30):
    print("acquired", flush=True)
"""


@pytest.mark.parametrize("who", ["child", "grandchild"])
def test_a_forked_child_that_ends_with_exit_closes_its_client(
    server: ZooKeeper, path: str, program: Callable[..., Program], who: str
) -> None:
    parent = program(FORKED, server.address, path, who)
    assert [parent.read_line(), parent.read_line()] == ["held", "acquired"]
    assert parent.ends() == 0
