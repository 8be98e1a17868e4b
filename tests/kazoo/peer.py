"""A process that uses kazoo's locks as it is told: what zklock's tests share locks with.

    python peer.py ADDRESS SESSION_TIMEOUT_MS

It talks as tests/curator/Peer.java does. Each line of its input is a number and a command. Each line of its output is
such a number and the answer, in the order in which the commands are done, or an exclamation mark and what nobody asked
for. The end of its input is its own end.

    1 lock m /path            1 ok
    2 acquire t1 m            2 true
    3 lock n /path            3 ok
    4 acquire t2 n 100        4 error kazoo.exceptions.LockTimeout: Failed to acquire lock on /path after 0.1 seconds

Things are defined under a name, on the client `main` if there is no client=C, and are there once that is answered:

    client C [address=A] [timeout=MS]                             the first one is main; ! state C STATE
    lock | read-lock | write-lock NAME /path [data=TEXT] [patterns=REGEX,REGEX...]
    semaphore NAME /path max=N [data=TEXT]

Each THREAD is a thread, which does one command after the other:

    acquire THREAD NAME [MS] [ephemeral=false]                    true, false; 0 does not block
    release THREAD NAME                                           true, false
    increment THREAD NAME /path/of/file ROUNDS                    each time under the lock: the numbers in two files,
                                                                  FILE.a and FILE.b, grow by one, one after the other
    compare THREAD NAME /path/of/file ROUNDS                      each time under the lock: both are the same

The rest is done by one more thread:

    cancel NAME                                                   a waiting acquire ends with CancelledError (kazoo's)
    held NAME                                                     what the object thinks
    node NAME                                                     the name of the lock's node, or none
    contenders LOCK                                               their data, in the order of the queue; - without any
    holders SEMAPHORE                                             their data
    session C                                                     id and password in hexadecimal
    close C
    version                                                       kazoo's
    exit                                                          the process is gone, its session is not
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kazoo.version
from kazoo.client import KazooClient
from kazoo.recipe.lock import Semaphore

MAIN = "main"
THREADED = ("acquire", "release", "increment", "compare")
printing = threading.Lock()


class Command:
    """A line of the input: a number, a verb, words, options."""

    def __init__(self, line: str) -> None:
        self.number, self.verb, *rest = line.split()
        options = [word for word in rest if "=" in word and not word.startswith("/")]
        self.words = [word for word in rest if word not in options]
        self.options = dict(option.split("=", 1) for option in options)


class Worker(threading.Thread):
    """One thread of those that commands name."""

    def __init__(self, answer: Callable[[Command], Any]) -> None:
        super().__init__(daemon=True)
        self._answer = answer
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self.start()

    def add(self, command: Command) -> None:
        self._commands.put(command)

    def run(self) -> None:
        while True:
            command = self._commands.get()
            try:
                say(command.number, words(self._answer(command)))
            except Exception as error:
                name = f"{type(error).__module__}.{type(error).__qualname__}"
                say(command.number, " ".join(f"error {name}: {error}".split()))


class Peer:
    def __init__(self, address: str, session_timeout: str) -> None:
        self._defaults = {"address": address, "timeout": session_timeout}
        self._things: dict[str, Any] = {}
        self._workers: dict[str, Worker] = {}
        self._define_client(Command("0 client main"))

    def run(self) -> None:
        for line in sys.stdin:
            command = Command(line)
            if command.verb == "exit":
                say(command.number, "ok")
                break
            self._worker(command).add(command)

    def _worker(self, command: Command) -> Worker:
        name = command.words.pop(0) if command.verb in THREADED else MAIN
        if name not in self._workers:
            self._workers[name] = Worker(self._answer)
        return self._workers[name]

    def _answer(self, command: Command) -> Any:
        if command.verb == "client":
            return self._define_client(command)
        if command.verb in ("lock", "read-lock", "write-lock", "semaphore"):
            return self._define_recipe(command)
        if command.verb == "version":
            return kazoo.version.__version__
        if command.verb not in ANSWERS:
            raise ValueError(f"no such command: {command.verb}")
        name = command.words[0]
        if name not in self._things:
            raise ValueError(f"nothing is called {name}")
        return ANSWERS[command.verb](self._things[name], command)

    def _define_client(self, command: Command) -> None:
        (name,) = command.words
        options = {**self._defaults, **command.options}
        client = KazooClient(options["address"], timeout=int(options["timeout"]) / 1000)
        client.add_listener(lambda state: say("!", f"state {name} {state}"))
        client.start()
        self._things[name] = client

    def _define_recipe(self, command: Command) -> None:
        name, path = command.words
        options = command.options
        client = self._things[options.get("client", MAIN)]
        if command.verb == "semaphore":
            self._things[name] = Semaphore(client, path, options.get("data"), int(options["max"]))
        else:
            recipe = {"lock": client.Lock, "read-lock": client.ReadLock, "write-lock": client.WriteLock}[command.verb]
            patterns = options["patterns"].split(",") if "patterns" in options else []
            self._things[name] = recipe(path, options.get("data"), extra_lock_patterns=patterns)


def acquire(recipe: Any, command: Command) -> bool:
    arguments: dict[str, Any] = {"ephemeral": False} if command.options.get("ephemeral") == "false" else {}
    if command.words[1:] == ["0"]:
        arguments["blocking"] = False
    elif command.words[1:]:
        arguments["timeout"] = int(command.words[1]) / 1000
    return bool(recipe.acquire(**arguments))


def work(lock: Any, command: Command, increments: bool) -> None:
    """What the lock is there for. Whoever comes in between sees two numbers, or no number at all, or is overwritten."""
    first, second = (Path(f"{command.words[1]}.{end}") for end in "ab")
    for _ in range(int(command.words[2])):
        with lock:
            number = int(first.read_text())
            if number != int(second.read_text()):
                raise RuntimeError("somebody else is at work")
            if increments:
                first.write_text(str(number + 1))
                second.write_text(str(number + 1))


def session(client: KazooClient) -> str:
    number, password = client.client_id
    return f"{number & (1 << 64) - 1:x} {password.hex()}"


def close(client: KazooClient) -> None:
    client.stop()
    client.close()


ANSWERS: dict[str, Callable[[Any, Command], Any]] = {
    "acquire": acquire,
    "release": lambda recipe, _: bool(recipe.release()),
    "increment": lambda lock, command: work(lock, command, increments=True),
    "compare": lambda lock, command: work(lock, command, increments=False),
    "cancel": lambda recipe, _: recipe.cancel(),
    "held": lambda recipe, _: recipe.is_acquired,
    "node": lambda lock, _: lock.node or "none",
    "contenders": lambda lock, _: " ".join(data or "-" for data in lock.contenders()),
    "holders": lambda semaphore, _: " ".join(data or "-" for data in semaphore.lease_holders()),
    "session": lambda client, _: session(client),
    "close": lambda client, _: close(client),
}


def words(answer: Any) -> str:
    if answer is None:
        return "ok"
    return str(answer).lower() if isinstance(answer, bool) else str(answer)


def say(number: str, what: str) -> None:
    with printing:
        print(number, what, flush=True)


if __name__ == "__main__":
    Peer(sys.argv[1], sys.argv[2]).run()
    # Whatever its threads do, and without a word to the server.
    os._exit(0)
