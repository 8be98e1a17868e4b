#!/usr/bin/env python3
"""Acquire a lock repeatedly, and serve the metrics of the client to Prometheus: metrics.py SERVERS PATH [PORT]

The program prints the address of its metrics, and runs until the user presses Ctrl-C. Without PORT, the program uses a
free port.
"""

import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import zklock


def page_of(client: zklock.Client) -> type[BaseHTTPRequestHandler]:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = client.prometheus({"app": "example"}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            """Do not log requests."""

    return Page


def main(servers: str, path: str, port: str = "0") -> None:
    with zklock.Client(servers) as client, ThreadingHTTPServer(("127.0.0.1", int(port)), page_of(client)) as server:
        print(f"http://127.0.0.1:{server.server_port}/metrics", flush=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        lock = client.mutex(path)
        try:
            while True:
                if lock.acquire(timeout=5.0):
                    time.sleep(0.05)  # the work, which only one program does at a time
                    lock.release()
        finally:
            server.shutdown()


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit("usage: metrics.py SERVERS PATH [PORT]")
    try:
        main(*sys.argv[1:])
    except zklock.Error as error:
        sys.exit(f"metrics.py: {error}")
    except KeyboardInterrupt:
        pass
