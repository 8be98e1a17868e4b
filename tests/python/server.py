"""A real ZooKeeper server for tests."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

CONFIGURATION = """
clientPortAddress=127.0.0.1
clientPort={port}
dataDir={directory}/data
tickTime=200
minSessionTimeout=400
maxSessionTimeout=60000
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=*
"""
JAVA = [
    "java",
    "-Xmx128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Dzookeeper.forceSync=no",
]
MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"

# Whatever becomes of the tests, the server ends with them: the shell waits for the end of its input, which is theirs.
SUPERVISOR = '"$@" </dev/null >&2 & echo $!; read -r _; kill -9 $!'


class ZooKeeper:
    """One server on the loopback interface; runs for the length of its ``with`` block."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reservation = reserved_port()

    def __enter__(self) -> ZooKeeper:
        port = self._reservation.__enter__()
        self.address = f"127.0.0.1:{port}"
        configuration = self._directory / "zoo.cfg"
        configuration.write_text(CONFIGURATION.format(port=port, directory=self._directory))
        command = ["sh", "-c", SUPERVISOR, "supervisor", *JAVA, "-cp", class_path(), MAIN, str(configuration)]
        with (self._directory / "server.log").open("wb") as log:
            self._supervisor = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        assert self._supervisor.stdout is not None
        self._pid = int(self._supervisor.stdout.readline())
        try:
            wait_until_it_serves(self._supervisor, port, self._directory)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        self._reservation.__exit__(None, None, None)

    def watches(self) -> int:
        """How many it keeps, over all sessions."""
        return int(self._ask("wchs").rpartition(":")[2])

    def sessions(self) -> int:
        """How many of its connections have one."""
        return self._ask("cons").count("sid=0x")

    def _ask(self, word: str) -> str:
        return ask(int(self.address.rpartition(":")[2]), word.encode()).decode()

    def freeze(self) -> None:
        """From now on it answers nobody, but its connections stay."""
        os.kill(self._pid, signal.SIGSTOP)
        # Each thread stops when it notices; until then it may answer.
        while any(self._runs(thread) for thread in Path(f"/proc/{self._pid}/task").iterdir()):
            time.sleep(0.001)

    def kill(self) -> None:
        """Its connections end at once, and nobody listens any more."""
        self._supervisor.communicate()  # ends its input

    @staticmethod
    def _runs(thread: Path) -> bool:
        try:
            return (thread / "stat").read_text().rpartition(")")[2].split()[0] != "T"
        except FileNotFoundError:
            return False


@contextmanager
def reserved_port() -> Iterator[int]:
    """A free port that nobody else gets, while a server that sets SO_REUSEADDR may listen on it."""
    with socket.socket() as reservation:
        reservation.bind(("127.0.0.1", 0))
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        yield reservation.getsockname()[1]


def class_path() -> str:
    directory = os.environ.get("ZKLOCK_TEST_ZOOKEEPER_JARS", "/usr/share/java")
    if directory != "/usr/share/java":
        return f"{directory}/*"
    assert Path(directory, "zookeeper.jar").exists(), "the ZooKeeper server is missing: make setup"
    return f"{directory}/zookeeper.jar:{directory}/slf4j-simple.jar"


def wait_until_it_serves(server: subprocess.Popen[bytes], port: int, directory: Path) -> None:
    deadline = time.monotonic() + 60
    while b"Mode:" not in ask(port, b"srvr"):
        log = (directory / "server.log").read_text(errors="replace")
        is_late = server.poll() is not None or time.monotonic() > deadline
        assert not is_late, f"the server did not start:\n{log[-2000:]}"
        time.sleep(0.01)


def ask(port: int, word: bytes) -> bytes:
    # A server that listens but does not serve yet may never answer the connection: the caller asks again, on a new one.
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=0.25) as connection:
            connection.sendall(word)
            return connection.makefile("rb").read()
    except OSError:
        return b""
