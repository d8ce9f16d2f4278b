"""Where in a reader's program something happened, as text: 'line 3 of f: `comm.send(x, 1)`'."""

import linecache
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType

from dpbook.core import PACKAGE

_ROOM = str(PACKAGE / "collectives")


_told: ContextVar[str] = ContextVar("line of a program that runs in another process", default="")


@contextmanager
def told_line(line: str) -> Iterator[None]:
    """Meanwhile a call is made for a program in another process, where it stands in ``line``."""
    token = _told.set(line)
    try:
        yield
    finally:
        _told.reset(token)


def line_of_caller(depth: int) -> str:
    """The line that is running ``depth`` calls above the caller of this function."""
    return _told.get() or _describe(sys._getframe(depth + 1))


def line_of_error(error: BaseException) -> str:
    """The innermost line that raised, leaving out the frames of this room; of another process's error its ``line``."""
    if line := getattr(error, "line", ""):
        return str(line)
    frames = [(f, n) for f, n in traceback.walk_tb(error.__traceback__) if not f.f_code.co_filename.startswith(_ROOM)]
    return _describe(*frames[-1]) if frames else "in the call of the program"


def _describe(frame: FrameType, number: int | None = None) -> str:
    number = number or frame.f_lineno
    source = linecache.getline(frame.f_code.co_filename, number, frame.f_globals).strip()
    return f"line {number} of {frame.f_code.co_name}" + (f": `{source}`" if source else "")
