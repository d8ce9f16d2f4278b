"""Graded tasks: judged at once in the notebook, by the values that an answer yields.

How to write one is told in CONTRIBUTING.md.
"""

from dpbook.classroom.tasks.answer import Answer, LocalAnswer, NotAnswered, Through, Wrong, call, value, where_apart
from dpbook.classroom.tasks.definition import Check, Task
from dpbook.classroom.tasks.expectations import (
    expect,
    expect_at_most,
    expect_close,
    expect_equal,
    expect_items,
    expect_number,
    expect_schedule,
)
from dpbook.classroom.tasks.judging import judge, of_all_checks
from dpbook.classroom.tasks.load_tasks import Hints, hint, list_tasks, register, task
from dpbook.classroom.tasks.notebook_check import check, exercise, share_checks
from dpbook.classroom.tasks.numbers import Numbers, begin_course, current_course
from dpbook.classroom.tasks.reader_progress import Progress, progress
from dpbook.classroom.tasks.report import Case, Report
from dpbook.classroom.tasks.text import describe
