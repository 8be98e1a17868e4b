"""Tests with greenlets of gevent and eventlet. Each greenlet owns its holds, and a greenlet that waits does not stop
the others.

Every test starts a new program, because monkey-patching cannot be undone.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

import zklock
from conftest import Inspector, Program, needs, wait_until
from server import ZooKeeper

# eventlet warns that it is deprecated, and warnings are errors in these programs.
IMPORTS = "import sys, warnings; warnings.simplefilter('default')\n"
GEVENT = """
import gevent, gevent.monkey
{patch}
spawn, sleep, Timeout, GreenletExit = gevent.spawn, gevent.sleep, gevent.Timeout, gevent.GreenletExit
def result(greenlet): return greenlet.get()
def is_over(greenlet): return greenlet.dead
"""
EVENTLET = """
import eventlet, greenlet
{patch}
spawn, sleep, Timeout, GreenletExit = eventlet.spawn, eventlet.sleep, eventlet.Timeout, greenlet.GreenletExit
def result(greenlet): return greenlet.wait()
def is_over(greenlet): return greenlet.dead
"""
COMMON = """
import gc, threading, time, zklock, zklock.testing

def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        sleep(0.005)

def raised(call, *arguments):
    try:
        call(*arguments)
    except zklock.Error as error:
        return type(error).__name__
"""
FRAMEWORKS = {
    "gevent": GEVENT.format(patch=""),
    "gevent-patched": GEVENT.format(patch="gevent.monkey.patch_all()"),
    "eventlet": EVENTLET.format(patch=""),
    "eventlet-patched": EVENTLET.format(patch="eventlet.monkey_patch()"),
}
Run = Callable[..., Program]


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> str:
    needs(request.param.partition("-")[0])
    return IMPORTS + FRAMEWORKS[request.param] + COMMON


@pytest.fixture
def with_gevent() -> str:
    needs("gevent")
    return IMPORTS + FRAMEWORKS["gevent"] + COMMON


# A signal handler raises an exception before the native module has started the call.
INTERRUPTED_EARLY = """
import zklock._greenlets
def interrupt(): raise KeyboardInterrupt
def interrupted(call):
    original, zklock._greenlets._gevent_hub = zklock._greenlets._gevent_hub, interrupt
    try:
        call()
    except KeyboardInterrupt:
        return
    finally:
        zklock._greenlets._gevent_hub = original
    raise AssertionError("no exception")

client, other = zklock.Client(sys.argv[1]), zklock.Client(sys.argv[1])
mutex, semaphore = client.mutex(sys.argv[2]), client.semaphore(sys.argv[2] + "-semaphore", 1)
mutex.acquire()
interrupted(mutex.release)
assert mutex.state is zklock.LockState.FREE
hold, leases = mutex.hold(), semaphore.acquire()
interrupted(hold.release)
interrupted(leases.release)
with other.mutex(sys.argv[2]), other.semaphore(sys.argv[2] + "-semaphore", 1).acquire():
    pass
interrupted(mutex.acquire)
assert not mutex.is_held_in_process
interrupted(client.close)
assert raised(mutex.acquire) == "ClientClosed"
print("fine", flush=True)
"""


def test_interrupted_release_takes_effect(framework: str, server: ZooKeeper, path: str, program: Run) -> None:
    interrupted = program(framework + INTERRUPTED_EARLY, server.address, path)
    assert interrupted.read_line() == "fine"
    assert interrupted.ends() == 0


EXCLUDE = """
client = zklock.Client(sys.argv[1])
lock = client.mutex(sys.argv[2])
inside, most, turns = 0, 0, []

def work(name):
    global inside, most
    for _ in range(10):
        with lock:
            inside += 1
            most = max(most, inside)
            assert lock.is_held
            turns.append(name)
            sleep(0)
            sleep(0.001)
            inside -= 1

workers = [spawn(work, name) for name in range(3)]
for worker in workers:
    result(worker)
print(most, len(turns), lock.state.name)
client.close()
print(client.state.name)
"""


def test_greenlets_of_one_thread_exclude_each_other(framework: str, server: ZooKeeper, path: str, program: Run) -> None:
    green = program(framework + EXCLUDE, server.address, path)
    assert green.read_line() == "1 30 FREE"
    assert green.read_line() == "CLOSED"
    assert green.ends() == 0


OWN = """
client = zklock.Client(sys.argv[1])
lock = client.mutex(sys.argv[2])
steps = []

def holder():
    assert lock.acquire() and lock.acquire(timeout=0)
    lock.release()
    steps.append("entered twice")
    until(lambda: "looked" in steps)
    assert lock.is_held and lock.state.name == "HELD" and lock.node_path in lock.node_paths
    token = lock.fencing_token
    lock.release()
    assert not lock.is_held
    return token

def stranger():
    until(lambda: steps)
    assert not lock.is_held and lock.is_held_in_process
    assert lock.acquire(timeout=0) is False
    assert raised(lock.release) == raised(lock.release_nowait) == raised(lambda: lock.node_path) == "NotOwner"
    steps.append("looked")

def main():
    greenlets = [spawn(holder), spawn(stranger)]
    token, _ = [result(greenlet) for greenlet in greenlets]
    with lock:
        assert lock.fencing_token > token
        # The main greenlet is its thread.
        assert lock.is_held
        assert result(spawn(lambda: lock.is_held)) is False

    rw = client.rwlock(sys.argv[2] + "-rw")
    def read():
        with rw.read:
            steps.append("reads")
            until(lambda: steps.count("reads") == 2)
            return raised(rw.write.acquire)
    assert [result(reader) for reader in [spawn(read), spawn(read)]] == ["Deadlock", "Deadlock"]

    # Any greenlet may release a semaphore mutex.
    semaphore_mutex = client.semaphore_mutex(sys.argv[2] + "-semaphore-mutex")
    semaphore_mutex.acquire()
    result(spawn(semaphore_mutex.release))
    both = client.multi([lock, client.mutex(sys.argv[2] + "-other")])
    with both:
        assert result(spawn(lambda: (both.acquire(timeout=0), raised(both.release)))) == (False, "NotOwner")

main()
print("fine")
"""


def test_a_hold_belongs_to_a_greenlet(framework: str, server: ZooKeeper, path: str, program: Run) -> None:
    green = program(framework + OWN, server.address, path)
    assert green.read_line() == "fine"
    assert green.ends() == 0


# No call that waits for a server returns before another greenlet has run.
WAIT = """
from zklock.testing import StandaloneServer
server = StandaloneServer()
is_frozen = False

def thaw():
    global is_frozen
    while True:
        sleep(0.001)
        if is_frozen:
            is_frozen = False
            server.thaw()

def asleep(call):
    # The call can return only after another greenlet has thawed the server.
    global is_frozen
    server.freeze()
    is_frozen = True
    got = call()
    assert not is_frozen, call
    return got

def enter(thing):
    return asleep(thing.__enter__)

def leave(thing):
    asleep(lambda: thing.__exit__(None, None, None))

def main():
    client = asleep(lambda: zklock.Client(server.address, on_event=lambda event: None))
    lock, rw = client.mutex("/a"), client.rwlock("/rw")
    assert asleep(lock.acquire)
    assert result(spawn(lambda: asleep(lambda: lock.acquire(timeout=0)))) is False
    assert len(asleep(lock.participants)) == 1
    assert asleep(lambda: client.fence_check("/a", lock.fencing_token))
    asleep(lambda: client.revoke(lock.node_path))
    asleep(lock.release)
    leave(enter(lock))
    leave(enter(rw.write))
    asleep(rw.queue)
    leave(enter(client.multi([lock, client.semaphore_mutex("/b")])))
    asleep(lambda: client.shared_count_set("/count", 3))
    assert asleep(lambda: client.shared_count_get("/count")) == 3
    semaphore = asleep(lambda: client.semaphore("/s", count_path="/count", initial=1))
    leases = asleep(lambda: semaphore.acquire(2))
    asleep(semaphore.participants)
    asleep(leases.release)
    leave(asleep(semaphore.acquire))
    asleep(client.close)

spawn(thaw)
main()
print("from the main greenlet", flush=True)
result(spawn(main))
print("from another", flush=True)
"""


def test_other_greenlets_run_during_every_call_that_waits(framework: str, program: Run) -> None:
    green = program(framework + WAIT)
    assert green.read_line() == "from the main greenlet"
    assert green.read_line() == "from another"
    assert green.ends() == 0


# In a greenlet, the library closes a client on a new thread. The limit leaves no memory for the stack of this thread.
FAILING_CLOSE = """
import logging, resource
records = []
class Keep(logging.Handler):
    def emit(self, record):
        if "generator" in record.getMessage():
            records.append(record)
logging.getLogger("zklock").addHandler(Keep())
client = zklock.Client(sys.argv[1])

def generate():
    with client:
        yield

def close():
    generator = generate()
    next(generator)
    gc.collect()
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), before[1]))
    try:
        generator.close()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)

result(spawn(close))
[record] = records
print(record.name, record.levelname, sorted(record.zklock))
print(record.zklock["event"])
print(record.zklock["error"])
client.close()
"""


def test_failing_close_of_a_client_in_a_closed_generator_is_logged(
    framework: str, server: ZooKeeper, program: Run
) -> None:
    green = program(framework + FAILING_CLOSE, server.address)
    assert green.read_line() == "zklock.lock WARNING ['error', 'event']"
    assert green.read_line() == "the end of a block failed when a generator was closed"
    assert "starting a thread" in green.read_line()
    assert green.ends() == 0


DESCRIPTORS = """
import os, resource
client = zklock.Client(sys.argv[1])
lock = client.mutex(sys.argv[2])
limit = len(os.listdir("/proc/self/fd")) + 10
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
turns = []

def wait():
    with lock:
        turns.append(lock.fencing_token)

def wait_in(number):
    waiters.extend(spawn(wait) for _ in range(number))
    until(lambda: len(lock.waiting()) == len(waiters))

def descriptors():
    return len(os.listdir("/proc/self/fd"))

waiters = []
lock.acquire()
wait_in(1)
of_one = descriptors()
wait_in(99)
until(lambda: descriptors() <= of_one)
print("shared")
lock.release()
for waiter in waiters:
    result(waiter)
print(len(turns), turns == sorted(turns))
client.close()
"""


def test_waiting_greenlets_share_the_descriptors_of_their_hub(
    framework: str, server: ZooKeeper, path: str, program: Run
) -> None:
    green = program(framework + DESCRIPTORS, server.address, path)
    assert green.read_line() == "shared"
    assert green.read_line() == "100 True"
    assert green.ends() == 0


GIVE_UP = """
client = zklock.Client(sys.argv[1])
lock = client.mutex(sys.argv[2])
outcomes = []

def wait():
    try:
        lock.acquire()
    except BaseException as error:
        outcomes.append(type(error).__name__)
        raise

def wait_a_little():
    try:
        with Timeout(0.05):
            lock.acquire()
    except Timeout:
        outcomes.append("Timeout")

lock.acquire()
killed = spawn(wait)
until(lambda: len(lock.waiting()) == 1)
killed.kill()
until(lambda: is_over(killed))
result(spawn(wait_a_little))
print(*outcomes, len(lock.waiting()), flush=True)
input()
lock.release()
print(lock.is_held_in_process, flush=True)
"""


def test_a_greenlet_that_is_killed_while_it_waits_leaves_nothing(
    framework: str, server: ZooKeeper, path: str, inspector: Inspector, program: Run
) -> None:
    green = program(framework + GIVE_UP, server.address, path)
    assert green.read_line() == "GreenletExit Timeout 0"
    inspector.wait_for(path, 1)
    green.write_line()
    assert green.read_line() == "False"
    inspector.wait_for(path, 0)
    assert green.ends() == 0


# A greenlet is killed just when it gets the lock. The program repeats this many times.
KILLED_AT_THE_END = """
client = zklock.Client(sys.argv[1])
lock = client.mutex(sys.argv[2])

def take():
    with lock:
        sleep(0)

for round in range(200):
    taker = spawn(take)
    for _ in range(round % 5):
        sleep(0)
    sleep((round % 40) * 0.0001)
    taker.kill()
    until(lambda: is_over(taker))
assert lock.acquire(timeout=60)
lock.release()
until(lambda: not lock.participants())
print("fine")
"""


def test_a_greenlet_that_is_killed_at_any_moment_holds_nothing(
    framework: str, server: ZooKeeper, path: str, program: Run
) -> None:
    green = program(framework + KILLED_AT_THE_END, server.address, path)
    assert green.read_line() == "fine"
    assert green.ends() == 0


ENDED = """
client = zklock.Client(sys.argv[1])
lock = client.mutex(sys.argv[2])

def end_with_it():
    lock.acquire()
    return id(current())

def current():
    import greenlet
    return greenlet.getcurrent()

def take_over():
    assert not lock.is_held
    return id(current()), raised(lock.release), lock.acquire(timeout=0)

was, reused = result(spawn(end_with_it)), False
while not reused:
    gc.collect()
    for another in [spawn(take_over) for _ in range(100)]:
        number, *outcome = result(another)
        assert outcome == ["NotOwner", False]
        reused = reused or number == was
print(lock.is_held_in_process)
client.close()
again = zklock.Client(sys.argv[1]).mutex(sys.argv[2])
assert again.acquire(timeout=60)
print("free")
"""


def test_hold_of_a_dead_greenlet_belongs_to_no_other(
    with_gevent: str, server: ZooKeeper, path: str, program: Run
) -> None:
    green = program(with_gevent + ENDED, server.address, path)
    assert green.read_line() == "True"
    assert green.read_line() == "free"
    assert green.ends() == 0


PLAIN = """
import sys, greenlet, zklock
client = zklock.Client(sys.argv[1])
lock = client.mutex(sys.argv[2])
semaphore = client.semaphore(sys.argv[2] + "-semaphore", 1)

def refused(call):
    try:
        call()
    except zklock.Error as error:
        assert error.status == -18 and "spawn it with gevent or eventlet" in str(error), error
        return True

def first():
    assert refused(lock.acquire) and refused(lambda: lock.acquire(timeout=60)) and refused(lock.__enter__)
    assert refused(semaphore.acquire)
    assert lock.participants() == []
    assert lock.acquire(timeout=0) and lock.is_held
    main.switch()
    lock.release()
    return "released"

def second():
    try:
        lock.release()
    except zklock.NotOwner:
        return lock.is_held, lock.acquire(timeout=0)

main = greenlet.getcurrent()
one, two = greenlet.greenlet(first), greenlet.greenlet(second)
one.switch()
print(two.switch(), lock.acquire(timeout=0), one.switch(), lock.acquire(timeout=60))
"""


def test_wait_without_a_hub_raises_with_the_reason(server: ZooKeeper, path: str, program: Run) -> None:
    needs("greenlet")
    green = program(PLAIN, server.address, path)
    assert green.read_line() == "(False, False) False released True"
    assert green.ends() == 0


IN_HUB = """
client = zklock.Client(sys.argv[1])
lock = client.mutex(sys.argv[2])
outcomes, other = [], zklock.Client(sys.argv[1])
hold = client.mutex(sys.argv[2] + "/hold").hold()

def in_hub():
    outcomes.append(raised(hold.release))
    outcomes.append(hold.is_held)
    outcomes.append(hold.release_nowait())
    for call in (lock.acquire, lambda: lock.acquire(timeout=0), lock.release, lock.participants):
        outcomes.append(raised(call))
    # Signal handlers also run in the hub, and may make these calls.
    outcomes.append(other.close())
    outcomes.append(lock.is_held)

gevent.get_hub().loop.run_callback(in_hub)
until(lambda: len(outcomes) == 9)
print(*outcomes)
# Greenlets without the classes of the framework, and threads of the framework, can also use the lock.
import greenlet
plain = greenlet.greenlet(lambda: (lock.acquire(), lock.is_held, lock.release())[1])
print(plain.switch(), lock.state.name)
pool = gevent.get_hub().threadpool
with lock:
    waiting = [pool.spawn(lambda: (lock.acquire(), lock.release())) for _ in range(3)]
    until(lambda: len(lock.waiting()) == 3)
    assert raised(pool.apply, lock.release) == "NotOwner"
for one in waiting:
    one.get()
print(lock.state.name)
"""


def test_wait_in_the_hub_raises(with_gevent: str, server: ZooKeeper, path: str, program: Run) -> None:
    green = program(with_gevent + IN_HUB, server.address, path)
    assert green.read_line() == "Deadlock True None Deadlock Deadlock Deadlock Deadlock None False"
    assert green.read_line() == "True FREE"
    assert green.read_line() == "FREE"
    assert green.ends() == 0


CALLBACKS = """
import logging
logging.basicConfig(level=logging.DEBUG, stream=open("/dev/null", "w"))
events, asked = [], []
client = zklock.Client(sys.argv[1], on_event=events.append)
lock = client.mutex(sys.argv[2])
lock.set_revocable(asked.append)

def work():
    with lock:
        client.revoke(lock.node_path)
        until(lambda: asked)

result(spawn(work))
until(lambda: len(events) >= 3)
client.close()
print(asked[0].startswith(sys.argv[2]), [event.state.name for event in events])
"""


def test_callbacks_are_called(framework: str, server: ZooKeeper, path: str, program: Run) -> None:
    green = program(framework + CALLBACKS, server.address, path)
    assert green.read_line() == "True ['CONNECTED', 'HELD', 'FREE', 'CLOSED']"
    assert green.ends() == 0


WAKE = """
lost = gevent.get_hub().loop.async_()
states = []

def on_event(event):
    if isinstance(event, zklock.LockEvent):
        states.append(event.state.name)
        lost.send()

with zklock.testing.StandaloneServer() as server:
    client = zklock.Client(server.address, on_event=on_event)
    lock = client.mutex("/a")

    def watch():
        while "LOST" not in states:
            gevent.get_hub().wait(lost)
        return states[0], raised(lock.release)

    watcher = spawn(watch)
    sleep(0)
    lock.acquire()
    server.expire()
    print(*result(watcher), raised(lock.release))
    client.close()
"""


def test_a_callback_wakes_a_greenlet(with_gevent: str, program: Run) -> None:
    green = program(with_gevent + WAKE)
    assert green.read_line() == "HELD NotOwner LockLost"
    assert green.ends() == 0


AT_END = """
client = zklock.Client(sys.argv[1], on_event=lambda event: None)
lock = client.mutex(sys.argv[2])
keep = [client, lock]

def hold():
    try:
        with lock:
            print("holds", flush=True)
            keep.append("holds")
            sleep(1000)
    finally:
        try:
            lock.release()
        except zklock.Error:
            pass

greenlets = [spawn(hold), spawn(lock.acquire)]
until(lambda: "holds" in keep and len(lock.waiting()) == 1)
"""


def test_a_program_ends_while_greenlets_hold_and_wait(
    framework: str, server: ZooKeeper, path: str, inspector: Inspector, program: Run
) -> None:
    green = program(framework + AT_END, server.address, path)
    assert green.read_line() == "holds"
    assert green.ends() == 0
    assert inspector.nodes(path) == []


INTERRUPTED = """
client = zklock.Client(sys.argv[1])
lock = client.mutex(sys.argv[2])
spawn(sleep, 1000)
sleep(0)
print("waits", flush=True)
try:
    lock.acquire()
except KeyboardInterrupt:
    print("interrupted", len(lock.waiting()), flush=True)
print(lock.acquire(timeout=60))
"""


def test_ctrl_c_interrupts_the_main_greenlet(
    framework: str, server: ZooKeeper, client: zklock.Client, path: str, inspector: Inspector, program: Run
) -> None:
    with client.mutex(path):
        green = program(framework + INTERRUPTED, server.address, path)
        assert green.read_line() == "waits"
        inspector.wait_for(path, 2)
        green.process.send_signal(signal.SIGINT)
        assert green.read_line() == "interrupted 0"
        wait_until(lambda: len(inspector.nodes(path)) <= 2)
    assert green.read_line() == "True"
    assert green.ends() == 0


INTERRUPTED_ANYWHERE = """
import greenlet, os
client = zklock.Client(sys.argv[1])
lock = client.mutex(sys.argv[2])
spawn(sleep, 1000)
sleep(0)
waited = False
# After an interrupt in one of these functions, eventlet loses a timer or cannot start a new hub.
UNSAFE = {"prepare_timers", "fire_timers", "__call__", "_switch_if_waiting", "ensure_greenlet"}

def interrupt_at(step):
    # Python runs signal handlers between two instructions. A trace function runs there, too.
    def trace(frame, event, _):
        nonlocal step
        global waited
        if greenlet.getcurrent() is other or frame.f_code.co_name in UNSAFE:
            return None
        waited = waited or frame.f_code.co_name == "wait"
        frame.f_trace_opcodes = True
        if event == "opcode":
            step -= 1
            if step == 0:
                raise KeyboardInterrupt
        return trace
    sys.settrace(trace)

def is_interrupted(step):
    interrupt_at(step)
    try:
        lock.participants()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False

def descriptors():
    sleep(0)
    gc.collect()
    return len(os.listdir("/proc/self/fd"))

before, step = descriptors(), 1
while True:
    waited, other = False, spawn(lock.participants)
    sleep(0)
    if is_interrupted(step):
        step += 1
    elif waited:
        break
    assert result(other) == lock.participants() == []
print(step, descriptors() - before)
"""


def test_waits_work_after_an_interrupt_at_any_instruction(
    framework: str, server: ZooKeeper, path: str, program: Run
) -> None:
    green = program(framework + INTERRUPTED_ANYWHERE, server.address, path)
    steps, further_descriptors = map(int, green.read_line().split())
    assert steps > 100
    assert further_descriptors == 0
    assert green.ends() == 0


FORKS = """
import os, posix
client = zklock.Client(sys.argv[1])
lock = client.mutex(sys.argv[2])

def work():
    with lock:
        # If a child ends before gevent watches it, the waitpid() of gevent never returns.
        is_watched, watched = os.pipe()
        child = os.fork()
        if child == 0:
            fine = raised(lock.release) == raised(lock.acquire) == "Forked" and client.close() is None
            posix.read(is_watched, 1)
            os._exit(0 if fine else 1)
        posix.write(watched, b"x")
        return os.waitpid(child, 0)[1], lock.is_held

print(*result(spawn(work)))
"""


def test_a_fork_in_a_greenlet(framework: str, server: ZooKeeper, path: str, program: Run) -> None:
    green = program(framework + "warnings.simplefilter('ignore')\n" + FORKS, server.address, path)
    assert green.read_line() == "0 True"
    assert green.ends() == 0


FORKS_WHILE_ANOTHER_WAITS = """
import os, posix
client = zklock.Client(sys.argv[1])
lock = client.mutex(sys.argv[2])

def wait():
    with lock:
        return "acquired"

def fork():
    is_watched, watched = os.pipe()
    child = os.fork()
    if child == 0:
        if "gevent" in sys.modules:
            gevent.reinit()
        with zklock.Client(sys.argv[1]) as other:
            fine = other.mutex(sys.argv[2] + "-child").acquire()
        posix.read(is_watched, 1)
        os._exit(0 if fine else 1)
    posix.write(watched, b"x")
    return os.waitpid(child, 0)[1]

lock.acquire()
waiter = spawn(wait)
until(lambda: len(lock.waiting()) == 1)
print(result(spawn(fork)))
lock.release()
print(result(waiter))
client.close()
"""


def test_a_greenlet_waits_while_another_forks(framework: str, server: ZooKeeper, path: str, program: Run) -> None:
    green = program(framework + "warnings.simplefilter('ignore')\n" + FORKS_WHILE_ANOTHER_WAITS, server.address, path)
    assert green.read_line() == "0"
    assert green.read_line() == "acquired"
    assert green.ends() == 0


LONG_WAITS = """
import zklock._greenlets
client = zklock.Client(sys.argv[1])
lock = client.mutex(sys.argv[2])
for timeout in (30 * 86400, 1e10, 1e18, 1e300):
    hold = lock.hold()
    waiting = spawn(raised, hold.wait_lost, timeout)
    sleep(0.05)
    assert not is_over(waiting)
    hold.release()
    assert result(waiting) == "NotOwner", timeout
    hold = lock.hold()
    waiting = spawn(lambda: lock.acquire(timeout=timeout) and lock.release_nowait())
    sleep(0.05)
    hold.release()
    result(waiting)
# A shorter limit of one wait does not change the deadline.
zklock._greenlets._LONGEST_WAIT = 0.05
with lock.hold() as hold:
    started = time.monotonic()
    assert result(spawn(hold.wait_lost, 0.5)) is False
    assert time.monotonic() - started >= 0.5
client.close()
print("fine", flush=True)
"""


def test_greenlet_waits_with_a_very_long_timeout(framework: str, server: ZooKeeper, path: str, program: Run) -> None:
    long_waits = program(framework + LONG_WAITS, server.address, path)
    assert long_waits.read_line() == "fine"
    assert long_waits.ends() == 0
