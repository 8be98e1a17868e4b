"""The command zklock: ``python -m zklock`` runs the same code as the program ``zklock``."""

import signal
import sys

from zklock._zklock import _main


def main() -> int:
    """Run the command with the arguments of this process, and return its exit code."""
    # Remove Python's handler for SIGINT, because the command handles SIGINT. If SIGINT was ignored when the interpreter
    # started, the interpreter has set no handler. SIGINT then stays ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Python ignores SIGXFSZ. Restore the default action, because otherwise a child process would also ignore the
    # signal.
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    return _main(["zklock", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
