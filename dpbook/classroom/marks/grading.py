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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

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


class JudgedAnswer(NamedTuple):
    """Report of a judged task. ``late`` is True if the answer exceeded its time limit."""

    report: Report
    together: bool = False
    guards: Mapping[str, bool] = {}
    late: bool = False


class _Notebook(NamedTuple):
    """A submitted notebook: what was read from it, or a remark why that failed.

    ``work`` has an entry for each task of the exercise, None where there is no answer.
    """

    file: str
    exercise: Exercise | None
    remark: str = ""
    work: Sequence[AnsweredTask | None] = ()


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
        return not_judged(one)._replace(late=True)
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
    notebooks = [[_read(path) for path in each.notebooks] for each in submissions]
    answers = [[one for notebook in each for one in notebook.work if one] for each in notebooks]
    every = list(dict.fromkeys(one for each in answers for one in each))
    absent = {name: why for name in {one.task for one in every} if (why := _absent(name))}
    results = {one: not_judged(one, absent[one.task]) for one in every if one.task in absent}
    other_hashes = any(one.task in OTHER_HASHES for one in every)
    with Servers(any(one.torch for one in every if one not in results), other_hashes, seed) as servers:
        while waiting := [one for one in every if one not in results]:
            of = len(results) + len(waiting)
            for one, result in judged(waiting, servers, seed, jobs):
                results[one] = result
                on_progress(len(results), of)
            every = list(dict.fromkeys(one for each in answers for one in again(each, results)))
        servers.check()
    missing = [text for name, text in GUARDS.items() if not all(one.guards.get(name, True) for one in results.values())]
    marks = [_submission(*each, results) for each in zip(submissions, notebooks, answers, strict=True)]
    return Marks(tuple(marks), seed, tuple(missing), current_course())


def _absent(name: str) -> str:
    """Return why a task cannot be judged on this machine, or "". Imports its checks, so that all judges have them."""
    try:
        task(name)
    except ModuleNotFoundError as error:
        return f"{error.name} is not installed on the machine that graded this"
    return ""


def _read(path: Path) -> _Notebook:
    try:
        exercise = read_exercise(path)
    except Unreadable as error:
        return _Notebook(path.name, None, f"not graded: it {error}")
    work = [
        None if source.text is None else AnsweredTask(source.task.id, tuple(program(source.task, exercise.answers)))
        for source in exercise.answers
    ]
    return _Notebook(path.name, exercise, work=work)


def _submission(
    submission: Submission,
    notebooks: Sequence[_Notebook],
    answers: Sequence[AnsweredTask],
    results: Mapping[AnsweredTask, JudgedAnswer],
) -> SubmissionMarks:
    """Return the marks of a submission: of each exercise the one notebook that counts, the others in the remarks."""
    repeated = {replace(one, hurried=True): one for one in again(answers, results)}
    marked = []
    for file, exercise, remark, work in notebooks:
        if exercise is None:
            marked.append(ExerciseMarks(file, None, (), (remark,)))
            continue
        tasks = []
        for (of, text, its_remarks), one in zip(exercise.answers, work, strict=True):
            result = results[repeated.get(one, one)] if one else None
            report, together = (result.report, result.together) if result else (None, False)
            tasks.append(TaskMarks(of.id, of.title, of.points, report, its_remarks, together, text or ""))
        marked.append(ExerciseMarks(file, exercise.chapter, tuple(tasks), exercise.remarks, exercise.words))
    counts = {each.chapter: each for each in sorted(marked, key=_precedence)}
    graded, all_remarks = [], [*submission.remarks, *remarks(answers, results)]
    for each in marked:
        if each.chapter is None or each is counts[each.chapter]:
            graded.append(each)
        else:
            other = counts[each.chapter].file
            all_remarks.append(f"{each.file} was not graded: {other} counts for exercise {each.chapter:02}")
    return SubmissionMarks(submission.name, tuple(graded), tuple(all_remarks))


def _precedence(exercise: ExerciseMarks) -> tuple[int, bool]:
    """Sort key of notebooks of one exercise: the last counts. The sort is stable, so the last by name wins a tie.

    A notebook with more answers counts; with as many, the learner's own and not an update that lies beside it.
    """
    answered = sum(task.report is not None and task.report.answered for task in exercise.tasks)
    return answered, updated_name(exercise.file) is None
