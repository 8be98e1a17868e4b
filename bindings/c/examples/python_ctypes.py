"""Use the C library from Python without the Python package, with ctypes: python_ctypes.py SERVERS PATH NAME ROUNDS

    make build && cd bindings/c/examples
    ZKLOCK_LIBRARY=../../../target/release/libzklock.so python3 python_ctypes.py localhost:2181 /locks/demo alice 3

Any language with a foreign function interface can use the library in this way. The header zklock.h declares the types
of all functions. (Python programs should use the package instead: it has exceptions, `with` blocks and Ctrl-C.)
"""

import ctypes
import os
import sys
import time

HANDLE = ctypes.c_void_p
TEXT = ctypes.c_char_p
STATUS = ctypes.c_int32

# The functions that this program uses: the type of the result, and the types of the parameters.
FUNCTIONS = {
    "zkl_strerror": (TEXT, STATUS),
    "zkl_last_error_message": (TEXT,),
    "zkl_client_new": (STATUS, TEXT, HANDLE, ctypes.POINTER(HANDLE)),
    "zkl_client_free": (None, HANDLE),
    "zkl_mutex_new": (STATUS, HANDLE, TEXT, ctypes.POINTER(HANDLE)),
    "zkl_lock_free": (None, HANDLE),
    "zkl_acquire_timeout": (STATUS, HANDLE, ctypes.c_int64),
    "zkl_release": (STATUS, HANDLE),
    "zkl_fencing_token": (STATUS, HANDLE, ctypes.POINTER(ctypes.c_int64)),
}


def load():
    """Load the library and set the types of its functions. Without the types, ctypes would cut handles to 32 bits."""
    library = ctypes.CDLL(os.environ.get("ZKLOCK_LIBRARY", "libzklock.so"))
    for name, (gives, *takes) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = gives, takes
    return library


def main():
    if len(sys.argv) != 5:
        sys.exit(f"usage: {sys.argv[0]} SERVERS PATH NAME ROUNDS")
    _, servers, path, name, rounds = sys.argv
    zkl = load()

    def check(status):
        if status != 0:
            sys.exit(f"{zkl.zkl_strerror(status).decode()}: {zkl.zkl_last_error_message().decode()}")

    client, lock, token = HANDLE(), HANDLE(), ctypes.c_int64()
    check(zkl.zkl_client_new(servers.encode(), None, ctypes.byref(client)))
    check(zkl.zkl_mutex_new(client, path.encode(), ctypes.byref(lock)))
    for _ in range(int(rounds)):
        check(zkl.zkl_acquire_timeout(lock, 30_000))
        check(zkl.zkl_fencing_token(lock, ctypes.byref(token)))
        print(name, "acquired TOKEN", token.value, time.monotonic_ns(), flush=True)
        time.sleep(0.05)
        print(name, "released TOKEN", token.value, time.monotonic_ns(), flush=True)
        check(zkl.zkl_release(lock))
    zkl.zkl_lock_free(lock)
    zkl.zkl_client_free(client)


if __name__ == "__main__":
    main()
