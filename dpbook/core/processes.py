"""A process that does not outlive the one that started it, and that ends without a crash."""

import atexit
import os
import signal
import sys
import threading
from types import TracebackType
from typing import NoReturn

PARENT = "DPBOOK_PARENT"
"""The variable in which a process tells those that it starts its id."""

_PR_SET_PDEATHSIG = 1


def end_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Ask Linux to send this process a signal when its parent ends, even if that was killed; elsewhere nothing happens.

    Linux does not tell of a parent that has ended before it was asked; then this process has another parent by now.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        parent = str(os.getppid())
        if os.environ.get(PARENT, parent) != parent:
            sys.exit("the process that started this one has ended")
        os.environ[PARENT] = str(os.getpid())


def leave(status: int) -> NoReturn:
    """End the process without taking the interpreter down: what a program left to do at its end is done first.

    gloo's threads may still hold the last tensors. Where the interpreter is gone when they let go of them, the process
    aborts ("terminate called without an active exception"): about once in fifty starts with torch 2.13.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # ends pools, and waits for threads that are no daemons
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def tell_and_leave(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> NoReturn:
    """For `sys.excepthook`: print the error and end the process at once, whatever would wait for other ranks."""
    sys.stdout.flush()
    sys.__excepthook__(kind, error, trace)
    os._exit(1)
