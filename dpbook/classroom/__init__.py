"""Graded tasks: an answer is judged at once in the notebook, by the values that it returns.

CONTRIBUTING.md explains how to write one.
"""

from typing import TYPE_CHECKING

from dpbook.classroom.tasks.answer import Answer, LocalAnswer, NotAnswered, Through, Wrong, call, value, where_apart
from dpbook.classroom.tasks.expectations import (
    Numbers,
    begin_course,
    current_course,
    expect,
    expect_at_most,
    expect_close,
    expect_equal,
    expect_items,
    expect_number,
    expect_schedule,
    known_mistake,
)
from dpbook.classroom.tasks.judging import judge, of_all_checks
from dpbook.classroom.tasks.load_tasks import Check, Hints, Task, hint, list_tasks, task
from dpbook.classroom.tasks.notebook_check import check, exercise, share_checks
from dpbook.classroom.tasks.other_interpreter import call_each
from dpbook.classroom.tasks.reader_progress import Progress, progress
from dpbook.classroom.tasks.report import Case, ParResult, Report, describe
from dpbook.core import lazy_exports

if TYPE_CHECKING:
    from dpbook.classroom.course import varying, write_course
    from dpbook.classroom.oral_exam import questions_page
    from dpbook.classroom.slide_deck import write_slides

__getattr__ = lazy_exports(
    __name__, varying="course", write_course="course", questions_page="oral_exam", write_slides="slide_deck"
)
