"""Tests of the documentation, the types and the examples of the package."""

from __future__ import annotations

import ast
import inspect
import modulefinder
import os
import re
import subprocess
import sys
from collections.abc import Callable
from enum import EnumMeta
from pathlib import Path
from types import ModuleType

import pytest
import stubs

import zklock
import zklock.aio
import zklock.testing
from server import ZooKeeper

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / "python"
EXAMPLES = PYTHON / "examples"


def test_the_version_is_the_workspaces() -> None:
    match = re.search(r'^\[workspace\.package\]\nversion = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    assert match is not None
    assert zklock.__version__ == match[1]


@pytest.mark.parametrize("module", [zklock, zklock.aio, zklock.testing], ids=lambda module: module.__name__)
def test_all_that_is_public_is_listed_and_documented(module: ModuleType) -> None:
    public = {
        name for name, value in vars(module).items() if not name.startswith("_") and not isinstance(value, ModuleType)
    } - {"Enum", "IntEnum"}
    assert public == set(module.__all__) - {"__version__", "aio"}
    assert module.__doc__
    for name in public - {"Event"}:
        thing = getattr(module, name)
        assert is_documented(thing), name
        assert thing.__module__ == module.__name__ or isinstance(thing, EnumMeta), name
        for member, value in vars(thing).items():
            if not member.startswith("_") and (callable(value) or inspect.isdatadescriptor(value)):
                assert is_documented(value), f"{name}.{member}"


def test_static_analysis_finds_the_modules_that_native_code_imports(tmp_path: Path) -> None:
    """A tool that freezes a program finds only the modules that Python code imports."""
    (tmp_path / "program.py").write_text("import zklock")
    finder = modulefinder.ModuleFinder(path=[str(PYTHON)])
    finder.run_script(str(tmp_path / "program.py"))
    files = {file.relative_to(PYTHON).with_suffix("") for file in (PYTHON / "zklock").rglob("*.py")}
    modules = {".".join(file.parts).removesuffix(".__init__") for file in files}
    # A program imports these modules itself.
    assert modules - finder.modules.keys() == {"zklock.__main__", "zklock.testing"}


def is_documented(thing: object) -> bool:
    """Return whether the object has its own docstring, which it does not inherit."""
    return bool(thing.__doc__) and thing.__doc__ not in [cls.__doc__ for cls in getattr(thing, "__mro__", ())[1:]]


def test_aio_has_the_same_names_and_parameters() -> None:
    """Check that both modules have the same names and the same arguments."""
    only_here = {"connect", "events", "while_held"}
    for name in set(zklock.aio.__all__) & set(zklock.__all__):
        there, here = getattr(zklock, name), getattr(zklock.aio, name)
        members = {member for member in dir(here) if not member.startswith("_")} - only_here
        assert members == {member for member in dir(there) if not member.startswith("_")}, name
        for member in members:
            if callable(getattr(here, member)) and sys.version_info >= (3, 10):
                assert parameters(getattr(here, member)) == parameters(getattr(there, member)), f"{name}.{member}"
    if sys.version_info >= (3, 10):
        assert parameters(zklock.aio.Client) == parameters(zklock.Client)


def parameters(function: Callable[..., object]) -> list[tuple[str, object, object]]:
    found = inspect.signature(function).parameters.values()
    return [(one.name, one.kind, one.default) for one in found if one.name != "self"]


@pytest.mark.skipif(sys.version_info < (3, 10), reason="inspect does not find them")
def test_signatures() -> None:
    expected = (
        "(servers, *, session_timeout=None, connect_timeout=None, lease_margin=None, auth=(), wait_for_kazoo=False, "
        "on_event=None, options=None)"
    )
    assert str(inspect.signature(zklock.Client)) == expected
    signature = "(self, /, path, *, timeout=None, data=None, local_handover=0)"
    assert str(inspect.signature(zklock.Client.mutex)) == signature
    for method in [zklock.Client.semaphore_mutex, zklock.Client.rwlock]:
        assert str(inspect.signature(method)) == "(self, /, path, *, timeout=None, data=None)"
    assert str(inspect.signature(zklock.Client.multi)) == "(self, /, locks, *, timeout=None, in_order=False)"
    expected = "(self, /, path, max_leases=None, *, count_path=None, initial=None, timeout=None)"
    assert str(inspect.signature(zklock.Client.semaphore)) == expected
    assert str(inspect.signature(zklock.Semaphore.acquire)) == "(self, /, quantity=1, *, timeout=Ellipsis)"
    assert str(inspect.signature(zklock.Client.prometheus)) == "(self, /, labels=None)"
    assert str(inspect.signature(zklock.Mutex.acquire)) == "(self, /, *, timeout=Ellipsis)"


@pytest.mark.parametrize(("example", "arguments"), [("mutex.py", ["3"]), ("aio.py", ["3", "1"])])
def test_the_examples(server: ZooKeeper, path: str, example: str, arguments: list[str]) -> None:
    begin = [sys.executable, "-W", "error", str(EXAMPLES / example), server.address, path]
    commands = [[*begin, name, *arguments] for name in ("a", "b")]
    programs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    try:
        lines = [line for program in programs for line in program.communicate(timeout=30)[0].splitlines()]
        assert [program.returncode for program in programs] == [0, 0]
    finally:
        for program in programs:
            program.kill()
            program.communicate()
    matches = [re.fullmatch(r"([ab](?:/\d)?) (acquired|released) TOKEN (\d+) (\d+)", line) for line in lines]
    assert len(lines) == 12
    assert all(matches), lines
    events = sorted((int(match[4]), int(match[3]), match[2], match[1]) for match in matches if match)
    for acquired, released in zip(events[::2], events[1::2]):
        assert (acquired[2], released[2]) == ("acquired", "released")
        assert acquired[1] == released[1]
        assert acquired[3] == released[3]
    tokens = [event[1] for event in events]
    assert tokens == sorted(tokens)


@pytest.mark.parametrize("example", ["mutex.py", "aio.py"])
def test_the_examples_say_what_is_wrong(example: str) -> None:
    done = subprocess.run([sys.executable, str(EXAMPLES / example)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("usage:")


def test_stub_and_asyncio_classes_have_the_docstrings_of_the_module() -> None:
    """Editors read these docstrings in the source. scripts/stubs.py writes them."""
    for file, least in [(stubs.STUB, 100), *((file, 10) for file in stubs.AIO)]:
        checked = 0
        for node, text in stubs.definitions(file, ast.parse(file.read_text())):
            shown = ast.get_docstring(node)
            assert shown is not None, f"{file.name}: {node.name}: run scripts/stubs.py"
            assert stubs.words(shown) == stubs.words(text), f"{file.name}: {node.name}: run scripts/stubs.py"
            checked += 1
        assert checked > least, file


@pytest.mark.verify
def test_stub_passes_stubtest_and_mypy(tmp_path: Path) -> None:
    environment = {"MYPY_CACHE_DIR": str(tmp_path), **os.environ}
    commands = [
        "mypy.stubtest zklock --allowlist ../tests/python/stubtest.txt",
        "mypy --strict zklock ../tests/python/typing_ok.py",
    ]
    # Check the two directories separately: each has programs, which do not import each other.
    commands += [f"mypy --strict {where}" for where in ("examples", "../examples/python") if (PYTHON / where).exists()]
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-m", *command.split()],
            cwd=PYTHON,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
