"""Errors told in the learner's terms: what was raised, and on which line of his own code."""

import linecache
import os
import re
import site
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType
from typing import NamedTuple

from dpbook.classroom.tasks.text import MAX_TEXT, as_lines, one_line
from dpbook.core import PACKAGE, Deadlock

_OURS = tuple(
    {
        str(PACKAGE.resolve()) + os.sep,
        *(path + os.sep for path in map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))),
        *(path + os.sep for path in site.getsitepackages()),
        "<frozen ",
        "<__array_function__",
    }
)


def is_learners(filename: str) -> bool:
    """Whether code of this file is the learner's: a notebook cell or his own module, not dpbook or a library."""
    return not filename.startswith(_OURS)


class Blame(NamedTuple):
    """An error in words, and what it has in common with itself for another input: where it was raised."""

    said: str
    cause: str


def blame(error: BaseException) -> Blame:
    """An error in one line: its type and message, and the last line of the learner's own code on its way.

    A deadlock has a line for each rank. Runs the error's own ``__str__``, so call this behind `limited`.
    """
    shown = as_lines if isinstance(error, Deadlock) else one_line
    message = shown(str.__str__(str(error)))
    said = f"{type(error).__name__}: {message}" if message else type(error).__name__
    place = next(filter(None, map(last_line, causes(error))), "")
    told = place.partition(" your code")[0] in message  # the error of a rank program quotes the line itself
    same = "" if isinstance(error, Deadlock) else place or message  # each rank of a deadlock stands on its own line
    return Blame(f"{said} ({place})" if place and not told else said, f"{type(error).__name__}: {same}")


def running_loop(error: BaseException, threads: Sequence[tuple[FrameType, int]] = ()) -> str:
    """The loop in which an interruption, which ``error`` comes from, met the learner's own code, else the line.

    ``threads`` are frames of his own threads, the innermost last.

    Of loops in loops the outermost ``while``, or the outermost ``for`` if there is none: the line that was running
    differs from run to run.
    """
    frames = [frame for cause in causes(error) for frame in _learners_frames(cause)]
    frames += [(frame.f_code, number) for frame, number in threads]
    for word in ("while", "for"):
        for code, number in reversed(frames):
            loops = [above for above, first in _around(code, number) if first == word]
            if loops:
                return _place(code, loops[-1])
    return _place(*frames[-1]) if frames else ""


def _around(code: CodeType, number: int) -> Iterator[tuple[int, str]]:
    """A line and those that it is indented below, up to the function's first: the number of each and its first word."""
    margin = sys.maxsize
    for above in range(number, code.co_firstlineno - 1, -1):
        line = linecache.getline(code.co_filename, above)
        indent, first = len(line) - len(line.lstrip()), re.match(r"\w+", line.lstrip())
        if first and indent < margin:
            margin = indent
            yield above, first[0]


def is_stub(error: BaseException) -> bool:
    """Whether it is the learner's own code that says ``raise NotImplementedError``."""
    return any(isinstance(cause, NotImplementedError) and last_line(cause) for cause in causes(error))


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it was raised from: a rank's own error lies behind that of the run."""
    for _ in range(10):
        if error is None:
            return
        yield error
        error = error.__cause__


def last_line(error: BaseException) -> str:
    frames = list(_learners_frames(error))
    return _place(*frames[-1]) if frames else ""


def _learners_frames(error: BaseException) -> Iterator[tuple[CodeType, int]]:
    """Code and line number of each frame of the learner's on the error's way, the innermost last."""
    for frame, number in traceback.walk_tb(error.__traceback__):
        if is_learners(frame.f_code.co_filename):
            yield frame.f_code, number


def _place(code: CodeType, number: int) -> str:
    source = one_line(linecache.getline(code.co_filename, number), MAX_TEXT // 3)
    return f"line {number} of your code, in {code.co_name}" + (f": {source}" if source else "")
