"""The command zklock: ``python -m zklock`` runs the same code as the program ``zklock``."""

import signal
import sys

from zklock._zklock import _main


def main() -> int:
    """Run the command with the arguments of this process, and return its exit code."""
    # The command reads signals itself, and a child inherits the signals that the interpreter ignores. If the caller
    # ignores SIGINT, the interpreter has not set a handler.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    return _main(["zklock", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
