"""A real ZooKeeper server for tests."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

CLASSES = "/usr/share/java/zookeeper.jar"  # Debian's; its manifest names the jars that it needs
MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"

CONFIGURATION = """
clientPortAddress=127.0.0.1
clientPort={port}
dataDir={directory}/data
tickTime=200
minSessionTimeout=400
maxSessionTimeout=60000
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=srvr
"""

# Whatever becomes of the tests, the server ends with them: the shell waits for the end of its input, which is theirs.
SUPERVISOR = '"$@" </dev/null & echo $!; read -r _; kill -9 $!'


class ZooKeeper:
    """One server on the loopback interface; stops at the end of its ``with`` block."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port: int = probe.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        configuration = directory / "zoo.cfg"
        configuration.write_text(CONFIGURATION.format(port=self.port, directory=directory))
        java = [
            "java",
            "-Xmx128m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            CLASSES,
            MAIN,
            str(configuration),
        ]
        with (directory / "log").open("wb") as log:
            self.supervisor = subprocess.Popen(
                ["sh", "-c", SUPERVISOR, "supervisor", *java], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        assert self.supervisor.stdout is not None
        self.pid = int(self.supervisor.stdout.readline())

    def __enter__(self) -> ZooKeeper:
        try:
            self._wait_until_it_serves()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    def freeze(self) -> None:
        """Goes on living, but answers nobody, until it is thawed."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.supervisor.communicate()  # closes its input

    def _wait_until_it_serves(self) -> None:
        deadline = time.monotonic() + 30
        while not self._serves():
            if time.monotonic() > deadline or self.supervisor.poll() is not None:
                raise RuntimeError(f"ZooKeeper does not start: {(self.directory / 'log').read_text()}")
            time.sleep(0.05)

    def _serves(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"srvr")
                return connection.recv(4096).startswith(b"Zookeeper version")
        except OSError:
            return False
