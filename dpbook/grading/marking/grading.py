"""Marks for submissions: each task is judged here, on values that come from the answer's own processes."""

import contextlib
import gc
import multiprocessing
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpbook.core import DpbookError
from dpbook.grading.answer import CHECK_SECONDS
from dpbook.grading.apart import kernel
from dpbook.grading.apart.answer import PATIENCE, RemoteAnswer
from dpbook.grading.apart.kernel import GUARDS, MIB, mapped
from dpbook.grading.apart.servers import Servers
from dpbook.grading.cases import Case, Report
from dpbook.grading.declared import task, tasks
from dpbook.grading.judging import judge
from dpbook.grading.marking.cells import Exercise, needs_torch, program, take
from dpbook.grading.marking.files import Unreadable
from dpbook.grading.marking.marks import ExerciseMarks, Marks, SubmissionMarks, TaskMarks
from dpbook.grading.marking.submissions import Handed

Tell = Callable[[int, int], None]
"""Called with the number of tasks that are graded, and of all."""

MEMORY = 4096 * MIB
ENDED = "the check could not be finished on what the answer gave back"


Place = tuple[int, int, int]
"""Numbers of a submission, of a notebook in it, and of a task in this."""


@dataclass(frozen=True)
class Work:
    """A task, and the cells that answer it: the same ones get the same marks, so they are judged once."""

    task: str
    cells: tuple[tuple[str, str], ...]

    @property
    def torch(self) -> bool:
        return needs_torch(self.cells)


@dataclass(frozen=True)
class Done:
    report: Report
    together: bool
    guards: dict[str, bool]
    seconds: float


def grade(handed: Sequence[Handed], seed: int, *, jobs: int = 1, tell: Tell = lambda done, of: None) -> Marks:
    """The marks of all submissions, in their order; each is what it would be if it was graded alone.

    Raises `DpbookError` on a system that is not Linux.
    """
    if sys.platform != "linux":
        raise DpbookError("marks are given on Linux alone, where answers can be contained: grade in a container")
    taken = [[_take(path) for path in each.notebooks] for each in handed]
    work: dict[Work, list[Place]] = {}
    for place, one in _work(taken):
        work.setdefault(one, []).append(place)
    absent = {name: what for name in {one.task for one in work} if (what := _absent(name))}
    done = {place: _not_judged(one, absent[one.task]) for one in work if one.task in absent for place in work[one]}
    here = [one for one in work if one.task not in absent]
    with Servers(torch=any(one.torch for one in here)) as servers:
        for one, result in _judged(here, servers, seed, jobs):
            done |= dict.fromkeys(work[one], result)
            tell(len(done), sum(map(len, work.values())))
        servers.check()
    submissions = [_submission(s, each, found, done) for s, (each, found) in enumerate(zip(handed, taken, strict=True))]
    missing = [text for name, text in GUARDS.items() if not all(one.guards.get(name, True) for one in done.values())]
    return Marks(tuple(submissions), seed, tuple(missing))


def _absent(name: str) -> str:
    """Why a task cannot be judged on this machine; its checks are imported, so that all judges find them."""
    try:
        task(name)
    except ModuleNotFoundError as error:
        return f"{error.name} is not installed where this was graded"
    return ""


def _take(path: Path) -> Exercise | str:
    try:
        return take(path)
    except Unreadable as error:
        return str(error)


def _work(handed: Sequence[Sequence[Exercise | str]]) -> Iterator[tuple[Place, Work]]:
    for s, exercises in enumerate(handed):
        for e, exercise in enumerate(exercises):
            for t, taken in enumerate(() if isinstance(exercise, str) else exercise.answers):
                if taken.text is not None and not isinstance(exercise, str):
                    yield (s, e, t), Work(taken.task.id, tuple(program(taken.task, exercise.answers)))


def _judged(work: Sequence[Work], servers: Servers, seed: int, jobs: int) -> Iterator[tuple[Work, Done]]:
    """Each task with what came of it, in any order. A judge that is ended takes no other task with it."""
    left = dict.fromkeys(work)
    for one, result in _in_pool(work, servers, seed, jobs):
        del left[one]
        yield one, result
    for one in left:  # one by one, to see whose it is
        yield one, next((result for _, result in _in_pool([one], servers, seed, 1)), _not_judged(one))


def _in_pool(work: Sequence[Work], servers: Servers, seed: int, jobs: int) -> Iterator[tuple[Work, Done]]:
    """As `_judged`, up to where a judge is ended."""
    fork = multiprocessing.get_context("fork")
    others = multiprocessing.active_children()
    with ProcessPoolExecutor(jobs, fork, _begin, (servers, seed)) as pool:
        futures = {pool.submit(_judge, one): one for one in work}
        with contextlib.suppress(BrokenProcessPool):
            try:
                for future in as_completed(futures):
                    yield futures[future], future.result()
            except (KeyboardInterrupt, SystemExit):  # what is being judged now may take minutes
                for each in set(multiprocessing.active_children()) - set(others):
                    each.kill()
                raise
            finally:
                pool.shutdown(wait=False, cancel_futures=True)


_given: list[Any] = []


def _begin(servers: Servers, seed: int) -> None:
    """A judge begins, which takes no more memory than it needs."""
    kernel.die_with_parent()
    gc.freeze()
    _given[:] = servers, seed
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started it ends it
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (mapped() + MEMORY,) * 2)


class _Late(BaseException):
    """A check has taken too long on what it was given."""


def _judge(one: Work) -> Done:
    servers, seed = _given
    asked = task(one.task)
    start = time.monotonic()
    answer = RemoteAnswer(servers, one.cells, asked.answer, torch=one.torch)

    def late(*_: object) -> None:
        raise _Late

    signal.signal(signal.SIGALRM, late)
    signal.alarm(round(60 + PATIENCE * sum(check.seconds or CHECK_SECONDS for check in asked.checks)))
    try:
        report = judge(asked, answer, seed)
        return Done(report, answer.beside, answer.guards, time.monotonic() - start)
    except (_Late, DpbookError):
        return _not_judged(one)
    finally:
        signal.alarm(0)
        answer.close()


def _not_judged(one: Work, why: str = ENDED) -> Done:
    asked = next(each for each in tasks(int(one.task[:2])) if each.id == one.task)
    cases = [Case(c.name, c.points, False, "a value that can be judged", why) for c in asked.checks]
    return Done(Report(asked.id, asked.title, tuple(cases)), False, {}, 0.0)


def _submission(
    number: int, handed: Handed, found: Sequence[Exercise | str], done: dict[Place, Done]
) -> SubmissionMarks:
    exercises = []
    for e, (path, exercise) in enumerate(zip(handed.notebooks, found, strict=True)):
        if isinstance(exercise, str):
            exercises.append(ExerciseMarks(path.name, None, (), (f"not graded: it {exercise}",)))
            continue
        tasks = []
        for t, taken in enumerate(exercise.answers):
            result = done.get((number, e, t))
            report, together = (result.report, result.together) if result else (None, False)
            tasks.append(TaskMarks(taken.task.id, taken.task.title, taken.task.points, report, taken.remarks, together))
        marks = ExerciseMarks(path.name, exercise.chapter, tuple(tasks), exercise.remarks, exercise.words)
        exercises.append(marks)
    return _once(SubmissionMarks(handed.name, tuple(exercises), handed.remarks))


def _once(submission: SubmissionMarks) -> SubmissionMarks:
    """Of several notebooks of one exercise the last by name counts."""
    kept, said = [], list(submission.remarks)
    last = {exercise.chapter: exercise for exercise in submission.exercises}
    for exercise in submission.exercises:
        chapter = exercise.chapter
        if chapter is None or exercise is last[chapter]:
            kept.append(exercise)
        else:
            said.append(
                f"{exercise.file} is of exercise {chapter:02}, too, and was left out: {last[chapter].file} counts"
            )
    return replace(submission, exercises=tuple(kept), remarks=tuple(said))
