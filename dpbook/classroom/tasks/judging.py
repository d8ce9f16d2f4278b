"""Judging an answer: every check of its task, one after another, whatever the answer does."""

import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np

from dpbook.classroom.tasks.answer import MAX_PRINTED, Answer, LocalAnswer, NotAnswered, Wrong
from dpbook.classroom.tasks.cases import Case, Report
from dpbook.classroom.tasks.definition import Check, Task
from dpbook.classroom.tasks.load_tasks import task
from dpbook.classroom.tasks.not_run import RUN_FIRST, NotRun
from dpbook.classroom.tasks.progress_file import record
from dpbook.classroom.tasks.python_calls import written
from dpbook.classroom.tasks.text import as_lines, clean, one_line
from dpbook.core import check_int

NO_RETURN = "your function returned None: is a return missing?"


def check(task_id: str, answer: Any, *, seed: int = 0) -> Report:
    """Judge ``answer`` (the function or value itself) in this process and keep the points in the reader's workbook.

    The instances are drawn from ``seed``, so that the same answer gets the same report. An answer may do what it
    likes but loop for ever in C; the stop button interrupts. Raises `InvalidArgument` for an unknown task.
    """
    found = task(task_id)
    if isinstance(answer, NotRun):
        return replace(judge(found, LocalAnswer(None), seed), notes=(f"{RUN_FIRST}, then this one again",))
    report = judge(found, LocalAnswer(answer), seed)
    return replace(report, notes=record(found, report.points)) if report.answered else report


def judge(asked: Task, answer: Answer, seed: int = 0, only: Collection[str] | None = None) -> Report:
    """Run the checks of ``asked`` on ``answer``, or those named in ``only``, and report; records nothing.

    Each has randomness of its own, whichever others are run. A check that ends as one before it did (the same error on
    the same line, None, a call that does not end, the same wrong value in the same place) says so and no more.
    """
    streams = np.random.SeedSequence(check_int("seed", seed, 0)).spawn(len(asked.checks))
    start = time.perf_counter()
    wanted = [pair for pair in zip(asked.checks, streams, strict=True) if only is None or pair[0].name in only]
    cases: list[Case] = []
    for one, stream in wanted:
        case = _judge(one, asked.answer, answer, np.random.default_rng(stream))
        before = next((told.name for told in cases if told.cause and told.cause == case.cause), "")
        cases.append(replace(case, like=before))
    seconds = time.perf_counter() - start
    return Report(asked.id, asked.title, tuple(cases), seconds, clean(answer.printed, 2 * MAX_PRINTED))


def of_all_checks(rng: np.random.Generator) -> np.random.Generator:
    """A generator that begins alike in all checks of a task, the one of a check being ``rng``.

    For checks that look at the same runs from different sides: see ``once`` of `call`.
    """
    own = rng.bit_generator.seed_seq
    assert isinstance(own, np.random.SeedSequence)
    return np.random.default_rng(np.random.SeedSequence(own.entropy))


def _judge(one: Check, name: str, answer: Answer, rng: np.random.Generator) -> Case:
    answer.begin(one.seconds)
    try:
        note = one.run(answer, rng)
    except NotAnswered as wrong:
        return Case(one.name, one.points, False, wrong.expected, wrong.got, answered=False)
    except Wrong as wrong:
        return _failed(one, name, answer, wrong)
    except Exception as error:  # plain data, but not of the form that the check relies on
        said = f"a value on which the check itself stopped: {type(error).__name__}: {error}"
        return _failed(one, name, answer, Wrong("a value of the form that the task describes", said, cause=said))
    return Case(one.name, one.points, True, note=note or "")


def _failed(one: Check, name: str, answer: Answer, wrong: Wrong) -> Case:
    """Why the check matters is told where a value is wrong: what stops an answer has nothing to do with it."""
    expected, got, where = as_lines(wrong.expected), as_lines(wrong.got), one_line(wrong.where)
    cause = wrong.cause
    if answer.asked and got == "None":
        got = cause = NO_RETURN
    by_hand = answer.asked.by_hand if answer.asked else None
    call = by_hand if isinstance(by_hand, str) else "" if by_hand is None else written(name, by_hand)
    why = "" if cause else wrong.why or one.why
    return Case(one.name, one.points, False, expected, got, where, why, call=call, cause=cause or str(wrong.args))
