"""Signals from outside, answered for a while."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""By which a launch is ended; at SIGUSR1 its ranks may save first."""


@contextmanager
def answered(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Have ``handler`` called for each of `ENDING` that comes; for SIGHUP not where it is ignored, as under nohup."""
    heeded = [each for each in ENDING if each != signal.SIGHUP or signal.getsignal(each) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heeded}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)
