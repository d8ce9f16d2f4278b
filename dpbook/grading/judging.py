"""Judging an answer: every check of its task, one after another, whatever the answer does."""

import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np

from dpbook.core import check_int
from dpbook.grading.answer import MAX_PRINTED, Answer, LocalAnswer, NotAnswered, Wrong
from dpbook.grading.cases import Case, Report
from dpbook.grading.declared import task
from dpbook.grading.definition import Check, Task
from dpbook.grading.progress_file import record
from dpbook.grading.text import clean, one_line


def check(task_id: str, answer: Any, *, seed: int = 0) -> Report:
    """Judge ``answer`` (the function or value itself) in this process and keep the points in the reader's workbook.

    The instances are drawn from ``seed``, so that the same answer gets the same report. An answer may do what it
    likes but loop for ever in C; the stop button interrupts. Raises `InvalidArgument` for an unknown task.
    """
    found = task(task_id)
    report = judge(found, LocalAnswer(answer), seed)
    return replace(report, notes=record(found, report.points)) if report.answered else report


def judge(asked: Task, answer: Answer, seed: int = 0, only: Collection[str] | None = None) -> Report:
    """Run the checks of ``asked`` on ``answer``, or those named in ``only``, and report; records nothing.

    Each has randomness of its own, whichever others are run.
    """
    streams = np.random.SeedSequence(check_int("seed", seed, 0)).spawn(len(asked.checks))
    start = time.perf_counter()
    wanted = [pair for pair in zip(asked.checks, streams, strict=True) if only is None or pair[0].name in only]
    cases = [_judge(one, answer, np.random.default_rng(stream)) for one, stream in wanted]
    seconds = time.perf_counter() - start
    return Report(asked.id, asked.title, tuple(cases), seconds, clean(answer.printed, 2 * MAX_PRINTED))


def _judge(one: Check, answer: Answer, rng: np.random.Generator) -> Case:
    answer.begin(one.seconds)
    try:
        note = one.run(answer, rng)
    except NotAnswered as wrong:
        return Case(one.name, one.points, False, wrong.expected, wrong.got, why=one.why, answered=False)
    except Wrong as wrong:
        expected, got, where = map(one_line, (wrong.expected, wrong.got, wrong.where))
        return Case(one.name, one.points, False, expected, got, where, one.why)
    except Exception as error:  # plain data, but not of the form that the check relies on
        said = one_line(f"a value on which the check itself stopped: {type(error).__name__}: {error}")
        return Case(one.name, one.points, False, "a value of the form that the task describes", said, why=one.why)
    return Case(one.name, one.points, True, why=one.why, note=note or "")
