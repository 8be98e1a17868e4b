"""A real ZooKeeper server for tests."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
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
maxSessionTimeout={max_session_timeout}
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=*
"""
JAVA = [
    "java",
    "-Xmx128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    # The server runs for a short time: compile a method only after many calls.
    "-XX:CompileThresholdScaling=5",
    "-XX:-UsePerfData",
    "-Dzookeeper.forceSync=no",
]
MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"

# The shell kills the server when its input ends. The tests own that input, so the server ends even if they crash. Its
# session has a low weight, so a server that starts takes little time from the tests.
SUPERVISOR = '{ echo 5 >/proc/self/autogroup; } 2>/dev/null; "$@" </dev/null >&2 & echo $!; read -r _; kill -9 $!'


class ZooKeeper:
    """One server on the loopback interface. It runs during the ``with`` block."""

    def __init__(self, directory: Path, max_session_timeout: int = 60000, settings: str = "") -> None:
        self._directory = directory
        self._max_session_timeout = max_session_timeout  # in milliseconds
        self._settings = settings  # further lines of the configuration
        self._reservation = reserved_port()

    def __enter__(self) -> ZooKeeper:
        port = self._reservation.__enter__()
        self.address = f"127.0.0.1:{port}"
        configuration = self._directory / "zoo.cfg"
        configuration.write_text(
            CONFIGURATION.format(port=port, directory=self._directory, max_session_timeout=self._max_session_timeout)
            + self._settings
        )
        command = ["sh", "-c", SUPERVISOR, "supervisor", *JAVA, "-cp", class_path(), MAIN, str(configuration)]
        with (self._directory / "server.log").open("wb") as log:
            self._supervisor = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # Linux divides the processors between sessions. With a separate session, the server answers in time
                # even if many tests run in the session of pytest.
                start_new_session=True,
            )
        assert self._supervisor.stdout is not None
        self.pid = int(self._supervisor.stdout.readline())
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
        """Return the number of watches of all sessions."""
        return int(self._ask("wchs").rpartition(":")[2])

    def sessions(self) -> set[str]:
        """Return the ids of the sessions that have a connection."""
        return set(re.findall("sid=(0x[0-9a-f]+)", self._ask("cons")))

    def _ask(self, word: str) -> str:
        """Return the answer to a four-letter word. Fails if the server does not answer."""
        return send_four_letter_word(int(self.address.rpartition(":")[2]), word.encode(), 60.0).decode()

    def pause(self) -> None:
        """Stop all answers. The connections stay open."""
        os.kill(self.pid, signal.SIGSTOP)
        # A thread stops only when it notices the signal, and may answer until then.
        while any(self._runs(thread) for thread in Path(f"/proc/{self.pid}/task").iterdir()):
            time.sleep(0.001)

    def resume(self) -> None:
        """Continue after `pause()`."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill the server. Its connections end at once, and its port is closed."""
        self._supervisor.communicate()  # ends its input

    @staticmethod
    def _runs(thread: Path) -> bool:
        try:
            return (thread / "stat").read_text().rpartition(")")[2].split()[0] != "T"
        except FileNotFoundError:
            return False


@contextmanager
def reserved_port() -> Iterator[int]:
    """Reserve a free port. No other process gets it, but a server that sets SO_REUSEADDR may listen on it."""
    with socket.socket() as reservation:
        reservation.bind(("127.0.0.1", 0))
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        yield reservation.getsockname()[1]


def class_path() -> str:
    directory = os.environ.get("TEST_ZKLOCK_ZOOKEEPER_JARS", "/usr/share/java")
    if directory != "/usr/share/java":
        return f"{directory}/*"
    assert Path(directory, "zookeeper.jar").exists(), "the ZooKeeper server is missing: make setup"
    # TLS needs netty-codec.jar, which the manifest of zookeeper.jar does not name.
    return f"{directory}/zookeeper.jar:{directory}/netty-codec.jar:{directory}/slf4j-simple.jar"


def wait_until_it_serves(server: subprocess.Popen[bytes], port: int, directory: Path) -> None:
    deadline = time.monotonic() + 60
    while not _serves(port):
        log = (directory / "server.log").read_text(errors="replace")
        is_late = server.poll() is not None or time.monotonic() > deadline
        assert not is_late, f"the server did not start:\n{log[-2000:]}"
        time.sleep(0.01)


def _serves(port: int) -> bool:
    # A server that listens but does not serve yet may never answer this connection. The caller asks again on a new one.
    try:
        return b"Mode:" in send_four_letter_word(port, b"srvr", 1.0)
    except OSError:
        return False


def send_four_letter_word(port: int, word: bytes, timeout: float) -> bytes:
    """Return the answer. Raises OSError if the server does not answer within ``timeout`` seconds."""
    with socket.create_connection(("127.0.0.1", port), timeout) as connection:
        connection.sendall(word)
        return connection.makefile("rb").read()


def main() -> None:
    """Run a server for tests in other languages: print its address and process id, and stop it when the input ends."""
    with tempfile.TemporaryDirectory() as directory, ZooKeeper(Path(directory)) as server:
        print(server.address, server.pid, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
