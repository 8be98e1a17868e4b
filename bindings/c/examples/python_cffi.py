"""The C library from Python without the Python package, by cffi: python_cffi.py SERVERS PATH NAME ROUNDS

    make build && cd bindings/c/examples
    export ZKLOCK_LIBRARY=../../../target/release/libzklock.so ZKLOCK_HEADER=../../../include/zklock.h
    python3 python_cffi.py localhost:2181 /locks/demo alice 3

cffi reads zklock.h as it is, but for the preprocessor's lines: no compiler is needed, and every function is there.
(Python programs are better off with the package, which has exceptions, `with`, and Ctrl-C.)
"""

import os
import re
import sys
import time

import cffi


def read(header):
    """The declarations of a header of zklock's, and the numbers that it defines."""
    with open(header, encoding="utf-8") as file:
        text = file.read()
    numbers = re.findall(r"^#define (ZKL_\w+) \(?(-?\d+)\)?$", text, re.MULTILINE)
    text = re.sub(r"^#ifdef __cplusplus$.*?^#endif.*?$", "", text, flags=re.MULTILINE | re.DOTALL)
    # An array may be as long as one of these says.
    for name, number in numbers:
        text = re.sub(rf"\[{name}\]", f"[{number}]", text)
    return re.sub(r"^#.*$", "", text, flags=re.MULTILINE), {name: int(number) for name, number in numbers}


def main():
    if len(sys.argv) != 5:
        sys.exit(f"usage: {sys.argv[0]} SERVERS PATH NAME ROUNDS")
    _, servers, path, name, rounds = sys.argv
    declarations, numbers = read(os.environ.get("ZKLOCK_HEADER", "/usr/include/zklock.h"))
    ffi = cffi.FFI()
    ffi.cdef(declarations)
    zkl = ffi.dlopen(os.environ.get("ZKLOCK_LIBRARY", "libzklock.so"))

    def check(status):
        if status != numbers["ZKL_OK"]:
            said = [ffi.string(text).decode() for text in (zkl.zkl_strerror(status), zkl.zkl_last_error_message())]
            sys.exit(": ".join(said))

    lost = []

    @ffi.callback("zkl_event_cb")
    def on_event(_, event):
        if event.kind == numbers["ZKL_EVENT_LOCK"] and event.state == numbers["ZKL_LOCK_LOST"]:
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
            sys.exit("lost it: stop")
        print(name, "released TOKEN", token[0], time.monotonic_ns(), flush=True)
        check(zkl.zkl_release(lock[0]))
    zkl.zkl_lock_free(lock[0])
    # It waits for the last callback, so on_event has to live as long.
    zkl.zkl_client_free(client[0])


if __name__ == "__main__":
    main()
