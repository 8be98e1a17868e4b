"""zklock from Python as a driver of the benchmark: python zklock_lock.py."""

import driving

import zklock


class Client:
    def __init__(self, address: str) -> None:
        self.client = zklock.Client(address, session_timeout=60.0)

    def lock(self, path: str) -> driving.Lock:
        return self.client.mutex(path)

    def close(self) -> None:
        self.client.close()


driving.serve(Client)
