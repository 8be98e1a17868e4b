"""The command zklock: ``python -m zklock`` runs the same code as the program ``zklock``."""

import signal
import sys

from zklock._zklock import _main


def main() -> int:
    """Run the command with the arguments of this process, and return its exit code."""
    # The command handles SIGINT itself, so remove the handler of the interpreter. If the interpreter started with
    # SIGINT ignored, the interpreter has set no handler, and SIGINT stays ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # The interpreter ignores SIGXFSZ, and a child process would inherit the ignored signal.
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    return _main(["zklock", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
