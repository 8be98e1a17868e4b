"""The Python version of worker.c."""

import os
import random
import socket
import sys
import threading
import time

import zklock

FINAL_LIMIT_MS = 60_000
LIMITS = (0, 100, 500, 2000, 5000, -1)
# The checker reads the numbers of the C macros: ZKL_STATE_CONNECTING is 0, ZKL_LOCK_FREE is 10.
NUMBERS = {
    **{state: number for number, state in enumerate(zklock.ClientState)},
    **{state: 10 + number for number, state in enumerate(zklock.LockState)},
}

servers, store_address, locks, seed, session_timeout_ms, trace_name, threads, options_file = sys.argv[1:]
trace = os.open(trace_name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
is_final = threading.Event()


def note(at, thread, *words):
    # A single system call writes the line, so that only the last line of a trace can be incomplete.
    os.write(trace, (" ".join(map(str, (at, thread, *words))) + "\n").encode())


def on_event(event):
    now = time.monotonic_ns()
    if hasattr(event, "token"):
        note(now, 0, "lock", event.path, event.token, NUMBERS[event.previous], NUMBERS[event.state])
    else:
        note(now, 0, "client", NUMBERS[event.previous], NUMBERS[event.state])


def connect():
    """Return a client and whether it reports events."""
    settings = {"session_timeout": int(session_timeout_ms) / 1000, "connect_timeout": 60}
    if "on_event" in (zklock.Client.__text_signature__ or ""):
        return zklock.Client.from_file(servers, options_file, **settings, on_event=on_event), True
    return zklock.Client.from_file(servers, options_file, **settings), False


class LockChoice:
    """A way to acquire a lock or a lease."""

    def __init__(self, path, exclusion, acquire, new_handle=None):
        self.path, self.exclusion, self.acquire, self.new_handle = path, exclusion, acquire, new_handle
        self.writes_store = exclusion == "exclusive"


def acquirer(lock):
    """Return a function that acquires a lock and returns the lock object as the hold."""

    def acquire(limit):
        if not lock.acquire(timeout=limit):
            raise zklock.LockTimeout("not in time")
        return lock

    return acquire


def lock_choices(kind, path, client):
    if kind == "mutex":
        return [LockChoice(path, "exclusive", acquirer(client.mutex(path)), lambda: acquirer(client.mutex(path)))]
    if kind == "rw":
        both = client.rwlock(path)
        return [LockChoice(path, "shared", acquirer(both.read)), LockChoice(path, "exclusive", acquirer(both.write))]
    if kind.startswith("semaphore"):
        most = int(kind.removeprefix("semaphore"))
        semaphore = client.semaphore(path, most)
        return [LockChoice(path, f"leases:{most}", lambda limit: semaphore.acquire(1, timeout=limit))]
    several = client.multi([client.mutex(one) for one in path.split("+")])
    return [LockChoice(path, "exclusive", acquirer(several))]


class Worker(threading.Thread):
    def __init__(self, number, choices):
        super().__init__(daemon=True)
        self.number, self.choices = number, choices
        self.rng = random.Random(int(seed) * 1000 + number)
        host, port = store_address.split(":")
        self.store = socket.create_connection((host, int(port)))
        self.store.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def run(self):
        while not is_final.is_set():
            choice = self.rng.choice(self.choices)
            hold, token = self.acquire(choice, self.rng.choice(LIMITS))
            if hold is not None:
                self.use_hold(choice, hold, token)
                self.release_hold(hold, token)
            self.sleep_ms(20)
        for i in range(len(self.choices)):
            choice = self.choices[(i + self.number) % len(self.choices)]
            hold, token = self.acquire(choice, FINAL_LIMIT_MS)
            if hold is not None:
                self.check_hold(hold, token)
                self.write(choice, token)
                self.release_hold(hold, token)
        self.store.close()

    def acquire(self, choice, limit_ms):
        acquire = choice.new_handle() if choice.new_handle and self.rng.randrange(8) == 0 else choice.acquire
        self.note("call", choice.path, choice.exclusion, limit_ms)
        hold = None
        try:
            hold = acquire(None if limit_ms < 0 else limit_ms / 1000)
            returned = time.monotonic_ns()
            token = hold.fencing_token
        except zklock.Error as error:
            returned = returned if hold is not None else time.monotonic_ns()
            note(returned, self.number, "failed", choice.path, int(error.status))
            if hold is not None:
                # The hold was lost before its token could be read.
                self.release(hold.release)
            return None, 0
        note(returned, self.number, "got", choice.path, token)
        return hold, token

    def check_hold(self, hold, token):
        at = time.monotonic_ns()
        is_held = hold.is_held
        left_at = time.monotonic_ns()
        try:
            left_ms = int(hold.remaining * 1000)
        except zklock.Error:
            left_ms = 0
        state = hold.state
        done = time.monotonic_ns()
        note(at, self.number, "look", token, int(is_held), left_at, left_ms, NUMBERS[state], done)
        return is_held

    def use_hold(self, choice, hold, token):
        longest = 400 if self.rng.randrange(12) == 0 else 15
        for _ in range(1 + self.rng.randrange(6)):
            # Some programs continue although they must not. The store rejects their writes.
            is_careless = self.rng.randrange(2) == 0
            is_held = self.check_hold(hold, token)
            if self.rng.randrange(4) == 0:
                self.sleep_ms(30)
            if is_held or is_careless:
                self.write(choice, token)
            self.sleep_ms(longest)
        self.check_hold(hold, token)

    def write(self, choice, token):
        for path in choice.path.split("+") if choice.writes_store else ():
            self.store.sendall(f"{path} {token}\n".encode())
            if not self.store.recv(1):
                os._exit(0)

    def release_hold(self, hold, token):
        waits = self.rng.randrange(4) != 0
        self.note("leave", token, int(waits))
        status = self.release(hold.release if waits else hold.release_nowait)
        self.note("left", token, status)

    @staticmethod
    def release(release):
        try:
            release()
        except zklock.Error as error:
            return int(error.status)
        return 0

    def note(self, *words):
        note(time.monotonic_ns(), self.number, *words)

    def sleep_ms(self, longest):
        time.sleep(self.rng.randrange(longest) / 1000)


def library_threads():
    names = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/comm") as file:
                names.append(file.read())
        except OSError:
            pass
    return sum(name.startswith("zkl") for name in names)


def expect(word, client):
    """Wait for a command. In the meantime, replace the server list of the client when a command requires it."""
    while (line := sys.stdin.readline().strip()).startswith("servers "):
        client.set_servers(line.removeprefix("servers "))
    if line != word:
        os._exit(0)


def main():
    at = time.monotonic_ns()
    client, hears_events = connect()
    note(at, 0, "begin", session_timeout_ms, int(hears_events))
    choices = [choice for lock in locks.split(",") for choice in lock_choices(*lock.split(":"), client)]
    print("ready", flush=True)
    workers = [Worker(number + 1, choices) for number in range(int(threads))]
    for worker in workers:
        worker.start()
    expect("final", client)
    is_final.set()
    for worker in workers:
        worker.join()
    print("idle", flush=True)
    expect("end", client)
    client.close()
    note(time.monotonic_ns(), 0, "end", library_threads())


main()
