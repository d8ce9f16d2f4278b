"""Exercises and checks in a notebook: an answer is judged in a process of its own, which can always be ended."""

import atexit
import contextlib
import json
import linecache
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from dpbook.classroom.tasks import check_process, load_tasks
from dpbook.classroom.tasks.answer import CHECK_SECONDS, LocalAnswer, Wrong, is_learners, running_loop
from dpbook.classroom.tasks.call_limit import CALL, PATIENCE, PRINTED, STACK, History
from dpbook.classroom.tasks.check_process import SOCKET, Request
from dpbook.classroom.tasks.expectations import begin_course, current_course, numbers_of
from dpbook.classroom.tasks.judging import failed_case, judge, report_of
from dpbook.classroom.tasks.load_tasks import Check, Task
from dpbook.classroom.tasks.reader_progress import record
from dpbook.classroom.tasks.report import Case, Report
from dpbook.core import PARENT, DpbookError, check_int, machine, own_modules, pickle_by_value, temporary_folder
from dpbook.core.fork_server import StartedProcesses, Starter

RUN_FIRST = "run the cell with your answer first"


class NotRun:
    """Value of an answer's name until its cell has been run. Using it raises `DpbookError`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"{self._name} is not there yet: {RUN_FIRST}"

    def _refuse(self, *args: Any, **options: Any) -> NoReturn:
        raise DpbookError(repr(self))

    __call__ = __getitem__ = __iter__ = _refuse


STARTUP_SECONDS = 180.0
"""Seconds that a process may take to load on a busy machine; torch alone took 38 there."""
SHUTDOWN_SECONDS = 60.0
"""Seconds that a process may outlive its own timers, and that its launcher may take to notice its end."""
_MODULE = check_process.__name__
_NUMPY = Starter("dpbook.replicas", "dpbook.overlap", "dpbook.planning", _MODULE)


def check(task_id: str, answer: Any, *, seed: int = 0) -> Report:
    """Judge ``answer`` (the function or value itself) and keep the points in the reader's workbook.

    The answer runs in a process of its own. A call that takes too long ends that process, whatever its code does, and
    so does the stop button. The instances are drawn from ``seed``, so that the same answer gets the same report.
    A value that a course asks for with numbers of its own is not judged: its marks could be found by trial.
    Raises `InvalidArgument` for an unknown task, and for an answer that cannot be pickled.
    """
    task = load_tasks.task(task_id)
    if isinstance(answer, NotRun):
        return replace(judge(task, LocalAnswer(None), seed), notes=(f"{RUN_FIRST}, then this one again",))
    if current_course() is not None and task_id in {each.task for each in numbers_of(task.chapter)}:
        note = "checked when the course is graded"
        cases = [Case(each.name, each.points, False, answered=False, note=note) for each in task.checks]
        return Report(task.id, task.title, tuple(cases))
    try:
        report = judge_in_process(task, answer, check_int("seed", seed, 0))
    except KeyboardInterrupt:
        raise KeyboardInterrupt("the check was stopped") from None  # without the lines of the check itself
    return replace(report, notes=record(task, report.points)) if report.answered else report


def exercise(chapter: int, names: dict[str, Any], *, course: int | None = None) -> None:
    """Begin the exercise of a chapter: put a `NotRun` into ``names`` for each answer that is not there yet.

    ``names`` are the notebook's ``globals()``. To run this again leaves answers as they are. ``course`` is the seed of
    the course with whose numbers the exercise was written, if not with the book's.
    """
    begin_course(course)
    for task in load_tasks.list_tasks(chapter):
        names.setdefault(task.answer, NotRun(task.answer))
    prepare()


def judge_in_process(task: Task, answer: Any, seed: int = 0) -> Report:
    """Run the checks of a task on ``answer`` in a process of their own, or in as many as these end, and report."""
    # The learner's own modules as they are in this kernel: on disk they may have changed since they were imported.
    functions = (check.run.func if isinstance(check.run, partial) else check.run for check in task.checks)
    run = _Run(task, pickle_by_value("answer", (task, answer, seed), answer, *functions, modules=own_modules()))
    while run.remaining:
        with _taken() as process:
            run.go_on(process)
    prepare()
    return report_of(task, run.cases, run.printed)


def prepare() -> None:
    """Start the process of the next check, which loads while the reader reads."""
    if not _waiting:
        _waiting.append(_Process())


@contextlib.contextmanager
def share_checks(environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Yield ``environment``, made so that all processes that get it begin their checks through one server."""
    with _NUMPY.share(_settings(environment)) as variable:
        yield {**environment, **variable}


@dataclass
class _Run:
    """The cases of one task, collected from one process after another."""

    task: Task
    pickled: bytes
    cases: list[Case] = field(default_factory=list)
    printed: str = ""
    history: History = field(default_factory=History)
    lost: int = 0

    @property
    def remaining(self) -> Sequence[Check]:
        return self.task.checks[len(self.cases) :]

    def go_on(self, process: "_Process") -> None:
        """Run the remaining checks until all are done or the process ends."""
        process.send(self._request())
        while (message := process.receive(self._patience())) is not None:
            if isinstance(message, DpbookError):
                raise message
            if isinstance(message, str):  # the last message
                self.printed += message
                return
            case, self.history.longest = message
            self.cases.append(case)
        if self.remaining:
            self._note_end(process)

    def _request(self) -> Request:
        # An entry that is not read yet holds a function, which another process could not call.
        sources = {file: entry for file, entry in linecache.cache.items() if is_learners(file) and len(entry) == 4}
        return Request(
            pickled=self.pickled,
            names=[check.name for check in self.remaining],
            history=self.history,
            folder=os.getcwd(),
            path=list(sys.path),
            write_your_own=self.task.write_your_own,
            environment={name: value for name, value in os.environ.items() if name != PARENT},  # its parent is another
            sources=sources,
            course=current_course(),
        )

    def _patience(self) -> float:
        """Seconds after which a process is ended that has outlived its own timers."""
        seconds = self.remaining[0].seconds if self.remaining else None
        return SHUTDOWN_SECONDS + PATIENCE * (seconds or CHECK_SECONDS)

    def _note_end(self, process: "_Process") -> None:
        """Fail the check whose call has not returned. The next process begins with the check behind it.

        Raises `DpbookError` if two processes in a row end before they call the answer.
        """
        check = self.remaining[0]
        end = process.last_moment()
        if end.check != check.name:
            self.lost += 1
            if self.lost > 1:
                raise DpbookError(f"the check failed to run {self.lost} times in a row: {end.got}")
            return
        self.lost = 0
        self.printed += process.read(PRINTED)
        later = "; later calls get less time" if end.timed_out and not self.history.timed_out else ""
        self.history.timed_out |= end.timed_out
        expected = "an answer in time" if end.timed_out else "a result"
        cause = "a call that does not end" if end.timed_out else end.got
        self.cases.append(failed_case(check, Wrong(expected, end.got + later, end.where, cause), end.call))


class _LastMoment(NamedTuple):
    """Why a process ended, and the check and the call that were running; "" where it had begun none."""

    got: str
    timed_out: bool
    check: str
    call: str
    where: str


class _Process:
    """A process that waits for one request. Closing it ends it, and whatever it has started."""

    def __init__(self) -> None:
        self.has_torch = _uses_torch()
        self._stack = contextlib.ExitStack()
        self._folder = self._stack.enter_context(temporary_folder("check"))
        self._listener = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        self._listener.bind(str(self._folder / SOCKET))
        self._listener.listen()
        self._started = _begin(self._folder)
        self._exits: dict[int, int] | None = None
        self._connection: Connection | None = None
        self._stack.callback(self.end)

    def send(self, request: Request) -> None:
        """Send the request when the process has loaded. Raises `DpbookError` where it does not start."""
        if self._listener not in wait([self._listener, self._started.launcher], STARTUP_SECONDS):
            _, output = self._started.end()
            raise DpbookError(
                "the process of the check did not start; run the cell again, or wait until this machine is less busy "
                f"(the process printed {output.strip() or 'nothing'})"
            )
        connected, _ = self._listener.accept()
        self._connection = self._stack.enter_context(Connection(connected.detach()))
        with contextlib.suppress(OSError):  # it has just ended, which `receive` notices
            self._connection.send(request)

    def receive(self, timeout: float) -> Any:
        """Return the next message, or None where the process has ended, or is ended after ``timeout`` seconds."""
        if self._connection is None:
            return None
        ready = wait([self._connection, self._started.launcher], timeout)
        if self._connection in ready:
            with contextlib.suppress(EOFError, OSError):
                return self._connection.recv()
        if ready:  # it has ended: its launcher learns of that after us
            self._started.wait(SHUTDOWN_SECONDS)
        return None

    def end(self) -> dict[int, int]:
        """End the process, and return its exit status where it ended by itself."""
        if self._exits is None:
            self._exits, _ = self._started.end()
        return self._exits

    def last_moment(self) -> _LastMoment:
        """Return why the process ended, as far as that is known."""
        status = self.end().get(0)
        noted: dict[str, Any] = {"check": "", "call": "", "where": ""}
        if text := self.read(CALL):
            noted, _ = json.JSONDecoder().raw_decode(text)
        timed_out = status in (None, -signal.SIGPROF, -signal.SIGALRM)
        if status is None:
            got = "its process exceeded the time limit"
        elif timed_out:
            cpu = status == -signal.SIGPROF
            why = "a loop that does not end?" if cpu else "does it wait for something that never happens?"
            got = f"none after {noted[str(-status)]}: {why}"
        elif status < 0:
            got = f"its process was killed by {signal.Signals(-status).name}"
        else:
            got = f"its process ended with exit status {status}"
        if status is not None and status < 0 and (place := running_loop(self.read(STACK))):
            got += f" ({place})"
        return _LastMoment(got, timed_out, noted["check"], noted["call"], noted["where"])

    def read(self, name: str) -> str:
        """Return the text of a file in the folder of the process, "" where there is none."""
        path = self._folder / name
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def close(self) -> None:
        """End the process and remove its folder."""
        self._stack.close()


def _begin(folder: Path) -> StartedProcesses:
    """Begin the process of a check, which has loaded torch if the notebook uses torch or ranks."""
    if _uses_torch():
        from dpbook import ranks

        return ranks.begin(_MODULE, folder)
    return _NUMPY.begin(_MODULE, folder, 1, _settings(os.environ))


def _uses_torch() -> bool:
    return not {"torch", "dpbook.ranks"}.isdisjoint(sys.modules)


def _settings(environment: Mapping[str, str]) -> dict[str, str]:
    return {"PYTHONHASHSEED": "0", **machine.MALLOC_SETTINGS, **machine.ONE_THREAD, **environment}


@contextlib.contextmanager
def _taken() -> Iterator[_Process]:
    """Yield the process that waits, or a new one if that has not loaded what the answer needs."""
    process = _waiting.pop() if _waiting else _Process()
    if process.has_torch != _uses_torch():
        process.close()
        process = _Process()
    with contextlib.closing(process):
        yield process


_waiting: list[_Process] = []
"""The process of the next check, or nothing."""


@atexit.register
def _close() -> None:
    while _waiting:
        _waiting.pop().close()


os.register_at_fork(after_in_child=_waiting.clear)  # the parent has started what waits
