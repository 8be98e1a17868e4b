"""Tests of the examples of fenced stores, with a process that is stopped until its session has expired."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Inspector, Program
from server import ZooKeeper

EXAMPLES = Path(__file__).parents[2] / "python" / "examples"

Start = Callable[..., Program]


def write(program: Program, value: str) -> str:
    program.write_line(value)
    return program.read_line()


def token(program: Program) -> int:
    return int(program.read_line().removeprefix("acquired TOKEN "))


def stop_write_go_on(start: Callable[[], Program]) -> None:
    """Stop a holder, let another process acquire the lock and write, and let the first one go on. It has not noticed
    the loss yet.
    """
    first = start()
    first_token = token(first)
    assert [write(first, value) for value in ("zero", "one")] == ["written", "written"]
    first.process.send_signal(signal.SIGSTOP)
    first.write_line("late")
    second = start()
    assert token(second) > first_token
    assert write(second, "two") == "written"
    first.process.send_signal(signal.SIGCONT)
    assert first.read_line() == "refused"
    assert write(first, "too late") == "refused"
    for program, word in [(first, "lost"), (second, "released")]:
        program.close_input()
        assert (program.read_line(), program.ends()) == (word, 0)


def test_sqlite_store_refuses_a_stale_token(server: ZooKeeper, program: Start, path: str, tmp_path: Path) -> None:
    file = str(tmp_path / "store.db")
    stop_write_go_on(lambda: example(program, "fenced_store.py", server.address, path, file, "report", "3"))
    assert sqlite3.connect(file).execute("SELECT resource, value FROM item").fetchall() == [("report", "two")]


def test_znode_store_refuses_a_stale_token(server: ZooKeeper, program: Start, path: str, inspector: Inspector) -> None:
    lock, data = f"{path}/lock", f"{path}/data"
    stop_write_go_on(lambda: example(program, "fenced_znode.py", server.address, lock, data, "3"))
    assert inspector.kazoo.get(data)[0] == b"two"
    # A revocation request changes the node of the lock, but takes nothing away. Deleting the node does.
    holder = example(program, "fenced_znode.py", server.address, lock, data, "30")
    token(holder)
    [node] = inspector.nodes(lock)
    inspector.kazoo.set(node, b"__REVOKE__")
    assert write(holder, "three") == "written"
    inspector.kazoo.delete(node)
    assert write(holder, "four") == "refused"
    assert inspector.kazoo.get(data)[0] == b"three"


def test_exception_in_the_block_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    from fenced_store import StaleToken, fenced, open_store

    store = open_store(":memory:")
    with fenced(store, "a", 7):
        store.execute("INSERT INTO item VALUES ('a', 'x')")
    with pytest.raises(sqlite3.IntegrityError), fenced(store, "a", 8):
        store.execute("INSERT INTO item VALUES ('b', 'y')")
        store.execute("INSERT INTO item VALUES ('a', 'z')")
    with fenced(store, "a", 7):
        pass
    with pytest.raises(StaleToken, match="a: a later holder than 6"), fenced(store, "a", 6):
        raise AssertionError("not reached")
    with fenced(store, "other", 2**63 - 1):
        pass
    assert store.execute("SELECT * FROM item").fetchall() == [("a", "x")]
    assert store.execute("SELECT * FROM fence").fetchall() == [("a", 7), ("other", 2**63 - 1)]


def example(program: Start, name: str, *arguments: str) -> Program:
    code = (EXAMPLES / name).read_text()
    return program(code, *arguments)
