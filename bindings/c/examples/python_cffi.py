"""Use the C library from Python without the Python package, with cffi: python_cffi.py SERVERS PATH NAME ROUNDS

    make build && cd bindings/c/examples
    export ZKLOCK_LIBRARY=../../../target/release/libzklock.so ZKLOCK_HEADER=../../../include/zklock_ffi.h
    python3 python_cffi.py localhost:2181 /locks/demo alice 3

cffi reads zklock_ffi.h, which has no preprocessor directives. The example needs no compiler, and can call every
function. (Python programs should use the package instead: it has exceptions, `with` blocks and Ctrl-C.)
"""

import os
import sys
import time

import cffi


def main():
    if len(sys.argv) != 5:
        sys.exit(f"usage: {sys.argv[0]} SERVERS PATH NAME ROUNDS")
    _, servers, path, name, rounds = sys.argv
    ffi = cffi.FFI()
    with open(os.environ.get("ZKLOCK_HEADER", "/usr/include/zklock_ffi.h"), encoding="utf-8") as header:
        ffi.cdef(header.read())
    zkl = ffi.dlopen(os.environ.get("ZKLOCK_LIBRARY", "libzklock.so"))

    def check(status):
        if status != zkl.ZKL_OK:
            said = [ffi.string(text).decode() for text in (zkl.zkl_strerror(status), zkl.zkl_last_error_message())]
            sys.exit(": ".join(said))

    lost = []

    @ffi.callback("zkl_event_cb")
    def on_event(_, event):
        if event.kind == zkl.ZKL_EVENT_LOCK and event.state == zkl.ZKL_LOCK_LOST:
            lost.append(event.token)

    client, lock, token = ffi.new("zkl_client **"), ffi.new("zkl_lock **"), ffi.new("int64_t *")
    check(zkl.zkl_client_new(servers.encode(), ffi.NULL, client))
    check(zkl.zkl_client_set_event_callback(client[0], on_event, ffi.NULL, ffi.NULL))
    check(zkl.zkl_mutex_new(client[0], path.encode(), lock))
    for _ in range(int(rounds)):
        check(zkl.zkl_acquire_timeout(lock[0], 30_000))
        check(zkl.zkl_fencing_token(lock[0], token))
        print(name, "acquired TOKEN", token[0], time.monotonic_ns(), flush=True)
        time.sleep(0.05)
        if token[0] in lost:
            sys.exit("the lock was lost")
        print(name, "released TOKEN", token[0], time.monotonic_ns(), flush=True)
        check(zkl.zkl_release(lock[0]))
    zkl.zkl_lock_free(lock[0])
    # zkl_client_free waits for the last callback, so on_event must exist until then.
    zkl.zkl_client_free(client[0])


if __name__ == "__main__":
    main()
