"""The same as worker.c, in Python."""

import os
import random
import socket
import sys
import threading
import time

import zklock

PATIENT_MS = 60_000
LIMITS = (0, 100, 500, 2000, 5000, -1)

servers, store_address, locks, seed, session_timeout_ms, trace_name, threads = sys.argv[1:]
trace = os.open(trace_name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
is_final = threading.Event()


def note(at, thread, *words):
    # One write: a line is whole, or the last.
    os.write(trace, (" ".join(map(str, (at, thread, *words))) + "\n").encode())


def told(event):
    now = time.monotonic_ns()
    if hasattr(event, "token"):
        note(now, 0, "lock", event.path, event.token, int(event.previous), int(event.state))
    else:
        note(now, 0, "client", int(event.previous), int(event.state))


def connect():
    """A client, and whether it tells of events."""
    settings = {"session_timeout": int(session_timeout_ms) / 1000, "connect_timeout": 60}
    if "on_event" in (zklock.Client.__text_signature__ or ""):
        return zklock.Client(servers, **settings, on_event=told), True
    return zklock.Client(servers, **settings), False


class Way:
    """One way to take something."""

    def __init__(self, path, stance, acquire, fresh=None):
        self.path, self.stance, self.acquire, self.fresh = path, stance, acquire, fresh
        self.guards = stance == "exclusive"


def taking(lock):
    """A lock is its own hold; of a semaphore, what acquire returns."""

    def acquire(limit):
        if not lock.acquire(limit):
            raise zklock.LockTimeout("not in time")
        return lock

    return acquire


def ways_of(kind, path, client):
    if kind == "mutex":
        return [Way(path, "exclusive", taking(client.mutex(path)), lambda: taking(client.mutex(path)))]
    if kind == "rw":
        both = client.rwlock(path)
        return [Way(path, "shared", taking(both.read)), Way(path, "exclusive", taking(both.write))]
    if kind.startswith("semaphore"):
        most = int(kind.removeprefix("semaphore"))
        semaphore = client.semaphore(path, most)
        return [Way(path, f"leases:{most}", lambda limit: semaphore.acquire(1, timeout=limit))]
    several = client.multi([client.mutex(one) for one in path.split("+")])
    return [Way(path, "exclusive", taking(several))]


class Worker(threading.Thread):
    def __init__(self, number, ways):
        super().__init__(daemon=True)
        self.number, self.ways = number, ways
        self.dice = random.Random(int(seed) * 1000 + number)
        host, port = store_address.split(":")
        self.store = socket.create_connection((host, int(port)))
        self.store.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def run(self):
        while not is_final.is_set():
            way = self.dice.choice(self.ways)
            hold, token = self.acquire(way, self.dice.choice(LIMITS))
            if hold is not None:
                self.hold_for_a_while(way, hold, token)
                self.leave(hold, token)
            self.sleep_ms(20)
        for i in range(len(self.ways)):
            way = self.ways[(i + self.number) % len(self.ways)]
            hold, token = self.acquire(way, PATIENT_MS)
            if hold is not None:
                self.look(hold, token)
                self.write(way, token)
                self.leave(hold, token)
        self.store.close()

    def acquire(self, way, limit_ms):
        acquire = way.fresh() if way.fresh and self.dice.randrange(8) == 0 else way.acquire
        self.note("call", way.path, way.stance, limit_ms)
        hold = None
        try:
            hold = acquire(None if limit_ms < 0 else limit_ms / 1000)
            returned = time.monotonic_ns()
            token = hold.fencing_token
        except zklock.Error as error:
            returned = returned if hold is not None else time.monotonic_ns()
            note(returned, self.number, "failed", way.path, error.status)
            if hold is not None:
                # Lost before it could be named.
                self.release(hold.release)
            return None, 0
        note(returned, self.number, "got", way.path, token)
        return hold, token

    def look(self, hold, token):
        at = time.monotonic_ns()
        is_held = hold.is_held
        left_at = time.monotonic_ns()
        try:
            left_ms = int(hold.remaining * 1000)
        except zklock.Error:
            left_ms = 0
        state = hold.state
        done = time.monotonic_ns()
        note(at, self.number, "look", token, int(is_held), left_at, left_ms, int(state), done)
        return is_held

    def hold_for_a_while(self, way, hold, token):
        longest = 400 if self.dice.randrange(12) == 0 else 15
        for _ in range(1 + self.dice.randrange(6)):
            # Some go on when they should not; the store is there for them.
            is_careless = self.dice.randrange(2) == 0
            is_held = self.look(hold, token)
            if self.dice.randrange(4) == 0:
                self.sleep_ms(30)
            if is_held or is_careless:
                self.write(way, token)
            self.sleep_ms(longest)
        self.look(hold, token)

    def write(self, way, token):
        for path in way.path.split("+") if way.guards else ():
            self.store.sendall(f"{path} {token}\n".encode())
            if not self.store.recv(1):
                os._exit(0)

    def leave(self, hold, token):
        waits = self.dice.randrange(4) != 0
        self.note("leave", token, int(waits))
        status = self.release(hold.release if waits else hold.release_nowait)
        self.note("left", token, status)

    @staticmethod
    def release(release):
        try:
            release()
        except zklock.Error as error:
            return error.status
        return 0

    def note(self, *words):
        note(time.monotonic_ns(), self.number, *words)

    def sleep_ms(self, longest):
        time.sleep(self.dice.randrange(longest) / 1000)


def library_threads():
    names = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/comm") as file:
                names.append(file.read())
        except OSError:
            pass
    return sum(name.startswith("zkl") for name in names)


def expect(word):
    if sys.stdin.readline().strip() != word:
        os._exit(0)


def main():
    at = time.monotonic_ns()
    client, hears_events = connect()
    note(at, 0, "begin", session_timeout_ms, int(hears_events))
    ways = [way for lock in locks.split(",") for way in ways_of(*lock.split(":"), client)]
    print("ready", flush=True)
    workers = [Worker(number + 1, ways) for number in range(int(threads))]
    for worker in workers:
        worker.start()
    expect("final")
    is_final.set()
    for worker in workers:
        worker.join()
    print("idle", flush=True)
    expect("end")
    client.close()
    note(time.monotonic_ns(), 0, "end", library_threads())


main()
