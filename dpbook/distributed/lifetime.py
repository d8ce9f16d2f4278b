"""A process that does not outlive the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PARENT = "DPBOOK_PARENT"
"""The variable in which a process tells those that it starts its id."""

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends, even if that was killed; elsewhere nothing happens.

    Linux does not tell of a parent that has ended before it was asked; then this process has another parent by now.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        parent = str(os.getppid())
        if os.environ.get(PARENT, parent) != parent:
            sys.exit("the process that started this one has ended")
        os.environ[PARENT] = str(os.getpid())
