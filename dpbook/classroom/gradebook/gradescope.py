"""Marks of one submission as Gradescope's autograder wants them: its ``results.json``."""

from typing import Any

from dpbook.classroom.marks import ExerciseMarks, Marks, TaskMarks
from dpbook.core import DpbookError


def results(marks: Marks) -> dict[str, Any]:
    """A test for each task, visible to the learner. Raises `DpbookError` unless there is exactly one submission."""
    if len(marks.submissions) != 1:
        raise DpbookError(f"Gradescope takes the marks of one submission, and these are of {len(marks.submissions)}")
    submission = marks.submissions[0]
    said = [*submission.remarks, *(line for each in submission.exercises for line in _remarks(each))]
    return {
        "score": submission.points,
        "output": "\n".join(said),
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": [_test(task) for exercise in submission.exercises for task in exercise.tasks],
    }


def _remarks(exercise: ExerciseMarks) -> list[str]:
    words = [f"up to {each.possible} points by a person: {each.title}" for each in exercise.words]
    return [f"{exercise.file}: {each}" for each in (*exercise.remarks, *words)]


def _test(task: TaskMarks) -> dict[str, Any]:
    report = repr(task.report) if task.report else task.reason
    return {
        "number": task.task,
        "name": task.title,
        "score": task.points,
        "max_score": task.possible,
        "status": "passed" if task.points == task.possible else "failed",
        "output": "\n".join([report, *(each for each in task.remarks if each != report)]),
        "output_format": "text",
        "visibility": "visible",
    }
