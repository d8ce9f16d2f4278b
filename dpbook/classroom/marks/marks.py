"""What came of grading, as plain values: any kind of report is made from these."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpbook.classroom.marks.written_answers import InWords
from dpbook.classroom.tasks.cases import Report


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
