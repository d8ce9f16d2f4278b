"""A process that does not outlive the one that started it, and that ends without a crash."""

import atexit
import os
import signal
import sys
import threading
from types import TracebackType
from typing import NoReturn

PARENT = "DPBOOK_PARENT"
"""The environment variable with the id of the process that started this one."""

_PR_SET_PDEATHSIG = 1


def end_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Ask Linux to send this process a signal when its parent ends, even if that is killed; do nothing elsewhere.

    Linux sends no signal if the parent has ended before this call. The process then has another parent, and exits here.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        parent = str(os.getppid())
        if os.environ.get(PARENT, parent) != parent:
            sys.exit("the process that started this one has ended")
        os.environ[PARENT] = str(os.getpid())


def exit_without_teardown(status: int) -> NoReturn:
    """End the process after its exit handlers have run, without taking the interpreter down.

    gloo's threads may still hold the last tensors. If they release them when the interpreter is gone, the process
    aborts ("terminate called without an active exception"): about once in fifty starts with torch 2.13.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # ends pools, and waits for threads that are no daemons
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def print_error_and_exit(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> NoReturn:
    """Print an error and end the process at once, without exit handlers that wait for other ranks.

    It has the parameters of `sys.excepthook`.
    """
    sys.stdout.flush()
    sys.__excepthook__(kind, error, trace)
    os._exit(1)
