"""Errors told in the learner's terms: what was raised, and on which line of his own code."""

import linecache
import os
import site
import sysconfig
import traceback
from collections.abc import Iterator

from dpbook.core import PACKAGE
from dpbook.grading.text import MAX_TEXT, one_line

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


def blame(error: BaseException) -> str:
    """An error in one line: its type and message, and the last line of the learner's own code on its way.

    Runs the error's own ``__str__``, so call this behind `limited`.
    """
    message = one_line(str.__str__(str(error)))
    said = f"{type(error).__name__}: {message}" if message else type(error).__name__
    place = next(filter(None, map(_last_line, _causes(error))), "")
    told = place.partition(" your code")[0] in message  # the error of a rank program quotes the line itself
    return f"{said} ({place})" if place and not told else said


def is_stub(error: BaseException) -> bool:
    """Whether it is the learner's own code that says ``raise NotImplementedError``."""
    return any(isinstance(cause, NotImplementedError) and _last_line(cause) for cause in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it was raised from: a rank's own error lies behind that of the run."""
    for _ in range(10):
        if error is None:
            return
        yield error
        error = error.__cause__


def _last_line(error: BaseException) -> str:
    place = ""
    for frame, number in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if is_learners(code.co_filename):
            source = one_line(linecache.getline(code.co_filename, number), MAX_TEXT // 3)
            place = f"line {number} of your code, in {code.co_name}" + (f": {source}" if source else "")
    return place
