"""The answer to a task, behind a guard: checks request values and get plain data, or an error for the learner."""

import copy
import io
import linecache
import os
import pickle
import re
import site
import sys
import sysconfig
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from dpbook.classroom.tasks.call_limit import Limit
from dpbook.classroom.tasks.plain_data import NotPlain, difference, plain
from dpbook.classroom.tasks.report import MAX_TEXT, LastCall, as_lines, describe_kind, one_line
from dpbook.core import PACKAGE, Deadlock

_OURS = (
    str(PACKAGE.resolve()) + os.sep,
    *(path + os.sep for path in map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))),
    *(path + os.sep for path in site.getsitepackages()),
    "<frozen ",
    "<__array_function__",
)


def is_learners(filename: str) -> bool:
    """Whether code of this file is the learner's: a notebook cell or his own module, not dpbook or a library."""
    return not filename.startswith(_OURS)


class _Frame(NamedTuple):
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        source = one_line(linecache.getline(self.file, self.line), MAX_TEXT // 3)
        return f"line {self.line} of your code, in {self.function}" + (f": {source}" if source else "")


_FRAME = re.compile(r'File "([^"]*)", line (\d+) in (.*)')
"""A frame as `faulthandler` writes it."""


class BlamedError(NamedTuple):
    """An error in words, and its cause: a text that is the same whenever the same line raises the same error."""

    message: str
    cause: str


def blame(error: BaseException) -> BlamedError:
    """Return an error in one line: its type and message, and the last line of the learner's own code on its way.

    A deadlock has a line for each rank. Runs the error's own ``__str__``, so call this within a limit.
    """
    shown = as_lines if isinstance(error, Deadlock) else one_line
    message = shown(str.__str__(str(error)))
    summary = f"{type(error).__name__}: {message}" if message else type(error).__name__
    place = next(filter(None, map(last_line, causes(error))), "")
    quoted = place.partition(" your code")[0] in message  # the error of a rank program quotes the line itself
    same = "" if isinstance(error, Deadlock) else place or message  # each rank of a deadlock stands on its own line
    return BlamedError(f"{summary} ({place})" if place and not quoted else summary, f"{type(error).__name__}: {same}")


def running_loop(stacks: str) -> str:
    """Return the loop in which the learner's code was, else its line, from what `faulthandler` wrote of all threads.

    Of loops in loops it is the outermost ``while``, or the outermost ``for`` if there is none: the line that was
    running differs from run to run. A thread in a loop counts before one that waits for it.
    """
    texts = re.split(r"^(?=(?:Current thread|Thread) )", stacks, flags=re.MULTILINE)
    threads = []
    for text in sorted(texts, key=lambda text: not text.startswith("Current")):
        found = [_Frame(file, int(line), function) for file, line, function in _FRAME.findall(text)]
        if frames := [frame for frame in found if is_learners(frame.file)]:
            threads.append(frames)
    for frames, word in product(threads, ("while", "for")):
        for frame in frames[::-1]:
            loops = [number for number, first in _around(frame) if first == word]
            if loops:
                return str(frame._replace(line=loops[-1]))
    return str(threads[0][0]) if threads else ""


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
    """Whether the learner's own code raised the error with ``raise NotImplementedError``."""
    return any(isinstance(cause, NotImplementedError) and last_line(cause) for cause in causes(error))


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and the errors that caused it: a rank's own error is behind that of the run."""
    for _ in range(10):
        if error is None:
            return
        yield error
        error = error.__cause__


def last_line(error: BaseException) -> str:
    """Return the last line of the learner's own code on the way of an error, or ""."""
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [_Frame(code.co_filename, line, code.co_name) for code, line in frames if is_learners(code.co_filename)]
    return str(own[-1]) if own else ""


CALL_SECONDS = 2.0
CHECK_SECONDS = 5.0
MAX_PRINTED = 1000
MAX_LINES = 10
NOT_PLAIN = "a value of the type that the task asks for"

Through = Callable[..., Any]


def where_apart(other: Through) -> Callable[[Through], Through]:
    """Mark a function: ``other`` is called in its place where every rank of an answer is a process of its own.

    ``other`` runs where the judge is. What has to be done beside the answer, with tensors for one, it gives to
    ``function.hosted(harness, *args)``: that is ``harness(answer, *args)`` in the process of the calling thread.
    """

    def mark(through: Through) -> Through:
        through.apart = other  # type: ignore[attr-defined]
        return through

    return mark


class Wrong(Exception):
    """Raised while a check runs: the answer fails it. All are plain text.

    ``cause`` is given where there is no value to judge: it is the same text in every check that is stopped by the same
    error on the same line, or by a call that does not end. ``why`` takes the place of the check's own, where another
    reason matters for this mistake.
    """

    def __init__(self, expected: str, got: str, where: str = "", cause: str = "", why: str = "") -> None:
        super().__init__(expected, got, where, cause, why)
        self.expected, self.got, self.where, self.cause, self.why = expected, got, where, cause, why


class NotAnswered(Wrong):
    """The answer is still the notebook's stub."""

    def __init__(self) -> None:
        super().__init__("an answer", "not answered yet")


def kind_of(answered: Any) -> str:
    """Return "function" or "value", or "" where the stub's None or ``...`` is still there."""
    return "" if answered is None or answered is ... else "function" if callable(answered) else "value"


class Answer(ABC):
    """The learner's function or value. `LocalAnswer` runs it in this process; another process may stand behind it."""

    ranks_are_processes = False
    """Whether every rank of a program is a process of its own already, so that none need be started to see that."""

    def __init__(self, limit: Limit, printed: object) -> None:
        self._limit, self._printed = limit, printed
        self.results: dict[bytes, Any] = {}
        """Results of calls that are made once, by the pickled call."""
        self.begin()

    @property
    def printed(self) -> str:
        """Beginning of the answer's printed output."""
        return str(self._printed)

    def begin(self, seconds: float | None = None) -> None:
        """Begin a check, which may take ``seconds`` in all; None is `CHECK_SECONDS`."""
        self.last_call: LastCall | None = None
        """Last call, which a report shows; None before the first call of the check."""
        self._limit.begin_check(CHECK_SECONDS if seconds is None else seconds)

    def renew(self) -> None:  # noqa: B027  # most answers have no process
        """Run later calls in new processes, where the answer has processes of its own."""

    def note_call(self, last_call: LastCall) -> None:
        """Note the call that comes next, whether it is made or was made before."""
        self.last_call = last_call
        self._limit.note_call(last_call)

    def call(self, args: tuple[Any, ...], through: Through | None, unchanged: bool, seconds: float) -> Any:
        """See `call`."""
        if not self._kind():
            raise NotAnswered
        if self._kind() == "value":
            raise Wrong("a function", describe_kind(value(self)), cause="no function")
        return self._call(args, through, unchanged, seconds)

    @abstractmethod
    def _kind(self) -> str:
        """See `kind_of`."""

    @abstractmethod
    def _value(self) -> Any: ...

    @abstractmethod
    def _call(self, args: tuple[Any, ...], through: Through | None, unchanged: bool, seconds: float) -> Any: ...

    @abstractmethod
    def _run(self, work: Callable[[], Any], seconds: float) -> Any:
        """Return ``work()``, which may take ``seconds``. What it raises becomes `Wrong`."""


def check_unchanged(before: Sequence[Any], after: Sequence[Any]) -> None:
    """Raise `Wrong` for an argument that is not what it was; both are plain data."""
    for number, (was, now) in enumerate(zip(before, after, strict=False), start=1):
        change = difference(was, now)
        if change is not None:
            expected = f"argument {number} unchanged: {change.expected}"
            raise Wrong(expected, change.got, change.where, why="The caller may still need its own values.")


def call(
    answer: Answer,
    *args: Any,
    through: Through | None = None,
    unchanged: bool = False,
    seconds: float = CALL_SECONDS,
    where: str = "",
    by_hand: tuple[Any, ...] | str | None = None,
    once: bool = False,
) -> Any:
    """Call the learner's function on copies of ``args`` (plain data) and return what it returned as plain data.

    ``through(function, *args)`` is called instead where given: the way to record a rank program, to drive a class or to
    return what was changed in place. It must be a function at the top level of a module of dpbook, so that another
    process can find it, and return plain data. With ``unchanged`` the function must leave its arguments as they are.
    Raises `Wrong` or `NotAnswered` for whatever else happens, which ends the check: an error, a loop, a ``SystemExit``,
    more than ``seconds`` in this call (``math.inf``: no limit but the check's own) or the check's in all, a value that
    is no plain data. ``where`` says in words which instance this is. ``by_hand`` is how a learner can repeat
    a call that goes ``through`` another function, or has long arguments: those that his own gets, or all in Python.
    With ``once`` the same call, also of another check, is not made again where it has returned. See
    `of_all_checks` for arguments that are the same; what is returned is then not to be changed.
    """
    answer.note_call(LastCall(args if through is None and by_hand is None else by_hand, where))
    try:
        if not once:
            return answer.call(args, through, unchanged, seconds)
        key = pickle.dumps((through, args))
        if key not in answer.results:
            answer.results[key] = answer.call(args, through, unchanged, seconds)
        return answer.results[key]
    except NotAnswered:
        raise
    except Wrong as wrong:
        raise Wrong(wrong.expected, wrong.got, ": ".join(filter(None, (where, wrong.where))), wrong.cause) from None


def value(answer: Answer) -> Any:
    """Return the answer as plain data, where the task asks for a value. Raises `Wrong` or `NotAnswered`."""
    if not answer._kind():
        raise NotAnswered
    return answer._run(answer._value, CALL_SECONDS)


class LocalAnswer(Answer):
    """An answer that is called in this process, within the time that ``limit`` gives it.

    ``output`` is given in a process for this answer alone, which no user can interrupt: the descriptor of a file that
    receives the beginning of what it prints at once.
    """

    def __init__(self, answered: Any, limit: Limit | None = None, output: int | None = None) -> None:
        self._answered, self._output = answered, LimitedOutput(output)
        self._interruptible = output is None
        super().__init__(limit or Limit(), self._output)

    def _kind(self) -> str:
        return kind_of(self._answered)

    def _value(self) -> Any:
        return plain(self._answered)

    def _call(self, args: tuple[Any, ...], through: Through | None, unchanged: bool, seconds: float) -> Any:
        given = copy.deepcopy(args)
        work = partial(self._answered, *given) if through is None else partial(through, self._answered, *given)
        got = self._run(lambda: plain(work()), seconds)
        if unchanged:
            check_unchanged(args, self._run(lambda: [plain(arg) for arg in given], CALL_SECONDS))
        return got

    def _run(self, work: Callable[[], Any], seconds: float) -> Any:
        try:
            with redirect_stdout(self._output), redirect_stderr(self._output), self._limit.call(seconds):
                return work()
        except Wrong:
            raise
        except NotPlain as error:
            raise Wrong(NOT_PLAIN, str(error), cause=str(error)) from None
        except BaseException as error:  # SystemExit and whatever else an answer may raise
            if isinstance(error, KeyboardInterrupt) and self._interruptible:
                raise
            if is_stub(error):
                raise NotAnswered from None
            try:
                with self._limit.call(CALL_SECONDS):
                    summary, cause = blame(error)
            except KeyboardInterrupt:
                raise
            except BaseException:  # the error cannot even be printed
                summary = cause = "an error that cannot be printed"
            raise Wrong("a result, no error", summary, cause=cause) from None


class LimitedOutput(io.TextIOBase):
    """A stream that keeps the beginning of what is written to it, and counts the rest.

    The beginning also goes at once to the file with the descriptor ``output``, if there is one.
    """

    def __init__(self, output: int | None = None) -> None:
        self.kept = ""
        self.written = 0
        self._output = output

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        beginning = text[: MAX_PRINTED - len(self.kept)]
        self.kept += beginning
        self.written += len(text)
        if beginning and self._output is not None:
            os.write(self._output, beginning.encode(errors="replace"))
        return len(text)

    def __str__(self) -> str:
        shown = "".join(self.kept.splitlines(keepends=True)[:MAX_LINES])
        lost = self.written - len(shown)
        return shown + (f"… and {lost:,} more characters" if lost else "")
