"""The common part of the drivers in Python. bench/src/driver.rs describes the commands and answers."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

MICROSECOND, SECOND = 1_000, 1_000_000_000


class Lock(Protocol):
    def acquire(self) -> object: ...
    def release(self) -> object: ...


class Client(Protocol):
    """A session with a separate lock for each worker."""

    def lock(self, path: str) -> Lock: ...
    def close(self) -> None: ...


def sleep_until(when: int) -> None:
    while (left := when - time.monotonic_ns()) > 0:
        time.sleep(left / SECOND)


def cycle(lock: Lock, hold: int) -> tuple[int, int, int, int]:
    called = time.monotonic_ns()
    lock.acquire()
    acquired = time.monotonic_ns()
    if hold:
        time.sleep(hold / SECOND)
    releasing = time.monotonic_ns()
    lock.release()
    return called, acquired, releasing, time.monotonic_ns()


class Driver:
    def __init__(self, connect: Callable[[str], Client]) -> None:
        self.connect = connect
        self.client: Client | None = None

    def prepare(self, address: str, base: str, workers: int, paths: int, hold: int) -> dict[str, Any]:
        self.hold = hold
        self.client = self.connect(address)
        self.locks = [self.client.lock(f"{base}-{index % paths}") for index in range(workers)]
        # Use each path once, so that everything that is created only once exists.
        for lock in self.locks[:paths]:
            cycle(lock, 0)
        return {}

    def go(self, start: int, end: int) -> dict[str, Any]:
        stamps: list[int] = []
        failures: list[str] = []

        def work(index: int, lock: Lock) -> None:
            own: list[int] = []
            sleep_until(start)
            try:
                while True:
                    one = cycle(lock, self.hold)
                    own += (index, *one)
                    if one[3] >= end:
                        break
            except Exception as error:
                failures.append(f"{type(error).__name__}: {error}")
            stamps.extend(own)

        threads = [threading.Thread(target=work, args=pair) for pair in enumerate(self.locks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.disconnect()
        return {"error": failures[0]} if failures else {"stamps": stamps}

    def disconnect(self) -> None:
        if self.client is not None:
            self.client.close()
            self.client = None

    def execute(self, words: list[str]) -> dict[str, Any]:
        match words:
            case ["prepare", address, base, workers, paths, hold]:
                return self.prepare(address, base, int(workers), int(paths), int(hold) * MICROSECOND)
            case ["go", start, end]:
                return self.go(int(start), int(end))
        return {"error": f"no such command: {words}"}


def serve(connect: Callable[[str], Client]) -> None:
    driver = Driver(connect)
    for line in sys.stdin:
        try:
            answer = driver.execute(line.split())
        except Exception as error:
            driver.disconnect()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    driver.disconnect()
