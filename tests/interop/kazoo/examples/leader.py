"""Leads until the session is in doubt, stops the work, and tries again, with kazoo: leader.py SERVERS PATH NAME"""

import sys
import threading

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError


def main(servers: str, path: str, name: str) -> None:
    doubtful = threading.Event()
    client = KazooClient(servers)

    def on_state(state: str) -> None:
        if state != KazooState.CONNECTED:
            doubtful.set()

    client.add_listener(on_state)
    client.start()
    try:
        while True:
            doubtful.clear()
            lock = client.Lock(path)  # a lock that was lost cannot be acquired again
            try:
                lock.acquire()
                print(name, "leads", flush=True)
                while not doubtful.wait(0.2):
                    print(name, "works", flush=True)  # a step that is short compared with the session timeout
                print(name, "stops", flush=True)
                lock.release()
            except KazooException:
                pass  # the session ended, and the node with it
    finally:
        client.stop()
        client.close()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: leader.py SERVERS PATH NAME")
    try:
        main(*sys.argv[1:])
    except (KazooException, KazooTimeoutError) as error:
        sys.exit(f"leader.py: {error}")
