"""Do the checks of a task do their work? They are tried on mutants, answers with one known fault each.

assert not trial("05.1", reference=my_ring, stub=stub, mutants=MUTANTS)
"""

from collections.abc import Iterable, Sequence
from typing import Any

from dpbook.classroom import LocalAnswer, judge, task
from dpbook.core import check_one_of
from tests.classroom.mutants.edits import Mutant

SEEDS = (0, 1, 2)


def trial(
    task_id: str, *, reference: Any, stub: Any, mutants: Iterable[Mutant], seeds: Sequence[int] = SEEDS
) -> list[str]:
    """Return the faults of a task's checks, a sentence each; none if they do their work.

    For every seed the reference must earn all points and each mutant of this task must fail the very check it names;
    the stub must count as not answered. There must be a mutant at all. Nothing is recorded.
    Raises `InvalidArgument` for a mutant that names no check of the task.
    """
    asked = task(task_id)
    mine = [mutant for mutant in mutants if mutant.task == task_id]
    names = [check.name for check in asked.checks]
    for mutant in mine:
        check_one_of(f"caught_by of {mutant.name}", mutant.caught_by, names)
    problems = [] if mine else [f"task {task_id} has no mutant"]
    unsolved = judge(asked, LocalAnswer(stub))
    if unsolved.answered or unsolved.points:
        problems.append(f"task {task_id}: the stub counts as an answer\n{unsolved}")
    quick = {check.name for check in asked.checks if not check.seconds}
    for number, seed in enumerate(seeds):
        tried = quick if number else set(names)  # what starts processes takes seconds: one seed is enough
        best = judge(asked, LocalAnswer(reference), seed, tried)
        if not best.passed and tried:
            problems.append(f"task {task_id}, seed {seed}: the reference fails\n{best}")
        for mutant in mine:
            if mutant.caught_by in tried and judge(asked, LocalAnswer(mutant.answer), seed, {mutant.caught_by}).passed:
                fails = ", ".join(caught_by(mutant, seed)) or "nothing"
                message = f"{mutant.name} passes {mutant.caught_by!r}; it fails {fails}"
                problems.append(f"task {task_id}, seed {seed}: {message}")
    return problems


def caught_by(mutant: Mutant, seed: int = 0) -> list[str]:
    """Names of all checks that a mutant fails, in order: who catches it before the check that it names?"""
    report = judge(task(mutant.task), LocalAnswer(mutant.answer), seed)
    return [case.name for case in report.cases if not case.passed]
