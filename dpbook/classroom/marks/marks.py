"""Marks as plain values: of a task, an exercise, a submission and a class; as a table, and in a notebook of nbgrader's.

Such a notebook is the exercise as it was released. Its answer cells have what was graded; the value of each check cell
is its points, which nbgrader reads, shown as the report, which the learner reads. Nothing of it is run.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from dpbook.classroom.marks.submitted_notebook import Exercise, WrittenQuestion
from dpbook.classroom.tasks.load_tasks import list_tasks
from dpbook.classroom.tasks.notebook_cells import Cell, Notebook, mark, source, without_regions
from dpbook.classroom.tasks.report import Case, Report, one_line
from dpbook.core import DpbookError, checkout, plural


@dataclass(frozen=True)
class TaskMarks:
    """One task of a submission. ``report`` is None where there was nothing to judge.

    ``together``: part of what was judged came from the answer's own process, where it was watched. ``text`` is the
    answer, which no report prints.
    """

    task: str
    title: str
    possible: int
    report: Report | None
    remarks: tuple[str, ...] = ()
    together: bool = False
    text: str = ""

    @property
    def points(self) -> int:
        return self.report.points if self.report else 0

    @property
    def cases(self) -> tuple[Case, ...]:
        return self.report.cases if self.report else ()

    @property
    def reason(self) -> str:
        """Reason for lost points, in one line, from the first failed check; empty if no points are lost."""
        if self.report is None:
            return self.remarks[-1] if self.remarks else "not answered"
        if not self.report.answered:
            return "not answered yet"
        failed = next((case for case in self.cases if not case.passed), None)
        if not failed or not failed.got:
            return failed.name if failed else ""
        return f"{failed.name}: expected {one_line(failed.expected, EXPECTED_WIDTH)}, got {one_line(failed.got)}"


@dataclass(frozen=True)
class ExerciseMarks:
    """One notebook. ``chapter`` is None, and there are no tasks, where it could not be graded, as ``remarks`` say.

    ``words``: what a person is to mark, with points that are in no sum.
    """

    file: str
    chapter: int | None
    tasks: tuple[TaskMarks, ...]
    remarks: tuple[str, ...] = ()
    words: tuple[WrittenQuestion, ...] = ()

    @property
    def points(self) -> int:
        return sum(task.points for task in self.tasks)

    @property
    def possible(self) -> int:
        return sum(task.possible for task in self.tasks)

    @property
    def given(self) -> int | None:
        """Points that a person has given for arguments in words; None if there are none yet."""
        given = [each.given for each in self.words if each.given is not None]
        return sum(given) if given else None

    @property
    def in_words(self) -> int:
        """Possible points for arguments in words, which a person marks."""
        return sum(each.possible for each in self.words)


@dataclass(frozen=True)
class SubmissionMarks:
    """Marks of one submission."""

    name: str
    exercises: tuple[ExerciseMarks, ...]
    remarks: tuple[str, ...] = ()

    @property
    def tasks(self) -> list[TaskMarks]:
        return [task for exercise in self.exercises for task in exercise.tasks]

    @property
    def points(self) -> int:
        return sum(exercise.points for exercise in self.exercises)

    @property
    def possible(self) -> int:
        return sum(exercise.possible for exercise in self.exercises)


@dataclass(frozen=True)
class Marks:
    """All submissions, the seed of the test instances, and the sandbox guarantees that this machine lacks.

    ``course``: the seed of the course by whose numbers they were judged, None for the book's.
    """

    submissions: tuple[SubmissionMarks, ...]
    seed: int
    not_contained: tuple[str, ...] = ()
    course: int | None = None

    @property
    def full(self) -> bool:
        """Whether every submission has full points and every file was graded."""
        return all(
            submission.exercises
            and submission.points == submission.possible
            and all(exercise.chapter is not None for exercise in submission.exercises)
            for submission in self.submissions
        )

    def as_json(self) -> dict[str, Any]:
        """Return the marks as JSON for other programs, without the source of cases and without times."""
        return {
            "seed": self.seed,
            "course": self.course,
            "not_contained": list(self.not_contained),
            "submissions": [_submission(each) for each in self.submissions],
        }


def _submission(submission: SubmissionMarks) -> dict[str, Any]:
    exercises = [
        _fields(exercise, "file", "chapter", "points", "possible", "in_words", "given", "remarks")
        | {"tasks": [_task(task) for task in exercise.tasks]}
        for exercise in submission.exercises
    ]
    return _fields(submission, "name", "points", "possible", "remarks") | {"exercises": exercises}


def _task(task: TaskMarks) -> dict[str, Any]:
    checks = [_fields(case, "name", "points", "passed") | dict(case.details()) for case in task.cases]
    fields = _fields(task, "task", "title", "points", "possible", "reason", "remarks")
    return fields | {"judged_together": task.together, "checks": checks}


def _fields(value: object, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


WIDTH, EXPECTED_WIDTH = 120, 40
"""Characters of a reason in the table, and in it of what was expected."""


def table(marks: Marks) -> str:
    """Return ``marks`` as a text table; for a class, a summary comes last."""
    lines = [line for submission in marks.submissions for line in _submission_lines(submission)]
    if len(marks.submissions) > 1:
        lines += _class(marks)
    together = sorted({task.task for each in marks.submissions for task in each.tasks if task.together})
    if together:
        lines.append(f"some judged values came from the answer's own process: {', '.join(together)}")
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
        lost = f" – {reason}" if reason else ""
        yield f"    {task.task:6}{task.points:3} of {task.possible:2}  {task.title}{lost}"
        yield from _remarks([remark for remark in task.remarks if remark != task.reason], " " * 18)
    if exercise.in_words:
        points = f"up to {exercise.in_words}" if exercise.given is None else f"{exercise.given} of {exercise.in_words}"
        yield f"    and {points} for an argument in words, marked by hand"


def _class(marks: Marks) -> list[str]:
    names = [_shown(submission.name) for submission in marks.submissions]
    lines = ["class"]
    for name, submission in zip(names, marks.submissions, strict=True):
        files = sum(exercise.chapter is None for exercise in submission.exercises)
        left = f"  {plural(files, 'file')} not graded" if files else "" if submission.exercises else "  no notebook"
        lines.append(f"  {name:{max(map(len, names))}}{submission.points:5} of {submission.possible:3}{left}")
    return [*lines, ""]


def _remarks(remarks: Iterable[str], indent: str) -> Iterator[str]:
    yield from (f"{indent}! {one_line(remark, 2 * WIDTH)}" for remark in remarks)


def _shown(name: str) -> str:
    return one_line(name.encode("utf-8", "replace").decode(), 60)


def exercise_named(name: str) -> int | None:
    """Return the chapter whose exercise has this name, without ``.ipynb``; None if none has."""
    there = (checkout.book() / "exercises" / f"{name}.ipynb").is_file()
    return int(name[:2]) if there and name[:2].isdecimal() else None


def answered(released: Notebook, exercise: Exercise | None) -> Notebook:
    """Return the released notebook, without outputs, with the answers of an exercise; None where none could be read."""
    texts: dict[str, str] = {}
    if exercise:
        texts = {source.task.answer_cell: source.text or "" for source in exercise.answers}
        texts |= {each.id: each.answer for each in exercise.words}
    cells = []
    for cell in released["cells"]:
        text = texts.get(mark(cell).get("grade_id", "")) or source(cell)
        not_run: dict[str, Any] = {"outputs": [], "execution_count": None} if cell["cell_type"] == "code" else {}
        cells.append({**cell, "source": text, **not_run})
    return {**released, "cells": cells}


def reported(nb: Notebook, marks: ExerciseMarks, chapter: int) -> Notebook:
    """Return the notebook with points and report in the chapter's check cells, and without their hidden tests.

    Points count as much as the cell says. The first report also holds the remarks on the whole notebook. Raises
    `DpbookError` for a check cell that is no task's: nbgrader would give it all points.
    """
    there = {mark(cell).get("grade_id") for cell in nb["cells"]}
    remarks = marks.remarks
    if marks.chapter not in (None, chapter):
        remarks = (*remarks, f"not graded: this is exercise {marks.chapter:02}, submitted as exercise {chapter:02}")
    done = {task.task: task for task in marks.tasks}
    reports = {}
    for task in list_tasks(chapter):
        if task.check_cell in there:
            found = done.get(task.id) or TaskMarks(task.id, task.title, task.points, None)
            reports[task.check_cell] = replace(found, remarks=(*remarks, *found.remarks))
            remarks = ()
    return {**nb, "cells": [_with_report(cell, reports) for cell in nb["cells"]]}


def _with_report(cell: Cell, reports: dict[str, TaskMarks]) -> Cell:
    grade_id = mark(cell).get("grade_id", "")
    if cell["cell_type"] != "code" or not mark(cell).get("grade"):
        return cell
    if grade_id not in reports:
        raise DpbookError(f"cell {grade_id} belongs to no task: move it to a notebook with another name")
    task = reports[grade_id]
    missing = f"<p><strong>{task.task} {escape(task.title)}: 0 of {task.possible} points</strong></p>"
    report = task.report._repr_html_() if task.report else missing
    data = {
        "text/plain": f"{task.points * mark(cell)['points'] / task.possible:g}",
        "text/html": report + "".join(f"<p><em>{escape(remark)}</em></p>" for remark in task.remarks),
    }
    output = {"output_type": "execute_result", "data": data, "metadata": {}, "execution_count": None}
    return {**cell, "source": without_regions(cell, grade_id), "outputs": [output]}
