"""Errors told in the learner's terms: what was raised, and on which line of his own code."""

import linecache
import os
import re
import site
import sys
import sysconfig
import traceback
from collections.abc import Iterator
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


class _Frame(NamedTuple):
    file: str
    line: int
    function: str


_FRAME = re.compile(r'File "([^"]*)", line (\d+) in (.*)')
"""A frame as `faulthandler` writes it."""


class Blame(NamedTuple):
    """An error in words, and its cause: the same text for the same error raised at the same place by other input."""

    message: str
    cause: str


def blame(error: BaseException) -> Blame:
    """An error in one line: its type and message, and the last line of the learner's own code on its way.

    A deadlock has a line for each rank. Runs the error's own ``__str__``, so call this within a limit.
    """
    shown = as_lines if isinstance(error, Deadlock) else one_line
    message = shown(str.__str__(str(error)))
    said = f"{type(error).__name__}: {message}" if message else type(error).__name__
    place = next(filter(None, map(last_line, causes(error))), "")
    told = place.partition(" your code")[0] in message  # the error of a rank program quotes the line itself
    same = "" if isinstance(error, Deadlock) else place or message  # each rank of a deadlock stands on its own line
    return Blame(f"{said} ({place})" if place and not told else said, f"{type(error).__name__}: {same}")


def running_loop(stacks: str) -> str:
    """Return the loop in which the learner's code was, else its line, from what `faulthandler` wrote of all threads.

    Of loops in loops it is the outermost ``while``, or the outermost ``for`` if there is none: the line that was
    running differs from run to run.
    """
    frames = next(filter(None, map(_learners_stack, _threads(stacks))), [])
    for word in ("while", "for"):
        for frame in frames[::-1]:
            loops = [number for number, first in _around(frame) if first == word]
            if loops:
                return _place(frame._replace(line=loops[-1]))
    return _place(frames[0]) if frames else ""


def _learners_stack(thread: str) -> list[_Frame]:
    """Return the frames of the learner's code in one thread, the innermost first."""
    frames = [_Frame(file, int(line), function) for file, line, function in _FRAME.findall(thread)]
    return [frame for frame in frames if is_learners(frame.file)]


def _threads(stacks: str) -> list[str]:
    """Return the text of each thread, the one that was running first."""
    threads = re.split(r"^(?=(?:Current thread|Thread) )", stacks, flags=re.MULTILINE)
    return sorted(threads, key=lambda text: not text.startswith("Current"))


def _around(frame: _Frame) -> Iterator[tuple[int, str]]:
    """Yield the number and the first word of a line, and of those that it is indented below, up to its function."""
    margin = sys.maxsize
    for above in range(frame.line, 0, -1):
        line = linecache.getline(frame.file, above)
        indent, first = len(line) - len(line.lstrip()), re.match(r"\w+", line.lstrip())
        if first and indent < margin:
            if first[0] in ("def", "async"):
                return
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
    """Return the last line of the learner's own code on the way of an error, or ""."""
    frames = list(_learners_frames(error))
    return _place(frames[-1]) if frames else ""


def _learners_frames(error: BaseException) -> Iterator[_Frame]:
    """Yield the frames of the learner's code on the way of an error, the innermost last."""
    for frame, number in traceback.walk_tb(error.__traceback__):
        if is_learners(frame.f_code.co_filename):
            yield _Frame(frame.f_code.co_filename, number, frame.f_code.co_name)


def _place(frame: _Frame) -> str:
    source = one_line(linecache.getline(frame.file, frame.line), MAX_TEXT // 3)
    return f"line {frame.line} of your code, in {frame.function}" + (f": {source}" if source else "")
