"""Marks as files for other systems: a CSV file for Canvas and Moodle, a JSON file for Gradescope."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from dpbook.classroom.gradebook.roster import Roster, Row, cell, name
from dpbook.classroom.marks import ExerciseMarks, Marks, SubmissionMarks, TaskMarks
from dpbook.core import DpbookError, plural

_CANVAS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
_MOODLE = ("First name", "Last name", "Username", "ID number", "Email address")
_POSSIBLE = "Points Possible"

Points = dict[str, int]
"""By the title of a task's column."""


def spreadsheet(marks: Marks, form: str, roster: Roster | None = None) -> tuple[bytes, list[str]]:
    """The file's content, in the ``form`` "plain", "canvas" or "moodle", and what is to be told of names.

    A task is empty where its exercise was not handed in or not graded, and so are points that a person gives.
    """
    columns = _columns(marks)
    submissions, together = _together(marks.submissions, roster) if roster else (marks.submissions, [])
    names = [each.name for each in submissions]
    rows, told = roster.match(names) if roster else ([None] * len(names), [])
    titles = _titles(form, roster)
    lines: list[list[str | int]] = [[*titles, *columns]]
    if form != "moodle":
        lines.append([f"    {_POSSIBLE}", *[""] * (len(titles) - 1), *columns.values()])
    for submission, row in zip(submissions, rows, strict=True):
        points = _points(submission)
        who = map(_harmless, _who(form, titles, submission, row, roster is not None))
        lines.append([*who, *(points.get(title, "") for title in columns)])
    text = io.StringIO(newline="")
    csv.writer(text).writerows(lines)
    return text.getvalue().encode("utf-8-sig" if form == "plain" else "utf-8", "replace"), [*together, *told]


def _together(submissions: Sequence[SubmissionMarks], roster: Roster) -> tuple[list[SubmissionMarks], list[str]]:
    """Submissions of one student that are of different exercises become one, with the first's name; and what to tell.

    In rows of their own, each would erase from a gradebook what the others give.
    """
    rows, _ = roster.match([each.name for each in submissions])
    kept: list[SubmissionMarks] = []
    joined = 0
    for number, (submission, row) in enumerate(zip(submissions, rows, strict=True)):
        same = [n for n, other in enumerate(rows) if row is not None and other is row]
        exercises = [each for n in same for each in submissions[n].exercises]
        graded = [each.chapter for each in exercises if each.chapter is not None]
        if len(same) < 2 or len(set(graded)) < len(graded):
            kept.append(submission)
        elif number == same[0]:
            kept.append(replace(submission, exercises=tuple(exercises)))
            joined += 1
    return kept, [f"{plural(joined, 'student')} with several submissions, of different exercises: one row each"][
        :joined
    ]


def _columns(marks: Marks) -> Points:
    """Return the possible points of each task that anybody has submitted, in the book's order."""
    found = {}
    for exercise in (each for submission in marks.submissions for each in submission.exercises):
        for task in exercise.tasks:
            found[f"{task.task} {task.title}"] = task.possible
        for words in exercise.words:
            found[f"{exercise.chapter:02} {words.title}"] = words.possible
    return dict(sorted(found.items(), key=lambda item: _order(item[0])))


def _order(title: str) -> tuple[str, bool, int]:
    number = title.partition(" ")[0]
    return number[:2], "." not in number, int(number[3:] or 0)


def _points(submission: SubmissionMarks) -> Points:
    return {f"{task.task} {task.title}": task.points for each in submission.exercises for task in each.tasks}


def _titles(form: str, roster: Roster | None) -> list[str]:
    rows = roster.rows if roster else ()
    if form == "canvas":
        return list(_CANVAS)
    if form == "moodle":
        return [title for title in _MOODLE if any(cell(row, title) for row in rows)] or ["Username"]
    return ["Submission", *(roster.columns if roster else ()), "Total"]


def _who(
    form: str, titles: list[str], submission: SubmissionMarks, row: Row | None, listed: bool
) -> Iterator[str | int]:
    """The cells before the points. Of a submission that is nobody's they hold its own name."""
    if form == "plain":
        yield submission.name
        yield from ((row or {}).get(title, "") for title in titles[1:-1])
        yield submission.points
    elif form == "canvas":
        yield (name(row) if row else "") or submission.name
        login = {} if listed else {"SIS Login ID": submission.name}
        yield from (cell(login if row is None else row, title) for title in titles[1:])
    else:
        nobody = {titles[0]: submission.name}
        yield from (cell(nobody if row is None else row, title) for title in titles)


def _harmless(value: str | int) -> str | int:
    """A text that no spreadsheet takes for a formula, and Canvas not for its line of possible points."""
    if isinstance(value, int):
        return value
    value = value.replace(_POSSIBLE, _POSSIBLE.lower())
    return f"'{value}" if value.lstrip()[:1] in tuple("=+-@|") or value[:1] in tuple("\t\r\n") else value


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
