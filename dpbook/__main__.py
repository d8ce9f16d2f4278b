"""The command ``dpbook``, also as ``python -m dpbook``, without installation."""

import signal
import sys


def main() -> int:
    """Load the command line, and run it.

    While it loads Ctrl-C ends the process: an error raised between two imports Python may drop, and go on.
    """
    before = signal.getsignal(signal.SIGINT)
    if before == signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from dpbook.app import main as command

    signal.signal(signal.SIGINT, before)
    return command()


if __name__ == "__main__":
    sys.exit(main())
