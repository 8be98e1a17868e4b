"""The examples of stores that refuse whoever writes late, with a process that is stopped past its session."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Program, Witness
from server import ZooKeeper

EXAMPLES = Path(__file__).parents[2] / "python" / "examples"

Start = Callable[..., Program]


def write(program: Program, value: str) -> str:
    program.tell(value)
    return program.says()


def token(program: Program) -> int:
    return int(program.says(30.0).removeprefix("acquired TOKEN "))


def stop_write_go_on(start: Callable[[], Program]) -> None:
    """One holds and is stopped; another one gets the lock and writes; the first goes on, and does not know yet."""
    first = start()
    first_token = token(first)
    assert [write(first, value) for value in ("zero", "one")] == ["written", "written"]
    first.process.send_signal(signal.SIGSTOP)
    first.tell("late")
    second = start()
    assert token(second) > first_token
    assert write(second, "two") == "written"
    first.process.send_signal(signal.SIGCONT)
    assert first.says() == "refused"
    assert write(first, "too late") == "refused"
    for program, word in [(first, "lost"), (second, "released")]:
        program.tell_no_more()
        assert (program.says(), program.ends()) == (word, 0)


def test_a_store_in_sqlite_refuses_who_writes_late(
    server: ZooKeeper, program: Start, path: str, tmp_path: Path
) -> None:
    file = str(tmp_path / "store.db")
    stop_write_go_on(lambda: example(program, "fenced_store.py", server.address, path, file, "report", "1.5"))
    assert sqlite3.connect(file).execute("SELECT resource, value FROM item").fetchall() == [("report", "two")]


def test_a_znode_refuses_who_writes_late(server: ZooKeeper, program: Start, path: str, witness: Witness) -> None:
    lock, data = f"{path}/lock", f"{path}/data"
    stop_write_go_on(lambda: example(program, "fenced_znode.py", server.address, lock, data, "1.5"))
    assert witness.kazoo.get(data)[0] == b"two"
    # Whoever asks for the lock back changes its node, and takes nothing away; whoever deletes it does.
    holder = example(program, "fenced_znode.py", server.address, lock, data, "30")
    token(holder)
    [node] = witness.nodes(lock)
    witness.kazoo.set(node, b"__REVOKE__")
    assert write(holder, "three") == "written"
    witness.kazoo.delete(node)
    assert write(holder, "four") == "refused"
    assert witness.kazoo.get(data)[0] == b"three"


def test_what_fails_in_the_block_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
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
