"""Read include/zklock_ffi.h with cffi, and hold a lock with operations: hold.py HEADER LIBRARY SERVERS PATH"""

import pathlib
import re
import sys

import cffi

OWNER = 7


def main():
    header, library, servers, path = sys.argv[1:]
    declarations = pathlib.Path(header).read_text(encoding="utf-8")
    ffi = cffi.FFI()
    ffi.cdef(declarations)
    zkl = ffi.dlopen(library)
    for function in re.findall(r"^(?!typedef)\S.*?(zkl_\w+)\(.*\);$", declarations, re.MULTILINE):
        getattr(zkl, function)

    def check(holds, what):
        if not holds:
            sys.exit(f"{what}; last error: {ffi.string(zkl.zkl_last_error_message()).decode()}")

    def output(kind, function, *arguments):
        """Call a function with a pointer as its last argument, and return what the function writes."""
        place = ffi.new(f"{kind} *")
        check(getattr(zkl, function)(*arguments, place) == zkl.ZKL_OK, function)
        return place[0]

    def run(function, *arguments):
        """Start an operation with a function, and wait until the operation has ended with success."""
        op = output("zkl_op *", function, *arguments)
        check(zkl.zkl_op_wait(op, 20_000) == zkl.ZKL_OK, f"the operation of {function}")
        return op

    check(zkl.zkl_version_number() == zkl.ZKL_VERSION_NUMBER, "the version")
    op = run("zkl_client_start", servers.encode(), ffi.NULL)
    client = output("zkl_client *", "zkl_op_client", op)
    zkl.zkl_op_free(op)
    lock = output("zkl_lock *", "zkl_mutex_new", client, path.encode())
    op = run("zkl_acquire_start", lock, OWNER, 20_000)
    hold = output("zkl_hold *", "zkl_op_hold", op)
    zkl.zkl_op_free(op)
    check(zkl.zkl_hold_is_held(hold) == 1, "the lock is not held")
    op = run("zkl_participants_start", lock)
    participant = output("const zkl_participant *", "zkl_op_participant", op, 0)
    check(ffi.string(participant.node_path).startswith(path.encode()) and participant.holds == 1, "another participant")
    zkl.zkl_op_free(op)
    zkl.zkl_op_free(run("zkl_hold_release_start", hold))
    zkl.zkl_lock_free(lock)
    zkl.zkl_op_free(run("zkl_client_close_start", client))
    zkl.zkl_client_free(client)
    print("held")


if __name__ == "__main__":
    main()
