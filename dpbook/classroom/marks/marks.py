"""Marks as plain values: of a task, an exercise, a submission and a class; and as a table for a terminal."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dpbook.classroom.marks.submitted_notebook import InWords
from dpbook.classroom.tasks.report import Report
from dpbook.classroom.tasks.text import one_line
from dpbook.core import plural


@dataclass(frozen=True)
class TaskMarks:
    """One task of a submission. ``report`` is None where there was nothing to judge.

    ``together``: part of what was judged came from the answer's own process, where it was watched.
    """

    task: str
    title: str
    possible: int
    report: Report | None
    remarks: tuple[str, ...] = ()
    together: bool = False

    @property
    def points(self) -> int:
        return self.report.points if self.report else 0

    @property
    def reason(self) -> str:
        """Why points are missing, in one line: of the first check that failed; empty where none are."""
        if self.report is None:
            return self.remarks[-1] if self.remarks else "not answered"
        if not self.report.answered:
            return "not answered yet"
        failed = next((case for case in self.report.cases if not case.passed), None)
        if failed is None:
            return ""
        came = " ".join(failed.got.split())
        return f"{failed.name}: {came}" if came else failed.name


@dataclass(frozen=True)
class ExerciseMarks:
    """One notebook. ``chapter`` is None, and there are no tasks, where it could not be graded, as ``remarks`` say.

    ``words``: what a person is to mark, with points that are in no sum.
    """

    file: str
    chapter: int | None
    tasks: tuple[TaskMarks, ...]
    remarks: tuple[str, ...] = ()
    words: tuple[InWords, ...] = ()

    @property
    def points(self) -> int:
        return sum(task.points for task in self.tasks)

    @property
    def possible(self) -> int:
        return sum(task.possible for task in self.tasks)

    @property
    def in_words(self) -> int:
        """Points that a person gives, for arguments in words."""
        return sum(each.possible for each in self.words)


@dataclass(frozen=True)
class SubmissionMarks:
    """All that somebody handed in."""

    name: str
    exercises: tuple[ExerciseMarks, ...]
    remarks: tuple[str, ...] = ()

    @property
    def points(self) -> int:
        return sum(exercise.points for exercise in self.exercises)

    @property
    def possible(self) -> int:
        return sum(exercise.possible for exercise in self.exercises)


@dataclass(frozen=True)
class Marks:
    """All submissions, the seed that their instances were drawn from, and what could not be contained here.

    ``course``: the seed of the course by whose numbers they were judged, None for the book's.
    """

    submissions: tuple[SubmissionMarks, ...]
    seed: int
    not_contained: tuple[str, ...] = ()
    course: int | None = None

    @property
    def full(self) -> bool:
        """Whether every submission has all points, and nothing was left out."""
        return all(
            submission.exercises
            and submission.points == submission.possible
            and all(exercise.chapter is not None for exercise in submission.exercises)
            for submission in self.submissions
        )

    def as_json(self) -> dict[str, Any]:
        """For other programs: no case's source, no time."""
        return {
            "seed": self.seed,
            "course": self.course,
            "not_contained": list(self.not_contained),
            "submissions": [_submission(each) for each in self.submissions],
        }


def _submission(submission: SubmissionMarks) -> dict[str, Any]:
    return {
        "name": submission.name,
        "points": submission.points,
        "possible": submission.possible,
        "remarks": list(submission.remarks),
        "exercises": [
            {
                "file": exercise.file,
                "chapter": exercise.chapter,
                "points": exercise.points,
                "possible": exercise.possible,
                "in_words": exercise.in_words,
                "remarks": list(exercise.remarks),
                "tasks": [_task(task) for task in exercise.tasks],
            }
            for exercise in submission.exercises
        ],
    }


def _task(task: TaskMarks) -> dict[str, Any]:
    cases: Sequence[Any] = task.report.cases if task.report else ()
    return {
        "task": task.task,
        "title": task.title,
        "points": task.points,
        "possible": task.possible,
        "reason": task.reason,
        "judged_together": task.together,
        "remarks": list(task.remarks),
        "checks": [
            {"name": case.name, "points": case.points, "passed": case.passed, **dict(case.details())} for case in cases
        ],
    }


WIDTH = 110


def table(marks: Marks) -> str:
    """All of ``marks``; of a class a summary, last."""
    lines = [line for submission in marks.submissions for line in _submission_lines(submission)]
    if len(marks.submissions) > 1:
        lines += list(_class(marks))
    together = sorted({t.task for s in marks.submissions for e in s.exercises for t in e.tasks if t.together})
    if together:
        lines.append(f"judged together with the answer, whose process reported part of it: {', '.join(together)}")
    lines += [f"not contained: {each}" for each in marks.not_contained]
    course = "" if marks.course is None else f", course {marks.course}"
    return "\n".join([*lines, f"seed {marks.seed}{course}"])


def _submission_lines(submission: SubmissionMarks) -> Iterator[str]:
    yield f"{_shown(submission.name)}: {submission.points} of {plural(submission.possible, 'point')}"
    yield from _remarks(submission.remarks, "  ")
    for exercise in submission.exercises:
        yield from _exercise(exercise)
    yield ""


def _exercise(exercise: ExerciseMarks) -> Iterator[str]:
    yield f"  {_shown(exercise.file)}: {exercise.points} of {exercise.possible}"
    yield from _remarks(exercise.remarks, "    ")
    for task in exercise.tasks:
        reason = one_line(task.reason, WIDTH)
        yield f"    {task.task:6}{task.points:3} of {task.possible:2}  {task.title}" + (
            f" – {reason}" if reason else ""
        )
        yield from _remarks([remark for remark in task.remarks if remark != task.reason], " " * 18)
    if exercise.in_words:
        yield f"    and up to {exercise.in_words} for an argument in words, which a person gives"


def _class(marks: Marks) -> Iterator[str]:
    names = [_shown(submission.name) for submission in marks.submissions]
    width = max(map(len, names))
    yield "class"
    for name, submission in zip(names, marks.submissions, strict=True):
        files = [exercise for exercise in submission.exercises if exercise.chapter is None]
        left = f"  {plural(len(files), 'file')} not graded" if files else ""
        left = left if submission.exercises else "  no notebook"
        yield f"  {name:{width}}{submission.points:5} of {submission.possible:3}{left}"
    yield ""


def _remarks(remarks: object, indent: str) -> Iterator[str]:
    assert isinstance(remarks, tuple | list)
    yield from (f"{indent}! {one_line(remark, 2 * WIDTH)}" for remark in remarks)


def _shown(name: str) -> str:
    return one_line(name.encode("utf-8", "replace").decode(), 60)
