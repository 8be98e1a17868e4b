"""Run the five programs of examples/, in each language and with kazoo, on a real server and compare the output."""

from __future__ import annotations

import ast
import fcntl
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from documentation import ROOT

import zklock
from conftest import Inspector, Program, wait_until
from server import ZooKeeper

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
EXAMPLES = ROOT / "examples"
PROGRAMS = ["fenced_write", "leader", "pool", "transfer", "try_job"]
#: The programs in Go are built if Go is installed.
LANGUAGES = ["c", "cpp", "rust", "python", *(["go"] if shutil.which("go") else [])]
#: The same programs with kazoo, for comparison. Its locks do not exclude those of zklock.
ALL = [*LANGUAGES, "kazoo"]
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror"]
LINK = [f"-I{ROOT}/include", f"-L{TARGET}/debug", "-lzklock", f"-Wl,-rpath,{TARGET}/debug"]


class Example(Program):
    """A running example. Its error messages go to a file."""

    def __init__(self, command: list[str], directory: Path, log: Path) -> None:
        self.log = log
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                command, cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=0
            )

    def ends_with(self, *lines: str) -> None:
        """End the input of the program. Check that it prints these lines and succeeds."""
        self.close_input()
        assert [self.read_line() for _ in lines] == list(lines), self.log.read_text()
        assert (self.read_line(), self.ends()) == ("", 0), self.log.read_text()

    def fails(self) -> str:
        """Check that the program fails without a crash, and return its error message."""
        self.close_input()
        assert self.read_line() == ""
        assert self.ends() in (1, 2)
        return self.log.read_text()


Start = Callable[..., Example]


Build = Callable[[str, str], list[str]]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Return a function that compiles a program without warnings and returns the command that runs it."""
    # The processes of pytest-xdist share this directory, so that one of them compiles each program.
    base = tmp_path_factory.getbasetemp()
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "examples"
    directory.mkdir(exist_ok=True)

    @cache
    def command(language: str, name: str) -> list[str]:
        compiled = str(directory / f"{language}-{name}")
        compilers = {"c": ["gcc", "-std=c11"], "cpp": ["g++", "-std=c++17"]}
        if language in compilers:
            with Path(f"{compiled}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not Path(compiled).exists():
                    source = str(EXAMPLES / language / f"{name}.{language}")
                    make([*compilers[language], *STRICT, source, *LINK, "-o", compiled])
        elif language == "rust":
            # Without `--package`, the dependencies have the same features as in `cargo test`, which has built them.
            make(["cargo", "build", "--quiet", "--locked", "--example", name])
            return [str(TARGET / "debug/examples" / name)]
        elif language == "go":
            with Path(f"{compiled}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not Path(compiled).exists():
                    make(["go", "build", "-o", compiled, f"./{name}"], EXAMPLES / "go", pkgconfig(directory))
        elif language == "python":
            return [sys.executable, "-W", "error", str(EXAMPLES / f"python/{name}.py")]
        else:
            return [sys.executable, str(ROOT / f"tests/interop/kazoo/examples/{name}.py")]
        return [compiled]

    return command


def pkgconfig(directory: Path) -> dict[str, str]:
    """Return the environment in which cgo finds the debug build of the library."""
    flags = " ".join(LINK[1:])
    (directory / "zklock.pc").write_text(
        f"Name: zklock\nDescription: the debug build\nVersion: 0\nCflags: {LINK[0]}\nLibs: {flags}\n"
    )
    return {"PKG_CONFIG_PATH": str(directory), "CGO_LDFLAGS_ALLOW": "-Wl,-rpath,.*"}


def make(command: list[str], directory: Path = ROOT, environment: dict[str, str] | None = None) -> None:
    environment = {**os.environ, **(environment or {})}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"


@pytest.fixture
def start(build: Build, tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a program by its name and language, in a directory of the test."""
    started: list[Example] = []

    def run(language: str, name: str, *arguments: str) -> Example:
        log = tmp_path / f"{len(started)}.log"
        started.append(Example([*build(language, name), *arguments], tmp_path, log))
        return started[-1]

    yield run
    for one in started:
        one.process.kill()
        one.process.communicate()


# The first test also compiles the programs, which takes time.
pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize("language", ALL)
def test_a_job_runs_only_once_at_a_time(server: ZooKeeper, start: Start, path: str, language: str) -> None:
    first = start(language, "try_job", server.address, path)
    assert first.read_line() == "running"
    second = start(language, "try_job", server.address, path)
    assert second.read_line().startswith("skipped: ")
    assert second.ends() == 0
    first.ends_with("done")
    third = start(language, "try_job", server.address, path)
    assert third.read_line() == "running"
    third.ends_with("done")


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_job_that_was_not_alone_until_its_end_fails(
    server: ZooKeeper, start: Start, path: str, inspector: Inspector, language: str
) -> None:
    first = start(language, "try_job", server.address, path)
    assert first.read_line() == "running"
    inspector.kazoo.delete(inspector.wait_for(path, 1)[0])
    second = start(language, "try_job", server.address, path)
    assert second.read_line() == "running"
    assert re.search("lost|deleted", first.fails())
    second.ends_with("done")


@pytest.mark.parametrize("language", LANGUAGES)
def test_leader_stops_at_a_loss_and_acquires_again(
    server: ZooKeeper, start: Start, path: str, inspector: Inspector, language: str
) -> None:
    alice = start(language, "leader", server.address, path, "alice")
    assert [alice.read_line(), alice.read_line()] == ["alice leads", "alice works"]
    bob = start(language, "leader", server.address, path, "bob")
    for leader, name, successor, heirs_name in [(alice, "alice", bob, "bob"), (bob, "bob", alice, "alice")]:
        inspector.kazoo.delete(inspector.wait_for(path, 2)[0])
        assert line_after_work(leader, name) == f"{name} stops"
        assert [successor.read_line(), successor.read_line()] == [f"{heirs_name} leads", f"{heirs_name} works"]


def test_a_leader_that_was_stopped_past_its_session_does_no_more_work(tmp_path: Path, start: Start) -> None:
    """All languages run at once. The program for kazoo reports the end of its session later, because it works before it
    checks.
    """
    with ZooKeeper(tmp_path, max_session_timeout=6000) as server:
        leaders = {language: start(language, "leader", server.address, f"/{language}", "alice") for language in ALL}
        heirs = {}
        for language, leader in leaders.items():
            assert leader.read_line() == "alice leads"
            heirs[language] = start(language, "leader", server.address, f"/{language}", "bob")
        for leader in leaders.values():
            assert leader.read_line() == "alice works"
            stop(leader)
            while has_line(leader):
                assert leader.read_line() == "alice works"
        for language, successor in heirs.items():
            assert successor.read_line() == "bob leads", language
        for language, leader in leaders.items():
            leader.process.send_signal(signal.SIGCONT)
            line = line_after_work(leader, "alice") if language == "kazoo" else leader.read_line()
            assert line == "alice stops", language


def line_after_work(leader: Example, name: str) -> str:
    """Return the first line that does not report work. It comes within seconds."""
    deadline = time.monotonic() + 60
    while (line := leader.read_line()) == f"{name} works":
        assert time.monotonic() < deadline, f"{name} works on"
    return line


def stop(program: Example) -> None:
    program.process.send_signal(signal.SIGSTOP)
    state = Path(f"/proc/{program.process.pid}/stat")
    wait_until(lambda: state.read_text().rpartition(")")[2].split()[0] == "T")


def has_line(program: Example) -> bool:
    return bool(select.select([program.process.stdout], [], [], 0)[0])


@pytest.mark.parametrize("language", ALL)
def test_a_pool_lets_three_in(server: ZooKeeper, start: Start, path: str, language: str) -> None:
    users = [start(language, "pool", server.address, path, "60") for _ in range(3)]
    assert [user.read_line() for user in users] == ["using"] * 3
    start(language, "pool", server.address, path, "1").ends_with("full")
    users.pop().ends_with("returned")
    users.append(start(language, "pool", server.address, path, "60"))
    assert users[-1].read_line() == "using"
    for user in users:
        user.ends_with("returned")


@pytest.mark.parametrize("languages", [LANGUAGES, ["kazoo"] * 4], ids=["zklock", "kazoo"])
def test_transfers_in_opposite_directions_lose_nothing(
    server: ZooKeeper, start: Start, path: str, inspector: Inspector, tmp_path: Path, languages: list[str]
) -> None:
    inspector.kazoo.ensure_path(path)
    alice, bob = tmp_path / "alice", tmp_path / "bob"
    for account in (alice, bob):
        account.write_text("100\n")
    servers = server.address + path
    transfers = [
        start(language, "transfer", servers, *way)
        for language in languages
        for way in [("alice", "bob", "10", "60"), ("bob", "alice", "5", "60")]
    ]
    for one in transfers:
        one.ends_with("transferred")
    moved = 5 * len(languages)
    assert (alice.read_text(), bob.read_text()) == (f"{100 - moved}\n", f"{100 + moved}\n")
    for language in set(languages):
        start(language, "transfer", servers, "alice", "bob", f"{101 - moved}", "60").ends_with("not enough")
    assert (alice.read_text(), bob.read_text()) == (f"{100 - moved}\n", f"{100 + moved}\n")
    assert inspector.below(f"{path}/accounts") == []


@pytest.mark.parametrize("language", ALL)
def test_transfer_example_that_times_out_changes_nothing(
    server: ZooKeeper, start: Start, path: str, inspector: Inspector, tmp_path: Path, language: str
) -> None:
    inspector.kazoo.ensure_path(path)
    for account in ("alice", "bob"):
        (tmp_path / account).write_text("100\n")
    servers = server.address + path
    with zklock.Client(servers) as client:
        lock = inspector.kazoo.Lock(f"{path}/accounts/bob") if language == "kazoo" else client.mutex("/accounts/bob")
        with lock:
            start(language, "transfer", servers, "alice", "bob", "10", "1").ends_with("not in time")
            assert len(inspector.below(f"{path}/accounts")) == 1
    assert [(tmp_path / account).read_text() for account in ("alice", "bob")] == ["100\n"] * 2


@pytest.mark.parametrize(("late", "next_one"), [*zip(LANGUAGES, [*LANGUAGES[1:], LANGUAGES[0]]), ("kazoo", "kazoo")])
def test_a_store_refuses_the_stale_token(
    server: ZooKeeper, start: Start, path: str, inspector: Inspector, tmp_path: Path, late: str, next_one: str
) -> None:
    """The next holder is a program in another language, with the same lock and the same store."""

    def begin(language: str) -> tuple[Example, int]:
        program = start(language, "fenced_write", server.address, path, "store")
        match = re.fullmatch(r"holds with token (\d+)", program.read_line())
        assert match, program.log.read_text()
        return program, int(match[1])

    def write(program: Example, value: str) -> str:
        program.write_line(value)
        return program.read_line()

    first, first_token = begin(late)
    assert [write(first, value) for value in ("zero", "one")] == ["written", "written"]
    inspector.kazoo.delete(inspector.wait_for(path, 1)[0])
    second, second_token = begin(next_one)
    assert second_token > first_token
    assert write(first, "still in time") == "written"
    assert write(second, "two") == "written"
    assert write(first, "late") == "refused"
    assert (tmp_path / "store").read_text() == f"{second_token} two\n"
    first.ends_with("lost")
    second.ends_with("released")


@pytest.mark.parametrize("language", ALL)
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_program_prints_its_usage(start: Start, language: str, name: str) -> None:
    said = start(language, name).fails()
    assert re.search(rf"usage: {name}(\.py)? SERVERS ", said), said


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(("name", "arguments"), [("leader", ["alice"]), ("pool", ["1"]), ("fenced_write", ["store"])])
def test_each_program_reports_errors(
    server: ZooKeeper, start: Start, language: str, name: str, arguments: list[str]
) -> None:
    assert "no-slash" in start(language, name, server.address, "no-slash", *arguments).fails()


@pytest.mark.verify
def test_examples_pass_the_type_checkers(tmp_path: Path) -> None:
    files = [str(EXAMPLES / f"python/{name}.py") for name in PROGRAMS]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), *files],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_kazoo_page_has_the_right_line_counts() -> None:
    page = (ROOT / "docs/kazoo.md").read_text()
    for name in PROGRAMS:
        row = re.search(rf"^\| `{name}` \| \[(\d+)\]\(../(.*?)\) \| \[(\d+)\]\(../(.*?)\) ", page, re.MULTILINE)
        assert row, name
        assert [lines_of_code(ROOT / row[2]), lines_of_code(ROOT / row[4])] == [int(row[1]), int(row[3])], name


def lines_of_code(file: Path) -> int:
    text = file.read_text()
    lines = {number for number, line in enumerate(text.splitlines(), 1) if line.strip() and line.strip()[0] != "#"}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.FunctionDef)) and ast.get_docstring(node):
            docstring = node.body[0]
            lines -= set(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return len(lines)
