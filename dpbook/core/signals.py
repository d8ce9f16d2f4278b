"""Temporary handlers of the signals that end a launch."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

LAUNCH_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Signals that end a launch; at SIGUSR1 its ranks may save first."""


@contextmanager
def handling_signals(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Call ``handler`` for each of `LAUNCH_SIGNALS`, except for a SIGHUP that is ignored, as under nohup."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    numbers = [number for number in LAUNCH_SIGNALS if number != signal.SIGHUP or not ignored]
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)
