"""Marks for submissions. Judges are processes that run no line of an answer: answers run in their own processes.

All answers are judged with less time first, and those that have not ended once more with all of it. An endless loop
therefore costs little, and a slow answer loses nothing. If several answers of a submission never end, its others are
not judged again, so that the other submissions are not delayed.
"""

import contextlib
import gc
import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dpbook.classroom.marks.marks import ExerciseMarks, Marks, SubmissionMarks, TaskMarks
from dpbook.classroom.marks.submissions import Submission, updated_name
from dpbook.classroom.marks.submitted_notebook import Exercise, Unreadable, needs_torch, program, read_exercise
from dpbook.classroom.sandbox import containment
from dpbook.classroom.sandbox.clock import PATIENCE
from dpbook.classroom.sandbox.containment import GUARDS, MIB, mapped
from dpbook.classroom.sandbox.remote_answer import RemoteAnswer
from dpbook.classroom.sandbox.servers import OTHER_HASHES, Servers
from dpbook.classroom.tasks.answer import CHECK_SECONDS
from dpbook.classroom.tasks.expectations import current_course
from dpbook.classroom.tasks.judging import judge
from dpbook.classroom.tasks.load_tasks import list_tasks, task
from dpbook.classroom.tasks.report import Case, Report
from dpbook.core import DpbookError

MEMORY = 4096 * MIB
HURRIED = 1 / 4
"""Share of the time limit in the first attempt at an answer."""
ALARM_AGAIN = 10.0
"""Seconds after which a judge gets another alarm: Python drops what is raised in some callbacks."""
ENDED = "the check could not finish on the value that the answer returned"


@dataclass(frozen=True)
class AnsweredTask:
    """A task and the cells that answer it. Identical cells get identical marks, so they are judged once."""

    task: str
    cells: tuple[tuple[str, str], ...]
    hurried: bool = True

    @property
    def torch(self) -> bool:
        return needs_torch(self.cells)


@dataclass(frozen=True)
class JudgedAnswer:
    """Report of a judged task. ``late`` is True if the answer exceeded its time limit."""

    report: Report
    together: bool = False
    guards: Mapping[str, bool] = field(default_factory=dict)
    late: bool = False


def judged(
    work: Sequence[AnsweredTask], servers: Servers, seed: int, jobs: int
) -> Iterator[tuple[AnsweredTask, JudgedAnswer]]:
    """Yield each task with its result, in any order. If a judge is killed, no other task is affected."""
    left = dict.fromkeys(work)
    for one, result in _in_pool(work, servers, seed, jobs):
        del left[one]
        yield one, result
    for one in left:  # one by one, to see whose it is
        yield one, next((result for _, result in _in_pool([one], servers, seed, 1)), not_judged(one))


def _in_pool(
    work: Sequence[AnsweredTask], servers: Servers, seed: int, jobs: int
) -> Iterator[tuple[AnsweredTask, JudgedAnswer]]:
    """Judge as `judged` does, until a judge is killed."""
    fork = multiprocessing.get_context("fork")
    others = multiprocessing.active_children()
    places = fork.SimpleQueue()
    for number in range(jobs):
        places.put(_cores(number, jobs))
    with ProcessPoolExecutor(jobs, fork, _begin, (servers, seed, places)) as pool:
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


def _cores(number: int, jobs: int) -> set[int]:
    """Return the cores on which a judge and its answers may run: its own one where each core has a judge.

    What passes between processes on one core costs a fifth less than what wakes another.
    """
    cores = sorted(os.sched_getaffinity(0))
    return {cores[number % len(cores)]} if jobs >= len(cores) else set(cores)


_given: list[Any] = []


def _begin(servers: Servers, seed: int, places: Any) -> None:
    """Prepare the process of a judge and limit its memory."""
    containment.die_with_parent()
    os.sched_setaffinity(0, places.get())
    gc.freeze()
    _given[:] = servers, seed
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started it ends it
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (mapped() + MEMORY,) * 2)


class _Late(BaseException):
    """A check took too long on the values that the answer returned."""


def _judge(one: AnsweredTask) -> JudgedAnswer:
    servers, seed = _given
    asked = task(one.task)
    answer = RemoteAnswer(
        servers, one.cells, asked.answer, torch=one.torch, hurried=one.hurried, write_your_own=asked.write_your_own
    )

    def late(*_: object) -> None:
        raise _Late

    signal.signal(signal.SIGALRM, late)
    most = 60 + PATIENCE * sum(check.seconds or CHECK_SECONDS for check in asked.checks)
    signal.setitimer(signal.ITIMER_REAL, HURRIED * most if one.hurried else most, ALARM_AGAIN)
    try:
        return JudgedAnswer(judge(asked, answer, seed), answer.beside, answer.guards, answer.late)
    except _Late:
        return replace(not_judged(one), late=True)
    except DpbookError:
        return not_judged(one)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        answer.close()


def not_judged(one: AnsweredTask, why: str = ENDED) -> JudgedAnswer:
    asked = next(each for each in list_tasks(int(one.task[:2])) if each.id == one.task)
    cases = [Case(c.name, c.points, False, "a value that the check can judge", why) for c in asked.checks]
    return JudgedAnswer(Report(asked.id, asked.title, tuple(cases)))


PATIENT = 3
"""Number of answers of a submission that may fail with the full time limit before the rest is not tried again."""


def again(answers: Iterable[AnsweredTask], results: Mapping[AnsweredTask, JudgedAnswer]) -> list[AnsweredTask]:
    """Return those of a submission's ``answers`` to judge with all their time: the late ones, up to where `PATIENT`
    of them are known not to have ended, or may come not to."""
    chosen, lost = [], 0
    for one in dict.fromkeys(answers):
        if results[one].late and lost < PATIENT:
            chosen.append(replace(one, hurried=False))
            lost += chosen[-1] not in results or results[chosen[-1]].late
    return chosen


def remarks(answers: Iterable[AnsweredTask], results: Mapping[AnsweredTask, JudgedAnswer]) -> list[str]:
    """Return remarks for a submission on the answers that were not tried again."""
    late = sum(results[one].late for one in dict.fromkeys(answers))
    left = late - len(again(answers, results))
    if not left:
        return []
    return [
        f"{late} answers did not end in a short time. The first of them were tried again with more, and {PATIENT} of "
        f"these did not end either: the other {left} were not tried again"
    ]


OnProgress = Callable[[int, int], None]
"""Callback that gets the number of graded tasks and the number of all tasks."""

Place = tuple[int, int]
"""Numbers of a notebook in a submission, and of a task in this."""


def grade(
    submissions: Sequence[Submission], seed: int, *, jobs: int = 1, on_progress: OnProgress = lambda finished, of: None
) -> Marks:
    """Return the marks of all submissions, in the order of ``submissions``; no submission's marks depend on another's.

    Args:
        submissions: the submissions.
        seed: of the instances on which answers are tried.
        jobs: number of judges that run in parallel.
        on_progress: called with the number of tasks graded so far and the number of all tasks.

    Raises `DpbookError` on a system that is not Linux.
    """
    if sys.platform != "linux":
        raise DpbookError("grading runs only on Linux, where answers can be sandboxed: use a Linux container")
    exercises = [[_read(path) for path in each.notebooks] for each in submissions]
    answers = [_work(each) for each in exercises]
    every = list(dict.fromkeys(one for each in answers for one in each.values()))
    absent = {name: what for name in {one.task for one in every} if (what := _absent(name))}
    results = {one: not_judged(one, absent[one.task]) for one in every if one.task in absent}
    other_hashes = any(one.task in OTHER_HASHES for one in every)
    with Servers(any(one.torch for one in every if one not in results), other_hashes, seed) as servers:
        while waiting := [one for one in every if one not in results]:
            of = len(results) + len(waiting)
            for one, result in judged(waiting, servers, seed, jobs):
                results[one] = result
                on_progress(len(results), of)
            every = list(dict.fromkeys(one for each in answers for one in again(each.values(), results)))
        servers.check()
    missing = [text for name, text in GUARDS.items() if not all(one.guards.get(name, True) for one in results.values())]
    marks = [_submission(*each, results) for each in zip(submissions, exercises, answers, strict=True)]
    return Marks(tuple(marks), seed, tuple(missing), current_course())


def _absent(name: str) -> str:
    """Return why a task cannot be judged on this machine, or "". Imports its checks, so that all judges have them."""
    try:
        task(name)
    except ModuleNotFoundError as error:
        return f"{error.name} is not installed on the machine that graded this"
    return ""


def _read(path: Path) -> Exercise | str:
    try:
        return read_exercise(path)
    except Unreadable as error:
        return str(error)


def _work(exercises: Sequence[Exercise | str]) -> dict[Place, AnsweredTask]:
    return {
        (e, t): AnsweredTask(source.task.id, tuple(program(source.task, exercise.answers)))
        for e, exercise in enumerate(exercises)
        if not isinstance(exercise, str)
        for t, source in enumerate(exercise.answers)
        if source.text is not None
    }


def _submission(
    submission: Submission,
    exercises: Sequence[Exercise | str],
    answers: Mapping[Place, AnsweredTask],
    results: Mapping[AnsweredTask, JudgedAnswer],
) -> SubmissionMarks:
    repeated = {replace(one, hurried=True): one for one in again(answers.values(), results)}
    marked = []
    for e, (path, exercise) in enumerate(zip(submission.notebooks, exercises, strict=True)):
        if isinstance(exercise, str):
            marked.append(ExerciseMarks(path.name, None, (), (f"not graded: it {exercise}",)))
            continue
        tasks = []
        for t, source in enumerate(exercise.answers):
            one = answers.get((e, t))
            result = results[repeated.get(one, one)] if one else None
            report, together = (result.report, result.together) if result else (None, False)
            of, text = source.task, source.text or ""
            tasks.append(TaskMarks(of.id, of.title, of.points, report, source.remarks, together, text))
        marks = ExerciseMarks(path.name, exercise.chapter, tuple(tasks), exercise.remarks, exercise.words)
        marked.append(marks)
    all_remarks = (*submission.remarks, *remarks(answers.values(), results))
    return _once(SubmissionMarks(submission.name, tuple(marked), all_remarks))


def _once(submission: SubmissionMarks) -> SubmissionMarks:
    """Keep the one notebook of an exercise that counts, and name the others in the remarks."""
    counts: dict[int, ExerciseMarks] = {}
    for exercise in sorted(submission.exercises, key=_precedence):
        if exercise.chapter is not None:
            counts[exercise.chapter] = exercise
    graded, remarks = [], list(submission.remarks)
    for exercise in submission.exercises:
        chapter = exercise.chapter
        if chapter is None or exercise is counts[chapter]:
            graded.append(exercise)
        else:
            remarks.append(f"{exercise.file} was not graded: {counts[chapter].file} counts for exercise {chapter:02}")
    return replace(submission, exercises=tuple(graded), remarks=tuple(remarks))


def _precedence(exercise: ExerciseMarks) -> tuple[int, bool]:
    """Sort key of notebooks of one exercise: the last counts. The sort is stable, so the last by name wins a tie.

    A notebook with more answers counts; with as many, the learner's own and not an update that lies beside it.
    """
    answered = sum(task.report is not None and task.report.answered for task in exercise.tasks)
    return answered, updated_name(exercise.file) is None
