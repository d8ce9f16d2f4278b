"""An exercise as it was released, with somebody's answers in it and the report of each. Nothing of it is run.

A notebook of nbgrader's: its answer cells hold what was graded, and the value of each check cell is its points, which
nbgrader reads, shown as the report, which the learner reads.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from typing import Any

from dpbook.classroom.marks.marks import ExerciseMarks, TaskMarks
from dpbook.classroom.marks.submitted_notebook import Exercise
from dpbook.classroom.tasks.load_tasks import Task, list_tasks
from dpbook.classroom.tasks.notebook_cells import Cell, Notebook, mark, source, without_regions
from dpbook.core import DpbookError, checkout

NOT_RUN: dict[str, Any] = {"outputs": [], "execution_count": None}


def exercise_named(name: str) -> int | None:
    """The chapter whose exercise has this name, without ``.ipynb``; None if none has."""
    there = (checkout.root() / "exercises" / f"{name}.ipynb").is_file()
    return int(name[:2]) if there and name[:2].isdecimal() else None


def answered(released: Notebook, exercise: Exercise | None) -> Notebook:
    """The released notebook with the answers of an exercise, None where none could be read, and without outputs."""
    code = {taken.task.answer_cell: taken.text or "" for taken in exercise.answers} if exercise else {}
    words = {each.id: each.answer for each in exercise.words} if exercise else {}
    return {**released, "cells": [_answered(cell, {**code, **words}) for cell in released["cells"]]}


def _answered(cell: Cell, texts: dict[str, str]) -> Cell:
    text = texts.get(mark(cell).get("grade_id", "")) or source(cell)
    return {**cell, "source": text, **(NOT_RUN if cell["cell_type"] == "code" else {})}


def reported(nb: Notebook, marks: ExerciseMarks, chapter: int) -> Notebook:
    """The notebook with points and report in the check cells of this chapter, and without their hidden tests.

    Points count as much as the cell says. Raises `DpbookError` for a check cell that is no task's: nbgrader would
    give it all points.
    """
    there = {mark(cell).get("grade_id") for cell in nb["cells"]}
    asked = [task for task in list_tasks(chapter) if task.check_cell in there]
    reports = {task.check_cell: report for task, report in zip(asked, _reports(marks, chapter, asked), strict=True)}
    return {**nb, "cells": [_with_report(cell, reports) for cell in nb["cells"]]}


def _reports(marks: ExerciseMarks, chapter: int, tasks: Sequence[Task]) -> Iterator[TaskMarks]:
    """Return a report for each task; the first one also holds the remarks on the whole notebook."""
    told = marks.remarks
    if marks.chapter not in (None, chapter):
        told = (*told, f"not graded: this is exercise {marks.chapter:02}, handed in as exercise {chapter:02}")
    done = {task.task: task for task in marks.tasks}
    for task in tasks:
        found = done.get(task.id) or TaskMarks(task.id, task.title, task.points, None)
        yield replace(found, remarks=(*told, *found.remarks))
        told = ()


def _with_report(cell: Cell, reports: dict[str, TaskMarks]) -> Cell:
    grade_id = mark(cell).get("grade_id", "")
    if cell["cell_type"] != "code" or not mark(cell).get("grade"):
        return cell
    if grade_id not in reports:
        raise DpbookError(f"cell {grade_id} belongs to no task: put it into a notebook of another name")
    task = reports[grade_id]
    points = task.points * mark(cell)["points"] / task.possible
    return {**cell, "source": without_regions(cell, grade_id), "outputs": [_output(task, points)]}


def _output(task: TaskMarks, points: float) -> dict[str, Any]:
    shown = {"text/plain": f"{points:g}", "text/html": _section(task)}
    return {"output_type": "execute_result", "data": shown, "metadata": {}, "execution_count": None}


def _section(task: TaskMarks) -> str:
    missing = f"<p><strong>{task.task} {escape(task.title)}: 0 of {task.possible} points</strong></p>"
    report = task.report._repr_html_() if task.report else missing
    return report + "".join(f"<p><em>{escape(remark)}</em></p>" for remark in task.remarks)
