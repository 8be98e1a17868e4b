#!/usr/bin/env python3
"""Run a C and a Python program that take turns on one lock, and check the result.

`make demo` builds both programs and runs this script. The script starts a standalone server, or uses the ensemble
that the environment variable ZKLOCK_SERVERS names.
"""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, NoReturn

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
ROUNDS = 5
TIMEOUT_S = 60


class Hold(NamedTuple):
    """A hold of a program. The times are in nanoseconds of CLOCK_MONOTONIC."""

    start: int
    end: int
    name: str
    token: int


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="demo-", dir=ROOT / "target") as directory, servers() as address:
        path = f"/zklock-demo/{os.getpid()}"
        programs = {
            "Python": [sys.executable, str(ROOT / "python/examples/mutex.py")],
            "C": [compile_example(Path(directory))],
        }
        holds = run(programs, address, path)
        print_timeline(holds)
        check_timeline(holds, len(programs) * ROUNDS)
        expect_empty(address, path)
    print(
        f"demo: {len(holds)} holds, 0 overlaps, tokens grew from {holds[0].token} to {holds[-1].token}, "
        "and the lock's directory is empty"
    )
    if "ZKLOCK_SERVERS" not in os.environ:
        print("demo: this was a standalone server; to use a real ensemble: ZKLOCK_SERVERS=host:2181 make demo")


@contextmanager
def servers() -> Iterator[str]:
    """Return the connect string in ZKLOCK_SERVERS, or that of a standalone server that runs during the context."""
    if "ZKLOCK_SERVERS" in os.environ:
        yield os.environ["ZKLOCK_SERVERS"]
        return
    with standalone(TARGET / "debug/zklock-standalone") as address:
        yield address


@contextmanager
def standalone(program: Path) -> Iterator[str]:
    """Run a standalone server during the context, and return its address."""
    server = start_server(program)
    try:
        assert server.stdout is not None
        # The server prints its address when it is ready. If it fails, it prints the reason.
        yield server.stdout.readline().strip() or fail("the standalone server did not start")
    finally:
        server.kill()
        server.communicate()


def start_server(program: Path) -> "subprocess.Popen[str]":
    try:
        return subprocess.Popen(
            [program, "--listen", "127.0.0.1:0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C stops this script, which stops the server
            preexec_fn=die_with_parent,
        )
    except FileNotFoundError:
        fail(f"{program} is missing; run make demo")


def die_with_parent() -> None:
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)


def compile_example(directory: Path) -> str:
    library = TARGET / "debug"
    program = str(directory / "mutex")
    source = str(ROOT / "bindings/c/examples/mutex.c")
    link = [f"-L{library}", "-lzklock", f"-Wl,-rpath,{library}"]
    if subprocess.call(["cc", "-Wall", "-Wextra", f"-I{ROOT / 'include'}", source, *link, "-o", program]) != 0:
        fail("the C example does not compile; cc's messages are above")
    return program


def run(programs: dict[str, list[str]], address: str, path: str, rounds: int = ROUNDS) -> list[Hold]:
    """Run the programs at the same time and return their holds in the order of time."""
    running = {
        name: subprocess.Popen([*command, address, path, name, str(rounds)], stdout=subprocess.PIPE, text=True)
        for name, command in programs.items()
    }
    holds: list[Hold] = []
    try:
        for name, process in running.items():
            output, _ = process.communicate(timeout=TIMEOUT_S)
            if process.returncode != 0:
                fail(f"the {name} program ended with status {process.returncode}")
            holds += parse(name, output)
    except subprocess.TimeoutExpired:
        fail(f"the programs did not finish within {TIMEOUT_S} seconds")
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    return sorted(holds)


def parse(name: str, output: str) -> list[Hold]:
    """Parse alternating lines `NAME acquired TOKEN <token> <ns>` and `NAME released TOKEN <token> <ns>`."""
    holds = []
    lines = iter(output.splitlines())
    try:
        for acquired, released in zip(lines, lines):
            token, start = event(acquired, name, "acquired")
            same_token, end = event(released, name, "released")
            if token != same_token:
                raise ValueError(released)
            holds.append(Hold(start, end, name, token))
    except ValueError as error:
        fail(f"the {name} program printed something unexpected: {error}")
    return holds


def event(line: str, name: str, what: str) -> "tuple[int, int]":
    words = line.split()
    if len(words) != 5 or words[:3] != [name, what, "TOKEN"]:
        raise ValueError(line)
    return int(words[3]), int(words[4])


def print_timeline(holds: list[Hold]) -> None:
    if not holds:
        return
    origin = holds[0].start
    print(f"{'from':>9} {'to':>9}  (ms)")
    for hold in holds:
        print(f"{ms(hold.start - origin)} {ms(hold.end - origin)}  {hold.name:<8} held with token {hold.token}")


def ms(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:9.1f}"


def check_timeline(holds: list[Hold], expected: int) -> None:
    if len(holds) != expected:
        fail(f"{len(holds)} holds instead of {expected}")
    for earlier, later in zip(holds, holds[1:]):
        if later.start < earlier.end:
            fail(f"{earlier.name} and {later.name} held at the same time (tokens {earlier.token} and {later.token})")
        if later.token <= earlier.token:
            fail(f"the token did not grow: {earlier.token}, then {later.token}")


def expect_empty(address: str, path: str) -> None:
    """Check the directory with another client library. It may be missing, because it is a container."""
    client = KazooClient(address)
    client.start(timeout=TIMEOUT_S)
    try:
        left = client.get_children(path)
    except NoNodeError:
        left = []
    finally:
        client.stop()
        client.close()
    if left:
        fail(f"nodes are left in the lock's directory {path}: {', '.join(left)}")


def fail(sentence: str) -> NoReturn:
    sys.exit(f"demo: {sentence}")


if __name__ == "__main__":
    # SIGTERM must stop the server, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("demo: stopped"))
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("demo: stopped")
