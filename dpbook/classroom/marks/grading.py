"""Marks for submissions: each task is judged here, on values that come from the answer's own processes."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dpbook.classroom.marks import judges
from dpbook.classroom.marks.cells import Exercise, program, take
from dpbook.classroom.marks.judges import Judged, Work, judged, not_judged
from dpbook.classroom.marks.marks import ExerciseMarks, Marks, SubmissionMarks, TaskMarks
from dpbook.classroom.marks.submissions import Handed, updated_name
from dpbook.classroom.marks.submitted_notebook import Unreadable
from dpbook.classroom.sandbox.containment import GUARDS
from dpbook.classroom.sandbox.servers import Servers
from dpbook.classroom.tasks.load_tasks import task
from dpbook.classroom.tasks.numbers import current_course
from dpbook.core import DpbookError

Tell = Callable[[int, int], None]
"""Called with the number of tasks that are graded, and of all."""

Place = tuple[int, int]
"""Numbers of a notebook in a submission, and of a task in this."""


def grade(handed: Sequence[Handed], seed: int, *, jobs: int = 1, tell: Tell = lambda finished, of: None) -> Marks:
    """The marks of all submissions, in their order; each is what it would be if it was graded alone.

    Raises `DpbookError` on a system that is not Linux.
    """
    if sys.platform != "linux":
        raise DpbookError("marks are given on Linux alone, where answers can be contained: grade in a container")
    taken = [[_take(path) for path in each.notebooks] for each in handed]
    answers = [_work(each) for each in taken]
    every = list(dict.fromkeys(one for each in answers for one in each.values()))
    absent = {name: what for name in {one.task for one in every} if (what := _absent(name))}
    results = {one: not_judged(one, absent[one.task]) for one in every if one.task in absent}
    with Servers(torch=any(one.torch for one in every if one not in results)) as servers:
        while waiting := [one for one in every if one not in results]:
            of = len(results) + len(waiting)
            for one, result in judged(waiting, servers, seed, jobs):
                results[one] = result
                tell(len(results), of)
            every = list(dict.fromkeys(one for each in answers for one in judges.again(each.values(), results)))
        servers.check()
    missing = [text for name, text in GUARDS.items() if not all(one.guards.get(name, True) for one in results.values())]
    marks = [_submission(*each, results) for each in zip(handed, taken, answers, strict=True)]
    return Marks(tuple(marks), seed, tuple(missing), current_course())


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


def _work(exercises: Sequence[Exercise | str]) -> dict[Place, Work]:
    return {
        (e, t): Work(taken.task.id, tuple(program(taken.task, exercise.answers)))
        for e, exercise in enumerate(exercises)
        if not isinstance(exercise, str)
        for t, taken in enumerate(exercise.answers)
        if taken.text is not None
    }


def _submission(
    handed: Handed, exercises: Sequence[Exercise | str], answers: Mapping[Place, Work], results: Mapping[Work, Judged]
) -> SubmissionMarks:
    again = {replace(one, hurried=True): one for one in judges.again(answers.values(), results)}
    marked = []
    for e, (path, exercise) in enumerate(zip(handed.notebooks, exercises, strict=True)):
        if isinstance(exercise, str):
            marked.append(ExerciseMarks(path.name, None, (), (f"not graded: it {exercise}",)))
            continue
        tasks = []
        for t, taken in enumerate(exercise.answers):
            one = answers.get((e, t))
            result = results[again.get(one, one)] if one else None
            report, together = (result.report, result.together) if result else (None, False)
            tasks.append(TaskMarks(taken.task.id, taken.task.title, taken.task.points, report, taken.remarks, together))
        marks = ExerciseMarks(path.name, exercise.chapter, tuple(tasks), exercise.remarks, exercise.words)
        marked.append(marks)
    remarks = (*handed.remarks, *judges.remarks(answers.values(), results))
    return _once(SubmissionMarks(handed.name, tuple(marked), remarks))


def _once(submission: SubmissionMarks) -> SubmissionMarks:
    """Keep one of several notebooks of an exercise, the one that counts, and name the others in the remarks."""
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
            remarks.append(f"{exercise.file} was left out: {counts[chapter].file} counts for exercise {chapter:02}")
    return replace(submission, exercises=tuple(graded), remarks=tuple(remarks))


def _precedence(exercise: ExerciseMarks) -> tuple[int, bool]:
    """Sort key of notebooks of one exercise: the last counts. The sort is stable, so the last by name wins a tie.

    A notebook with more answers counts; with as many, the learner's own and not an update that lies beside it.
    """
    answered = sum(task.report is not None and task.report.answered for task in exercise.tasks)
    return answered, updated_name(exercise.file) is None
