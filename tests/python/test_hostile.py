"""Servers that give out a session and then talk nonsense: whoever asks gets ConnectionLost in time."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

import zklock

GREETING = struct.pack(">iiiqi16s?", 37, 0, 3000, 77, 16, b"", False)
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
def liar(request: pytest.FixtureRequest) -> Iterator[str]:
    over = threading.Event()

    def lie(connection: socket.socket) -> None:
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
            threading.Thread(target=lie, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        over.set()
        listener.shutdown(socket.SHUT_RDWR)


def test_who_asks_a_liar_hears_of_it_in_time(liar: str) -> None:
    with zklock.Client(liar, session_timeout=3) as client:
        began = time.monotonic()
        with pytest.raises(zklock.ConnectionLost) as failure:
            client.mutex("/lied").acquire(timeout=0.5)
        assert 0.5 <= time.monotonic() - began < 2
        assert liar in str(failure.value)
        assert not client.mutex("/lied").is_held
