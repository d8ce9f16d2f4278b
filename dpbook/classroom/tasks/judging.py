"""Judging an answer: every check of its task runs, one after another, whatever the answer does."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np

from dpbook.classroom.tasks.answer import MAX_PRINTED, Answer, NotAnswered, Wrong
from dpbook.classroom.tasks.load_tasks import Check, Task
from dpbook.classroom.tasks.report import Case, ParResult, Report, as_lines, clean, one_line
from dpbook.core import check_int

NO_RETURN = "your function returned None: is a return missing?"


def judge(task: Task, answer: Answer, seed: int = 0, only: Collection[str] | None = None) -> Report:
    """Run the checks of ``task`` on ``answer``, or those named in ``only``, and return the report; record nothing."""
    return report_of(task, list(cases_of(task, answer, seed, only)), answer.printed)


def cases_of(task: Task, answer: Answer, seed: int, only: Collection[str] | None = None) -> Iterator[Case]:
    """Run checks on ``answer``, one after another. Each has randomness of its own, whichever others are run."""
    streams = np.random.SeedSequence(check_int("seed", seed, 0)).spawn(len(task.checks))
    for one, stream in zip(task.checks, streams, strict=True):
        if only is None or one.name in only:
            yield _judge(one, task, answer, np.random.default_rng(stream))


def report_of(task: Task, cases: Sequence[Case], printed: str) -> Report:
    """Return the report of ``cases``.

    A case that ends as one before it did (the same error on the same line, None, a call that does not end, the same
    wrong value in the same place) says so and no more.
    """
    first: dict[str, str] = {}
    shortened = []
    for case in cases:
        like = first.setdefault(case.cause, case.name) if case.cause else case.name
        shortened.append(case if like == case.name else replace(case, like=like))
    return Report(task.id, task.title, tuple(shortened), clean(printed, 2 * MAX_PRINTED))


def of_all_checks(rng: np.random.Generator) -> np.random.Generator:
    """Return a generator that begins alike in all checks of a task, the one of a check being ``rng``.

    For checks that look at the same runs from different sides: see ``once`` of `call`.
    """
    own = rng.bit_generator.seed_seq
    assert isinstance(own, np.random.SeedSequence)
    return np.random.default_rng(np.random.SeedSequence(own.entropy))


def _judge(one: Check, task: Task, answer: Answer, rng: np.random.Generator) -> Case:
    answer.begin(one.seconds)
    try:
        note = one.run(answer, rng)
        reached = note if isinstance(note, ParResult) else None
        return Case(one.name, one.points, True, note=str(note or ""), reached=reached)
    except NotAnswered as error:
        return Case(one.name, one.points, False, error.expected, error.got, answered=False)
    except Wrong as error:
        wrong = error
    except Exception as error:  # plain data, but not of the form that the check relies on
        message = f"a value on which the check failed: {type(error).__name__}: {error}"
        wrong = Wrong("a value of the type and shape that the task describes", message, cause=message)
    case = failed_case(one, wrong, answer.last_call.in_python(task.answer) if answer.last_call else "")
    if answer.last_call and case.got == "None" and not task.none_allowed:
        return replace(case, got=NO_RETURN, cause=NO_RETURN, why="")
    return case


def failed_case(one: Check, wrong: Wrong, call: str = "") -> Case:
    """Return the case of a check that failed.

    It says why the check matters only where a value is wrong: whatever stops an answer has nothing to do with that.
    """
    expected, got, where = as_lines(wrong.expected), as_lines(wrong.got), one_line(wrong.where)
    why = "" if wrong.cause else wrong.why or one.why
    return Case(one.name, one.points, False, expected, got, where, why, call=call, cause=wrong.cause or str(wrong.args))
