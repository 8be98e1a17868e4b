"""The programs of docs/frameworks.md run in their frameworks (scripts/requirements-frameworks.txt)."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest
from documentation import ROOT, blocks

from conftest import LIMIT, Inspector, wait_until
from server import ZooKeeper

pytestmark = pytest.mark.verify
PYTHON = sys.executable


@pytest.fixture
def programs(server: ZooKeeper, inspector: Inspector, path: str, tmp_path: Path) -> Path:
    """Write the programs of the page into a directory, with the address of the server."""
    inspector.kazoo.ensure_path(path)
    for block in blocks((ROOT / "docs/frameworks.md").read_text()):
        if block.marker.startswith("file "):
            text = block.text.replace("localhost:2181", server.address + path)
            (tmp_path / block.marker.removeprefix("file ")).write_text(text)
    return tmp_path


@contextmanager
def running(directory: Path, *command: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program until the end of the block."""
    with subprocess.Popen(
        command, cwd=directory, env={**os.environ, **environment}, stdout=sys.stderr, text=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(LIMIT)


def run(directory: Path, code: str, **environment: str) -> str:
    """Run a program to its end, and return what it prints."""
    return subprocess.run(
        [PYTHON, "-c", code],
        cwd=directory,
        env={**os.environ, **environment},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=LIMIT,
    ).stdout


class UnixConnection(HTTPConnection):
    """A connection to a server that listens on a socket in a directory."""

    def __init__(self, place: Path) -> None:
        super().__init__("localhost")
        self._place = place

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(os.path.relpath(self._place))


def get(place: Path) -> str:
    connection = UnixConnection(place)
    connection.request("GET", "/")
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def test_gunicorn(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(programs)
    place = programs / "web"
    options = ["--preload", "--workers", "2", "--bind", "unix:web", "report:application"]
    with running(programs, PYTHON, "-m", "gunicorn", *options):
        wait_until(place.exists)
        answers: list[tuple[int, int]] = []

        def both_have_answered() -> bool:
            found = re.fullmatch(r"token (\d+), session (\d+)\n", get(place))
            assert found
            answers.append((int(found[1]), int(found[2])))
            return len({session for _, session in answers}) == 2

        wait_until(both_have_answered)
    tokens = [token for token, _ in answers]
    assert tokens == sorted(set(tokens))


def test_django(programs: Path) -> None:
    code = """
import django, django.conf, zklock
django.conf.settings.configure()
django.setup()
import views
print(views.rebuild(None).status_code)
with views.client.mutex("/locks/rebuild"):
    import threading
    thread = threading.Thread(target=lambda: print(views.rebuild(None).status_code))
    thread.start(); thread.join()
"""
    assert run(programs, code).split() == ["200", "409"]


def test_celery(programs: Path) -> None:
    (programs / "queue").mkdir()
    (programs / "results").mkdir()
    settings = {"BROKER_URL": "filesystem://", "RESULT_BACKEND": f"file://{programs}/results"}
    with (programs / "tasks.py").open("a") as file:
        file.write('app.conf.broker_transport_options = {"data_folder_in": "queue", "data_folder_out": "queue"}\n')
    worker = [
        "-m",
        "celery",
        "-A",
        "tasks",
        "worker",
        "--pool",
        "prefork",
        "--concurrency",
        "2",
        "--loglevel",
        "warning",
    ]
    call = "import tasks\nfor _ in range(4): print(tasks.nightly.delay().get(timeout=60))\n"
    with running(programs, PYTHON, *worker, **settings):
        assert all(int(line) > 0 for line in run(programs, call, **settings).split())
        twice = "import tasks\nfor _ in range(2): print(tasks.invoices.delay().get(timeout=60))\n"
        assert run(programs, twice, **settings).split() == ["True", "False"]


def test_fastapi(programs: Path) -> None:
    code = """
from fastapi.testclient import TestClient
import service
with TestClient(service.app) as client:
    tokens = [client.get("/report").json()["token"] for _ in range(3)]
print(tokens == sorted(set(tokens)))
"""
    assert run(programs, code).strip() == "True"


def test_airflow_runs_a_function_in_a_child(programs: Path) -> None:
    code = """
import os, nightly_dag
first = nightly_dag.load_warehouse()
child = os.fork()
if child == 0:
    os._exit(0 if nightly_dag.load_warehouse() != first else 1)
print(os.waitpid(child, 0)[1])
"""
    assert run(programs, code).strip() == "0"
