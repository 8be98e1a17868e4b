"""A process that uses kazoo's locks and executes the commands of a test. Tests use it to share locks with kazoo.

    python peer.py ADDRESS SESSION_TIMEOUT_MS

If the environment variable CERTIFICATES names a directory, the clients use TLS with its files ca.pem, client.pem and
client.key. If the environment variable SASL is USER:PASSWORD, the clients use SASL with DIGEST-MD5.

It follows the protocol of tests/interop/curator/Peer.java. Each line of the input is a number and a command. Each line
of the output is the number of a command and its answer, in the order in which the commands finish. A line that begins
with an exclamation mark reports an event. The process exits when its input ends.

    1 lock m /path            1 ok
    2 acquire t1 m            2 true
    3 lock n /path            3 ok
    4 acquire t2 n 100        4 error kazoo.exceptions.LockTimeout: Failed to acquire lock on /path after 0.1 seconds

These commands create a named object. The object uses the client `main` unless the command contains client=C. It exists
when the command is answered:

    client C [address=A] [timeout=MS] [digest=USER:PASSWORD]      the first one is main; ! state C STATE
           [acl=creator]                                          only this identity has permissions on new nodes
    lock | read-lock | write-lock NAME /path [data=TEXT] [patterns=REGEX,REGEX...]
    semaphore NAME /path max=N [data=TEXT]

Each THREAD executes its commands one after the other:

    acquire THREAD NAME [MS] [ephemeral=false]                    true, false; 0 does not block
    release THREAD NAME                                           true, false
    increment THREAD NAME /path/of/file ROUNDS                    in each round, under the lock: increments the numbers
                                                                  in two files, first FILE.a and then FILE.b
    compare THREAD NAME /path/of/file ROUNDS                      in each round, under the lock: checks that both are
                                                                  equal

One more thread executes all other commands:

    cancel NAME                                                   a waiting acquire fails with kazoo's CancelledError
    held NAME                                                     whether the object believes that it holds the lock
    node NAME                                                     the name of its lock node, or none
    contenders LOCK                                               their data, in queue order; - for no data
    holders SEMAPHORE                                             their data
    session C                                                     id and password in hexadecimal
    close C
    version                                                       the version of kazoo
    exit                                                          ends the process without closing the session
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
from kazoo.security import CREATOR_ALL_ACL

MAIN = "main"
THREADED = ("acquire", "release", "increment", "compare")
print_lock = threading.Lock()


class Command:
    """A line of the input: a number, a verb, words, options."""

    def __init__(self, line: str) -> None:
        self.number, self.verb, *rest = line.split()
        options = [word for word in rest if "=" in word and not word.startswith("/")]
        self.words = [word for word in rest if word not in options]
        self.options = dict(option.split("=", 1) for option in options)


class Worker(threading.Thread):
    """A thread that commands refer to by name."""

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
                say(command.number, format_answer(self._answer(command)))
            except Exception as error:
                name = f"{type(error).__module__}.{type(error).__qualname__}"
                say(command.number, " ".join(f"error {name}: {error}".split()))


class Peer:
    def __init__(self, address: str, session_timeout: str) -> None:
        self._defaults = {"address": address, "timeout": session_timeout}
        self._objects: dict[str, Any] = {}
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
        if name not in self._objects:
            raise ValueError(f"nothing is called {name}")
        return ANSWERS[command.verb](self._objects[name], command)

    def _define_client(self, command: Command) -> None:
        (name,) = command.words
        options = {**self._defaults, **command.options}
        client = KazooClient(
            options["address"],
            timeout=int(options["timeout"]) / 1000,
            auth_data=[("digest", options["digest"])] if "digest" in options else None,
            default_acl=CREATOR_ALL_ACL if options.get("acl") == "creator" else None,
            **tls(),
            **sasl(),
        )
        client.add_listener(lambda state: say("!", f"state {name} {state}"))
        client.start()
        self._objects[name] = client

    def _define_recipe(self, command: Command) -> None:
        name, path = command.words
        options = command.options
        client = self._objects[options.get("client", MAIN)]
        if command.verb == "semaphore":
            self._objects[name] = Semaphore(client, path, options.get("data"), int(options["max"]))
        else:
            recipe = {"lock": client.Lock, "read-lock": client.ReadLock, "write-lock": client.WriteLock}[command.verb]
            patterns = options["patterns"].split(",") if "patterns" in options else []
            self._objects[name] = recipe(path, options.get("data"), extra_lock_patterns=patterns)


def tls() -> dict[str, Any]:
    if "CERTIFICATES" not in os.environ:
        return {}
    directory = Path(os.environ["CERTIFICATES"])
    files = {"ca": "ca.pem", "certfile": "client.pem", "keyfile": "client.key"}
    return {"use_ssl": True, **{option: str(directory / file) for option, file in files.items()}}


def sasl() -> dict[str, Any]:
    if "SASL" not in os.environ:
        return {}
    user, _, password = os.environ["SASL"].partition(":")
    return {"sasl_options": {"mechanism": "DIGEST-MD5", "username": user, "password": password}}


def acquire(recipe: Any, command: Command) -> bool:
    arguments: dict[str, Any] = {"ephemeral": False} if command.options.get("ephemeral") == "false" else {}
    if command.words[1:] == ["0"]:
        arguments["blocking"] = False
    elif command.words[1:]:
        arguments["timeout"] = int(command.words[1]) / 1000
    return bool(recipe.acquire(**arguments))


def work(lock: Any, command: Command, increments: bool) -> None:
    """Make a change that needs the lock. Without mutual exclusion, the two numbers differ, or a change is lost."""
    first, second = (Path(f"{command.words[1]}.{end}") for end in "ab")
    for _ in range(int(command.words[2])):
        with lock:
            number = int(first.read_text())
            if number != int(second.read_text()):
                raise RuntimeError("another participant works at the same time")
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


def format_answer(answer: Any) -> str:
    if answer is None:
        return "ok"
    return str(answer).lower() if isinstance(answer, bool) else str(answer)


def say(number: str, what: str) -> None:
    with print_lock:
        print(number, what, flush=True)


if __name__ == "__main__":
    Peer(sys.argv[1], sys.argv[2]).run()
    # Exit immediately, without waiting for the threads and without closing the session.
    os._exit(0)
