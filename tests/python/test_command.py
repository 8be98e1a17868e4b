"""``python -m zklock`` runs the command, as the program does. The tests of the command itself are in command/tests."""

from __future__ import annotations

import configparser
import contextlib
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from documentation import ROOT

import zklock
from conftest import LIMIT, Inspector, wait_until
from server import ZooKeeper
from test_examples import TARGET

EXAMPLES = ROOT / "examples/command"


class Calls:
    """Starts calls of the command on a server, and ends them with the test."""

    def __init__(self, server: ZooKeeper) -> None:
        self.server = server
        self.started: list[subprocess.Popen[str]] = []

    def module(self, *arguments: str) -> subprocess.Popen[str]:
        return self.start([sys.executable, "-W", "error", "-m", "zklock", *arguments])

    def program(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return self.start([str(TARGET / "debug/zklock"), *arguments], **environment)

    def start(self, words: list[str], **environment: str) -> subprocess.Popen[str]:
        call = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"PATH": "/usr/bin:/bin", "ZKLOCK_SERVERS": self.server.address, **environment},
        )
        self.started.append(call)
        return call


@pytest.fixture
def calls(server: ZooKeeper) -> Iterator[Calls]:
    calls = Calls(server)
    yield calls
    for call in calls.started:
        call.kill()
        call.communicate()


def ends_with(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    output, errors = process.communicate(timeout=30)
    return process.returncode, output, errors


def test_a_job_runs_and_its_exit_code_is_returned(calls: Calls, path: str, inspector: Inspector) -> None:
    job = calls.module("run", path, "sh", "-c", "echo $ZKLOCK_PATH; exit 3")
    assert ends_with(job) == (3, f"{path}\n", "")
    assert inspector.nodes(path) == []


def test_a_wrong_argument_is_64_and_has_no_traceback(calls: Calls) -> None:
    assert ends_with(calls.module("run", "a", "true")) == (64, "", "zklock: path \"a\": must start with '/'\n")


def test_ctrl_c_leaves_the_queue_and_prints_nothing(
    calls: Calls, path: str, client: zklock.Client, inspector: Inspector
) -> None:
    with client.mutex(path):
        job = calls.module("run", path, "true")
        inspector.wait_for(path, 2)
        job.send_signal(signal.SIGINT)
        assert ends_with(job) == (130, "", "")
        inspector.wait_for(path, 1)


def test_the_command_inherits_the_same_signals_from_both_programs(calls: Calls, path: str) -> None:
    signals = ["run", path, "grep", "^Sig[BI]", "/proc/self/status"]
    module = ends_with(calls.module(*signals))
    assert module == ends_with(calls.program(*signals))
    assert "SigIgn" in module[1]


def names_of_descendants(pid: int) -> list[str]:
    names = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        names += [Path(f"/proc/{child}/comm").read_text().strip(), *names_of_descendants(int(child))]
    return names


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_closed_standard_stream_costs_no_signal(calls: Calls, path: str, inspector: Inspector, closed: int) -> None:
    # The interpreter leaves the descriptor closed, so that a file of the command could get its number.
    command = [sys.executable, "-m", "zklock", "run", path, "sleep", "60"]
    job = calls.start(["sh", "-c", f'exec "$@" {closed}>&-', "sh", *command])
    inspector.wait_for(path, 1)
    wait_until(lambda: names_of_descendants(job.pid).count("sleep") == 1)
    job.terminate()
    assert ends_with(job)[0] == 143


def unit() -> configparser.SectionProxy:
    """Return the part [Service] of the systemd unit."""
    parser = configparser.ConfigParser(interpolation=None, comment_prefixes="#")
    parser.optionxform = str
    parser.read(EXAMPLES / "scheduler.service")
    return parser["Service"]


def job(words: list[str], own: str, path: str, *replacement: str) -> list[str]:
    """Return the arguments of a call in an example, with the path and the command of the test."""
    assert Path(words[0]).name == "zklock"
    at = words.index("--")
    assert words[at - 1] == own
    return [*words[1 : at - 1], path, "--", *replacement]


@pytest.fixture
def managers() -> Iterator[list[tuple[str, socket.socket]]]:
    """Two sockets like those of a service manager, each with its name. A socket that a failed test left open would fail
    a later test.
    """
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(2):
            # The path of a socket has at most 107 bytes, and a temporary directory may be longer.
            name = f"zklock-{uuid.uuid4()}"
            manager = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            manager.bind(f"\0{name}")
            manager.settimeout(LIMIT)
            made.append((f"@{name}", manager))
        yield made


def test_the_unit_is_ready_on_one_host_and_then_on_the_next(
    calls: Calls, path: str, managers: list[tuple[str, socket.socket]]
) -> None:
    arguments = job(shlex.split(unit()["ExecStart"]), "/services/scheduler", path, "sleep", "60")
    hosts = []
    for number, (name, manager) in enumerate(managers):
        host = calls.program(*arguments, NOTIFY_SOCKET=name)
        hosts.append((host, manager))
        assert manager.recv(1000).decode() == f"STATUS=waiting for {path}"
        if number == 0:
            assert manager.recv(1000).decode().startswith("READY=1")
    (first, first_manager), (second, second_manager) = hosts
    second_manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        second_manager.recv(1000)
    first.terminate()
    assert (first_manager.recv(1000), first.wait(60)) == (b"STOPPING=1", 143)
    second_manager.settimeout(LIMIT)
    assert second_manager.recv(1000).decode().startswith("READY=1")
    second.terminate()
    assert second.wait(60) == 143


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="this machine has no systemd")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = (EXAMPLES / "scheduler.service").read_text()
    for program in ["/usr/bin/zklock", "/usr/local/bin/scheduler"]:
        assert program in text
        text = text.replace(program, "/bin/true")  # systemd refuses a program that does not exist.
    (tmp_path / "scheduler.service").write_text(text)
    verify = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "scheduler.service")]
    said = subprocess.run(verify, capture_output=True, text=True, timeout=60, check=False)
    own = [line for line in said.stderr.splitlines() if "scheduler.service" in line]
    assert (said.returncode, own) == (0, []), said.stderr


def test_the_cron_job_runs_once_and_again_if_it_failed(calls: Calls, path: str, tmp_path: Path) -> None:
    (line,) = [line for line in (EXAMPLES / "backup.cron").read_text().splitlines() if line[:1].isdigit()]
    minute, hour, *days, user, call = line.split(maxsplit=6)
    assert (minute, hour, days, user) == ("0", "3", ["*", "*", "*"], "root")
    log = tmp_path / "log"
    results = []
    for script in [f"echo failed >>'{log}'; exit 1", f"echo ran >>'{log}'", f"echo again >>'{log}'"]:
        arguments = job(shlex.split(call), "/jobs/backup", path, "sh", "-c", script)
        results.append(ends_with(calls.program(*arguments)))
    assert results == [(1, "", ""), (0, "", ""), (0, "", "")]
    assert log.read_text() == "failed\nran\n"


def test_the_pods_migrate_one_after_the_other(calls: Calls, path: str, inspector: Inspector, tmp_path: Path) -> None:
    pod = yaml.safe_load((EXAMPLES / "migration.yaml").read_text())["spec"]["template"]["spec"]
    (container,) = pod["initContainers"]
    names = {variable["name"] for variable in container["env"]}
    assert names == {"ZKLOCK_SERVERS", "ZKLOCK_TLS_CA", "ZKLOCK_AUTH_DIGEST_FILE"}
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}
    go, log = tmp_path / "go", tmp_path / "log"
    script = f"echo begin >>'{log}'; until test -e '{go}'; do sleep 0.05; done; echo end >>'{log}'"
    arguments = job(container["command"], "/shop/migration", path, "sh", "-c", script)
    pods = [calls.program(*arguments) for _ in range(3)]
    wait_until(lambda: len(inspector.nodes(path)) == 3)
    go.touch()
    assert [ends_with(pod) for pod in pods] == [(0, "", "")] * 3
    assert log.read_text() == "begin\nend\n" * 3
