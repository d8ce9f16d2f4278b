"""Tracebacks from a script's first line on, also of an error that has not come so far up."""

import runpy
from types import FrameType, TracebackType

from dpbook.core import PACKAGE

_STARTERS = (str(PACKAGE / "ranks" / "guarding" / "guard.py"), runpy.__file__, "<frozen runpy>")


def way_to(frame: FrameType | None, onward: TracebackType | None = None) -> TracebackType | None:
    """The traceback of an error raised in ``frame``; ``onward``: of one that came to what ``frame`` had called."""
    trace = onward
    while frame:
        trace = TracebackType(trace, frame, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return trace


def of_the_script(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames that started the script."""
    while trace and trace.tb_frame.f_code.co_filename in _STARTERS:
        trace = trace.tb_next
    return trace
