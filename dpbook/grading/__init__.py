"""Graded tasks: judged at once in the notebook, by the values that an answer yields.

How to write one is told in CONTRIBUTING.md.
"""

from dpbook.grading.answer import (
    Answer,
    LocalAnswer,
    NotAnswered,
    Through,
    Wrong,
    call,
    value,
    where_apart,
)
from dpbook.grading.cases import Case, Report
from dpbook.grading.declared import register, task, tasks
from dpbook.grading.definition import Check, Task
from dpbook.grading.expectations import (
    expect,
    expect_at_most,
    expect_close,
    expect_equal,
    expect_items,
    expect_number,
    expect_schedule,
)
from dpbook.grading.hints import Hints, hint
from dpbook.grading.judging import check, judge, of_all_checks
from dpbook.grading.numbers import Numbers, begin_course, course
from dpbook.grading.progress_file import progress
from dpbook.grading.progress_map import Progress
from dpbook.grading.text import describe
from dpbook.grading.unanswered import exercise
