"""kazoo's lock as a driver of the benchmark: python kazoo_lock.py."""

import driving
from kazoo.client import KazooClient


class Client:
    def __init__(self, address: str) -> None:
        self.client = KazooClient(address, timeout=60.0)
        self.client.start()

    def lock(self, path: str) -> driving.Lock:
        return self.client.Lock(path, "127.0.0.1")

    def close(self) -> None:
        self.client.stop()
        self.client.close()


driving.serve(Client)
