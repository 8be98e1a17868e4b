"""Runs the tests of `make test`: the test programs that cargo has built, the simulation, and the Python tests. Three
programs run at a time, because most tests wait. A failure never stops the other tests. The end is a summary with each
failed test, its reason, and the command that runs it alone.

With --retry, a failed test runs once more when all other tests have ended. If the test passes then, the run succeeds
and reports the test as FLAKY. A command that succeeds without running a test proves nothing, so the test has failed.

The script must work without installed packages. `target/test` contains the output of each program, and `results.json`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
LOGS = TARGET / "test"
SEEDS = 1000

# The slowest programs start first.
SLOWEST = ["integration", "command", "bindings-c-c", "interop", "cpp", "differential", "moving_names", "simulation"]


@dataclass
class Failure:
    """A failed test, or a program that failed as a whole."""

    name: str
    reason: str
    # Runs this test alone.
    command: list[str]
    # The program of the test, which can read the output of the command.
    program: Program
    is_flaky: bool = False

    def __str__(self) -> str:
        return f"{self.name}\n    {self.reason}\n    {shlex.join(self.command)}"


@dataclass
class Outcome:
    passed: int = 0
    failures: list[Failure] = field(default_factory=list)
    seconds: float = 0.0


class Program:
    """A program with tests. `command` runs all its tests, in `directory`, within `limit` seconds."""

    def __init__(self, name: str, command: list[str], directory: Path = ROOT, limit: float = 900.0) -> None:
        self.name = name
        self.command = command
        self.directory = directory
        self.limit = limit
        self.environment: dict[str, str] = {}

    def run(self) -> Outcome:
        started = time.monotonic()
        output, status = run(self.command, self.directory, self.limit, LOGS / f"{self.name}.log", self.environment)
        outcome = self.outcome(output, status)
        outcome.seconds = time.monotonic() - started
        return outcome

    def outcome(self, output: str, status: int | None) -> Outcome:
        """Read the output. `status` is the exit status, or None if the program reached its time limit."""
        if status == 0:
            return Outcome(passed=1)
        return Outcome(failures=[self.failure(self.name, end_of(output, status, self.limit), self.command)])

    def failure(self, name: str, reason: str, command: list[str]) -> Failure:
        return Failure(name, reason, command, self)


class RustProgram(Program):
    """A program with the command line and the output of Rust's libtest. `cargo` are the arguments that make cargo run
    it."""

    def __init__(self, name: str, command: list[str], directory: Path, cargo: list[str]) -> None:
        super().__init__(name, command, directory)
        self.cargo = cargo

    def outcome(self, output: str, status: int | None) -> Outcome:
        # A program of this project may also print within the line of a test. The name ends before the mode of the test.
        lines = r"^test (\S+(?: - .*?)??)(?: - (?:should panic|compile fail|compile))? +\.\.\. .*?(ok|FAILED|ignored)\b"
        finished = dict(re.findall(lines, output, re.MULTILINE))
        failed = [name for name, result in finished.items() if result == "FAILED"]
        outcome = Outcome(passed=sum(result == "ok" for result in finished.values()))
        outcome.failures = [self.test_failure(name, reason_of(output, name)) for name in failed]
        if status != 0 and (status is None or not failed):
            running = re.findall(r"^test (\S+(?: - .*?)?) has been running for over", output, re.MULTILINE)
            hung = [name for name in dict.fromkeys(running) if name not in finished]
            reason = end_of(output, status, self.limit)
            outcome.failures += [self.test_failure(name, reason) for name in hung]
            if not hung:
                outcome.failures.append(self.failure(self.name, reason, ["cargo", "test", *self.cargo]))
        return outcome

    def test_failure(self, name: str, reason: str) -> Failure:
        # rustdoc splits its arguments at spaces, so a test in the documentation runs with the other tests of its file.
        file, _, item = name.partition(" - ")
        arguments = [file] if item else ["--exact", name]
        return self.failure(f"{self.name}: {name}", reason, ["cargo", "test", *self.cargo, "--", *arguments])


class PythonTests(Program):
    def __init__(self, pytest: list[str], processes: str) -> None:
        arguments = ["tests/python", "-q", "-n", processes, "--dist", "worksteal", "-rfE", "--color=no"]
        super().__init__("python", [*pytest, *arguments])
        self.pytest = pytest

    def outcome(self, output: str, status: int | None) -> Outcome:
        counts = re.findall(r"(\d+) passed", output)
        outcome = Outcome(passed=int(counts[-1]) if counts else 0)
        for test in re.findall(r"^(?:FAILED|ERROR) ([^\s:]+(?:::\w+)*(?:\[.*\])?)(?: - .*)?$", output, re.MULTILINE):
            name = test.partition("::")[2].replace("::", ".")
            error = re.search(r"^E +(.*)$", section_of(output, rf"_+ .*{re.escape(name)} _+"), re.MULTILINE)
            reason = error[1] if name and error else "see the log"
            outcome.failures.append(self.failure(test, reason, [*self.pytest, "-n", "0", test]))
        if status != 0 and not outcome.failures:
            outcome.failures.append(self.failure(self.name, end_of(output, status, self.limit), self.command))
        return outcome


def reason_of(output: str, test: str) -> str:
    """Return the message of the panic that ended a test, or the last line of a C or C++ program."""
    section = section_of(output, rf"---- {re.escape(test)}(?: stdout)? ----")
    section = re.split(r"^(?:---- .*|failures:)$", section, maxsplit=1, flags=re.MULTILINE)[0]
    panic = re.search(r"panicked at (\S+):\n(.*)", section)
    if panic is not None:
        return f"{panic[1]}: {panic[2]}"
    lines = [line for line in section.splitlines() if line.strip()]
    return lines[-1] if lines else "see the log"


def section_of(output: str, header: str) -> str:
    """Return the text after the line that matches ``header``."""
    return "".join(re.split(f"^{header}$", output, maxsplit=1, flags=re.MULTILINE)[1:])


def end_of(output: str, status: int | None, limit: float) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    last = f"; the last line of its output: {lines[-1][:200]}" if lines else ""
    if status is None:
        return f"did not end within {limit:.0f} s{last}"
    return (f"ended by signal {-status}" if status < 0 else f"ended with status {status}") + last


class Running:
    """The process groups that run at present."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.groups: set[int] = set()

    def kill(self) -> None:
        with self.lock:
            for group in self.groups:
                kill(group)


RUNNING = Running()


def kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def run(
    command: Sequence[str], directory: Path, limit: float, log: Path, environment: dict[str, str]
) -> tuple[str, int | None]:
    """Run a command in its own process group. Return its output, and its exit status or None after the time limit."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        with RUNNING.lock:
            RUNNING.groups.add(process.pid)
        try:
            status: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            # A test may have left processes behind.
            kill(process.pid)
            process.wait()
            with RUNNING.lock:
                RUNNING.groups.discard(process.pid)
    return log.read_text(errors="replace"), status


def rust_programs(threads: str) -> list[Program]:
    """Return the test programs that `cargo test` has built, and the tests in the documentation."""
    environment = {"RUST_TEST_THREADS": threads, "RUST_BACKTRACE": os.environ.get("RUST_BACKTRACE", "1")}
    built = subprocess.run(
        ["cargo", "test", "--locked", "--no-run", "--quiet", "--message-format=json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    messages = [json.loads(line) for line in built.stdout.splitlines()]
    tests = [one for one in messages if one.get("executable") and one["profile"]["test"]]
    count = Counter(one["target"]["name"] for one in tests)
    programs: list[Program] = []
    for message in tests:
        directory = Path(message["manifest_path"]).parent
        target, kind = message["target"]["name"], message["target"]["kind"][0]
        which = ["--" + kind, target] if kind in ("test", "bin", "example") else ["--lib"]
        name = target if kind == "test" else f"{target}-{kind}"
        if count[target] > 1 and kind == "test":
            name = f"{directory.relative_to(ROOT).as_posix().replace('/', '-')}-{name}"
        manifest = str((directory / "Cargo.toml").relative_to(ROOT))
        program = RustProgram(name, [message["executable"]], directory, ["--manifest-path", manifest, *which])
        program.environment = {**environment, "CARGO_MANIFEST_DIR": str(directory)}
        programs.append(program)
    documentation = RustProgram("doc", ["cargo", "test", "--locked", "--doc", "--no-fail-fast"], ROOT, ["--doc"])
    return [*programs, documentation]


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs the tests of make test.")
    parser.add_argument("--retry", action="store_true", help="run a failed test once more, alone")
    arguments = parser.parse_args()
    # A caller may ignore these signals, for example nohup. Tests send them, so they need the default actions.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    LOGS.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    outcomes = run_all(programs_of(os.environ), int(os.environ.get("TEST_PROGRAMS", "3")))
    failures = [failure for outcome in outcomes for failure in outcome.failures]
    passed = sum(outcome.passed for outcome in outcomes)
    if arguments.retry:
        passed += retry(failures)
    write_results(passed, failures)
    return report(passed, failures, time.monotonic() - started)


def programs_of(environment: os._Environ[str]) -> list[Program]:
    pytest = [str(TARGET / "venv/bin/python"), "-m", "pytest"]
    simulation = [str(TARGET / "debug/zklock-sim"), "--seeds", str(SEEDS)]
    programs = [*rust_programs(environment.get("RUST_THREADS", "8")), Program("simulation", simulation)]
    rank = {name: number for number, name in enumerate(SLOWEST)}
    programs.sort(key=lambda program: rank.get(program.name, len(rank)))
    python = PythonTests(pytest, environment.get("PYTHON_PROCESSES", "5"))
    return [python, *programs]


def run_all(programs: Iterable[Program], side_by_side: int) -> list[Outcome]:
    def run_one(program: Program) -> Outcome:
        outcome = program.run()
        result = f"{len(outcome.failures)} failed" if outcome.failures else "passed"
        print(f"test: {program.name}: {outcome.passed} passed, {result} ({outcome.seconds:.0f} s)", flush=True)
        return outcome

    with ThreadPoolExecutor(side_by_side) as pool:
        try:
            return list(pool.map(run_one, programs))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            RUNNING.kill()
            raise


def retry(failures: list[Failure]) -> int:
    """Run each failed test alone. Return the number of tests that pass now."""
    for number, failure in enumerate(failures):
        print(f"test: once more, alone: {failure.name}", flush=True)
        output, status = run(failure.command, ROOT, 300.0, LOGS / f"retry-{number}.log", {})
        failure.is_flaky = status == 0 and failure.program.outcome(output, status).passed > 0
    return sum(failure.is_flaky for failure in failures)


def write_results(passed: int, failures: list[Failure]) -> None:
    found = [{"name": one.name, "reason": one.reason, "flaky": one.is_flaky} for one in failures]
    (LOGS / "results.json").write_text(json.dumps({"passed": passed, "failures": found}, indent=1))


def report(passed: int, failures: list[Failure], seconds: float) -> int:
    failed = [failure for failure in failures if not failure.is_flaky]
    for failure in failures:
        print(f"{'FLAKY' if failure.is_flaky else 'FAILED'}: {failure}")
    if failures:
        print(f"test: the output of each program is in {LOGS}")
    print(f"test: all tests ran in {seconds:.0f} s")
    print(f"{passed} passed, {len(failed)} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
