"""Steps that nbgrader takes differently for exercises of the book; a course may have other assignments beside them.

To be used from ``nbgrader_config.py``, by `configure`. For an exercise of the book, which nbgrader knows by its name:

- ``generate_assignment`` leaves the stubs that the book's own learners get;
- ``autograde`` takes the released notebook and puts only the answers into it, so that no cell is missing or doubled;
- nothing of it runs in a kernel: `dpbook.classroom.marks.grade` judges the file that was handed in, and the value of
  each check cell is its points, shown as the report.
"""

import os
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbgrader.converters import Autograde, GenerateAssignment
from nbgrader.preprocessors import ClearSolutions, Execute
from nbgrader.preprocessors.base import NbGraderPreprocessor
from nbgrader.utils import is_solution
from traitlets import Integer

from dpbook.classroom import begin_course
from dpbook.classroom.marks import (
    Submission,
    Unreadable,
    answered,
    exercise_named,
    grade,
    read_exercise,
    reported,
    without_regions,
)

TIMEOUTS = {"timeout": 600, "startup_timeout": 120, "iopub_timeout": 60, "interrupt_on_timeout": True}
"""Seconds, for notebooks that nbgrader itself runs: ``nbgrader validate`` and assignments that are not the book's."""
Resources = dict[str, Any]
Result = tuple[Any, Resources]
"""A notebook or a cell, and what else is known of it."""


def configure(c: Any, seed: int, course: int | None = None) -> None:
    """Set in nbgrader's configuration ``c`` what exercises of the book need.

    Marks are drawn from ``seed``; with ``course`` answers are judged by the numbers of this course.
    """
    c.GenerateAssignment.preprocessors = _replaced(GenerateAssignment, "preprocessors", ClearSolutions, [Stubs])
    c.Autograde.sanitize_preprocessors = [Answers, *_usual(Autograde, "sanitize_preprocessors")]
    c.Autograde.autograde_preprocessors = _replaced(
        Autograde, "autograde_preprocessors", Execute, [ExecuteOthers, BookMarks]
    )
    c.BookMarks.update({"seed": seed, "course": course})
    c.Execute.update(TIMEOUTS)
    # nbgrader starts alembic by its name, which is beside it also where no environment is activated.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def _usual(converter: Any, name: str) -> list[type]:
    return list(converter.class_traits()[name].default())


def _replaced(converter: Any, name: str, old: type, new: list[type]) -> list[type]:
    return [each for usual in _usual(converter, name) for each in (new if usual is old else [usual])]


class Stubs(ClearSolutions):  # type: ignore[misc]
    """Solutions become the stubs of `dpbook.classroom.tasks.notebook_cells`."""

    def preprocess_cell(self, cell: Any, resources: Resources, cell_index: int) -> Result:
        if _of_the_book(resources) and cell.cell_type == "code" and is_solution(cell):
            stub = without_regions(cell, _name(resources))
            if stub != cell.source:  # else nothing is marked, and all of it is the solution
                cell.source = stub
                return cell, resources
        usual: Result = super().preprocess_cell(cell, resources, cell_index)
        return usual


class Answers(NbGraderPreprocessor):  # type: ignore[misc]
    """Put the answers of a submission into the released notebook."""

    def preprocess(self, nb: Any, resources: Resources) -> Result:
        if not _of_the_book(resources):
            return nb, resources
        released = nbformat.read(_path(self, resources, "release"), as_version=4)
        try:
            exercise = read_exercise(_path(self, resources, "submitted"))
        except Unreadable:
            exercise = None  # what it is, the marks will tell
        return nbformat.from_dict(answered(released, exercise)), resources


class ExecuteOthers(Execute):  # type: ignore[misc]
    """Runs notebooks that are not the book's."""

    def preprocess(self, nb: Any, resources: Resources, *args: Any) -> Result:
        if _of_the_book(resources):
            return nb, resources
        run: Result = super().preprocess(nb, resources, *args)
        return run


class BookMarks(NbGraderPreprocessor):  # type: ignore[misc]
    """The marks of an exercise of the book, from the file that was handed in."""

    seed = Integer(help="Of the instances that answers are tried on").tag(config=True)
    course = Integer(None, allow_none=True, help="By whose numbers answers are judged").tag(config=True)

    def preprocess(self, nb: Any, resources: Resources) -> Result:
        chapter = exercise_named(_name(resources))
        if chapter is None:
            return nb, resources
        handed = Submission(resources["nbgrader"]["student"], (_path(self, resources, "submitted"),))
        begin_course(self.course)
        marks = grade([handed], self.seed, jobs=os.cpu_count() or 1)
        for guard in marks.not_contained:
            self.log.warning("not contained: %s", guard)
        return nbformat.from_dict(reported(nb, marks.submissions[0].exercises[0], chapter)), resources


def _of_the_book(resources: Resources) -> bool:
    return exercise_named(_name(resources)) is not None


def _name(resources: Resources) -> str:
    return str(resources["nbgrader"]["notebook"])


def _path(preprocessor: Any, resources: Resources, step: str) -> Path:
    """Return the place of the notebook at a step: ``release`` or ``submitted``."""
    course, known = preprocessor.parent.parent.coursedir, resources["nbgrader"]
    student = "." if step == "release" else known["student"]
    folder = course.format_path(getattr(course, f"{step}_directory"), student, known["assignment"])
    return Path(folder) / f"{_name(resources)}.ipynb"
