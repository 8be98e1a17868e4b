"""Runs the tests of `make test` several times under the conditions of other machines, two conditions at a time, and
prints which tests failed under which conditions. `target/shake` contains the output of each round with a failure.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from run_tests import LOGS, ROOT

KEPT = LOGS.parent / "shake"


@dataclass
class Run:
    """One run of the tests, which the conditions change."""

    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    # Commands that start the tests. Each of them runs the rest of its command line.
    wrappers: list[str] = field(default_factory=list)
    umask: int = 0o022


@contextmanager
def two_busy_processes(run: Run) -> Iterator[None]:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


@contextmanager
def short_process_ids(run: Run) -> Iterator[None]:
    """A namespace in which the numbers of the processes begin again. Its first process does not wait for orphans."""
    if os.geteuid() != 0:
        print("shake: only root can make a namespace of process ids", flush=True)
    else:
        run.wrappers += [
            "unshare",
            "--fork",
            "--pid",
            "--mount-proc",
            "--kill-child",
            "sh",
            "-c",
            '"$@"; exit $?',
            "sh",
        ]
    yield


@contextmanager
def ignored_interrupts(run: Run) -> Iterator[None]:
    run.wrappers += ["env", "--ignore-signal=INT"]
    yield


@contextmanager
def another_place(run: Run) -> Iterator[None]:
    """Another time zone and locale, and files that only their owner can read."""
    run.environment |= {"TZ": "Pacific/Chatham", "LC_ALL": "C", "LANG": "C"}
    run.umask = 0o077
    yield


@contextmanager
def long_temporary_directory(run: Run) -> Iterator[None]:
    """A temporary directory whose path has blanks, is too long for a socket, and lies below one of another user."""
    with tempfile.TemporaryDirectory(prefix="zklock shake ") as private:
        directory = os.path.join(private, "a directory whose name is long " * 5)
        os.mkdir(directory)
        # Some tests run programs of other users.
        os.chmod(directory, 0o1777)
        run.environment["TMPDIR"] = directory
        yield


@contextmanager
def another_order(run: Run) -> Iterator[None]:
    run.environment |= {
        "RUST_THREADS": "3",
        "PYTHON_PROCESSES": "6",
        "TEST_PROGRAMS": "4",
        "TEST_ZKLOCK_REVERSE_ORDER": "1",
    }
    yield


CONDITIONS = [
    two_busy_processes,
    short_process_ids,
    ignored_interrupts,
    another_place,
    long_temporary_directory,
    another_order,
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rounds", type=int, help="the number of runs")
    arguments = parser.parse_args()
    failures: collections.Counter[tuple[str, str]] = collections.Counter()
    shutil.rmtree(KEPT, ignore_errors=True)
    for number in range(arguments.rounds):
        chosen = [CONDITIONS[(2 * number + offset) % len(CONDITIONS)] for offset in (0, 1)]
        names = " and ".join(condition.__name__.replace("_", " ") for condition in chosen)
        print(f"shake: round {number + 1} of {arguments.rounds}: {names}", flush=True)
        run = Run()
        with ExitStack() as stack:
            for condition in chosen:
                stack.enter_context(condition(run))
            failed = run_tests(run)
        print(f"shake: {len(failed)} failed", flush=True)
        if failed:
            shutil.copytree(LOGS, KEPT / f"round-{number + 1}")
        for name in failed:
            failures[name, names] += 1
    for (name, names), count in sorted(failures.items()):
        print(f"FAILED: {name}: {count} times, under {names}")
    return 1 if failures else 0


def run_tests(run: Run) -> list[str]:
    """Run all tests once. Return the names of those that failed."""
    results = LOGS / "results.json"
    results.unlink(missing_ok=True)
    command = [*run.wrappers, sys.executable, str(ROOT / "scripts/run_tests.py")]
    tests = subprocess.Popen(command, cwd=ROOT, env=run.environment, preexec_fn=lambda: os.umask(run.umask))
    try:
        tests.wait()
    except KeyboardInterrupt:
        tests.send_signal(signal.SIGTERM)
        tests.wait()
        raise
    if not results.exists():
        return [f"the run itself, with status {tests.returncode}"]
    return [failure["name"] for failure in json.loads(results.read_text())["failures"]]


if __name__ == "__main__":
    sys.exit(main())
