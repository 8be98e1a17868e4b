"""Tests of scripts/run_tests.py: no failure goes unnoticed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import run_tests
from run_tests import ROOT, Outcome, Program, PythonTests, RustProgram

from conftest import LIMIT

PASSING = "test a::one ... ok\ntest a::two - should panic ... ok\ntest a::three ... ignored, part of make verify\n"
FAILING = """test a::one ... ok
test a::two ... FAILED

failures:

---- a::two stdout ----

thread 'a::two' (7) panicked at src/a.rs:3:5:
left is not right
stack backtrace:

failures:
    a::two

test result: FAILED. 1 passed; 1 failed
"""


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_tests, "LOGS", tmp_path)


def rust(script: str) -> RustProgram:
    return RustProgram("program", ["sh", "-c", script], Path.cwd(), ["--test", "program"])


def run_until_printed(program: Program) -> Outcome:
    """Run a program that prints something and then hangs. A loaded machine may need more than the first time limit."""
    for limit in (1.0, 4.0, 16.0, LIMIT):
        program.limit = limit
        outcome = program.run()
        if (run_tests.LOGS / f"{program.name}.log").stat().st_size > 0:
            break
    return outcome


def test_passed_tests_are_counted() -> None:
    outcome = rust(f"printf '{PASSING}'").run()
    assert (outcome.passed, outcome.failures) == (2, [])


def test_a_failed_test_has_a_name_a_reason_and_a_command(tmp_path: Path) -> None:
    (tmp_path / "output").write_text(FAILING)
    outcome = rust(f"cat '{tmp_path}/output'; exit 101").run()
    assert outcome.passed == 1
    (failure,) = outcome.failures
    assert (failure.name, failure.reason) == ("program: a::two", "src/a.rs:3:5: left is not right")
    assert failure.command == ["cargo", "test", "--test", "program", "--", "--exact", "a::two"]


@pytest.mark.parametrize("mode", ["", " - should panic", " - compile", " - compile fail"])
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("a::two", ["--exact", "a::two"]),
        # rustdoc would split a name with spaces.
        ("src/lib.rs - (line 3)", ["src/lib.rs"]),
        ("src/a.rs - a::Two::get (line 25)", ["src/a.rs"]),
    ],
)
def test_the_name_of_a_failed_test_ends_before_its_mode(
    tmp_path: Path, name: str, arguments: list[str], mode: str
) -> None:
    output = FAILING.replace("test a::two ...", f"test {name}{mode} ...").replace("- a::two stdout", f"- {name} stdout")
    (tmp_path / "output").write_text(output)
    outcome = rust(f"cat '{tmp_path}/output'; exit 101").run()
    assert outcome.passed == 1
    (failure,) = outcome.failures
    assert (failure.name, failure.reason) == (f"program: {name}", "src/a.rs:3:5: left is not right")
    assert failure.command == ["cargo", "test", "--test", "program", "--", *arguments]


@pytest.mark.parametrize(
    ("script", "reason"),
    [("exit 3", "ended with status 3"), ("kill -SEGV $$", "ended by signal 11"), ("sleep 600", "did not end within")],
)
def test_a_program_that_dies_or_hangs_has_failed(script: str, reason: str) -> None:
    program = rust(f"echo 'test a::one ... ok'; {script}")
    outcome = run_until_printed(program) if "sleep" in script else program.run()
    assert outcome.passed == 1
    (failure,) = outcome.failures
    assert failure.name == "program"
    assert failure.reason.startswith(reason)


@pytest.mark.parametrize("name", ["a::one", "src/lib.rs - (line 3)"])
def test_a_test_that_hangs_is_named(name: str) -> None:
    program = rust(f"echo 'test {name} has been running for over 60 seconds'; sleep 600")
    (failure,) = run_until_printed(program).failures
    assert failure.name == f"program: {name}"
    assert "did not end within" in failure.reason


def test_the_reason_of_a_c_program_is_its_last_line(tmp_path: Path) -> None:
    output = (
        "test op ... FAILED\n\n---- op ----\ntest panicked: exit status: 1\nfirst\nop.c:7: x does not hold\n\n\n"
        "failures:\n    op\n"
    )
    (tmp_path / "output").write_text(output)
    (failure,) = rust(f"cat '{tmp_path}/output'; exit 101").run().failures
    assert failure.reason == "op.c:7: x does not hold"


def test_failed_python_tests_are_named() -> None:
    failed = "____ test_b[x - y] ____\n\n>   assert f() == 2\nE   assert 1 == 2\nE    +  where 1 = f()\n"
    output = f"{failed}FAILED tests/test_a.py::test_b[x - y] - asse...\nERROR tests/test_c.py\n3 passed, 1 failed"
    outcome = PythonTests(["pytest"], "4").outcome(output, 1)
    assert outcome.passed == 3
    assert [failure.name for failure in outcome.failures] == ["tests/test_a.py::test_b[x - y]", "tests/test_c.py"]
    assert [failure.reason for failure in outcome.failures] == ["assert 1 == 2", "see the log"]
    assert outcome.failures[0].command == ["pytest", "-n", "0", "tests/test_a.py::test_b[x - y]"]


def test_python_tests_that_end_without_a_summary_have_failed() -> None:
    (failure,) = PythonTests(["pytest"], "4").outcome("usage: pytest", 4).failures
    assert failure.reason == "ended with status 4; the last line of its output: usage: pytest"


def test_only_a_test_that_passes_alone_is_flaky(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flag = tmp_path / "second run"
    flaky = Program("flaky", ["sh", "-c", f"test -e '{flag}' || {{ touch '{flag}'; exit 1; }}"])
    broken = Program("broken", ["false"])
    failures = [failure for outcome in run_tests.run_all([flaky, broken], 1) for failure in outcome.failures]
    assert run_tests.retry(failures) == 1
    assert run_tests.report(5, failures, 1.0) == 1
    output = capsys.readouterr().out
    assert "FLAKY: flaky" in output
    assert "FAILED: broken" in output
    assert output.endswith("5 passed, 1 failed\n")
    assert run_tests.report(5, failures[:1], 1.0) == 0


def test_a_retry_that_runs_no_test_has_failed() -> None:
    rest = "0 ignored; 0 measured; 9 filtered out"
    program = rust("exit 101")
    commands = {
        "none": f"echo 'running 0 tests'; echo 'test result: ok. 0 passed; 0 failed; {rest}'",
        "ignored": "echo 'running 1 test'; echo 'test a::two ... ignored'",
        "one": f"echo 'running 1 test'; echo 'test a::two ... ok'; echo 'test result: ok. 1 passed; 0 failed; {rest}'",
    }
    failures = [program.failure(name, "", ["sh", "-c", command]) for name, command in commands.items()]
    assert run_tests.retry(failures) == 1
    assert [failure.name for failure in failures if failure.is_flaky] == ["one"]


def test_make_refuses_a_path_with_a_blank(tmp_path: Path) -> None:
    directory = tmp_path / "a blank"
    directory.mkdir()
    shutil.copy(ROOT / "Makefile", directory)
    # The tests themselves may run below make, which passes its options and its level to each make.
    outer = ["CARGO_TARGET_DIR", "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES"]
    environment = {name: value for name, value in os.environ.items() if name not in outer}
    done = subprocess.run(
        ["make", "-n", "test"], cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "contains a blank" in done.stderr
    assert str(directory) in done.stderr
    assert done.stdout == ""
