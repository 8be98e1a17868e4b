"""Servers that open a session and then send nonsense: every call raises ConnectionLost in time."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

import zklock

GREETING = struct.pack(">iiiqi16s?", 37, 0, 20000, 77, 16, b"", False)
PING = struct.pack(">iiqi", 16, -2, 0, 0)
NONSENSE = {
    "nothing": b"",
    "negative": struct.pack(">i", -5) * 100,
    "endless": struct.pack(">i", 2**31 - 1) + b"\0" * 100,
    "another-answer": struct.pack(">iiqi", 16, 4711, 1, 0),
    "pings": PING * 100,
    "event": struct.pack(">iiqiiii4s", 32, -1, -1, 0, 1, 3, 4, b"/\xff\0a"),
    "html": b"<html><body>400 Bad Request</body></html>" * 100,
}


@pytest.fixture(params=NONSENSE)
def faulty_server(request: pytest.FixtureRequest) -> Iterator[str]:
    over = threading.Event()

    def send_garbage(connection: socket.socket) -> None:
        with connection:
            try:
                connection.recv(49)
                connection.sendall(GREETING)
                while not over.wait(0.02):
                    connection.sendall(NONSENSE[request.param])
            except OSError:
                pass

    def accept() -> None:
        while not over.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=send_garbage, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        over.set()
        listener.shutdown(socket.SHUT_RDWR)


def test_garbage_replies_raise_connection_lost_in_time(faulty_server: str) -> None:
    with zklock.Client(faulty_server, session_timeout=20) as client:
        # If the client has just connected again at the deadline, the acquire returns False. The test then tries again.
        deadline = time.monotonic() + 60
        error: zklock.ConnectionLost | None = None
        while error is None:
            began = time.monotonic()
            assert began < deadline, "the acquire returned False every time"
            try:
                assert client.mutex("/lied").acquire(timeout=0.5) is False
            except zklock.ConnectionLost as raised:
                error = raised
            assert 0.5 <= time.monotonic() - began < 5
        assert faulty_server in str(error)
        assert not client.mutex("/lied").is_held
