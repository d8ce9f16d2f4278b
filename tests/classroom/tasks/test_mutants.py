"""Can the runner of mutants fail? Checks that catch nothing must not pass."""

import numpy as np
import pytest

from dpbook.core.errors import InvalidArgument
from tests.classroom.mutants.edits import Mutant
from tests.classroom.trials import caught_by, trial

SUM, INPUTS = "the sum on every rank", "inputs stay"


def stub(buffers):
    raise NotImplementedError


def mean(buffers):
    return np.tile(buffers.mean(axis=0), (len(buffers), 1))


def in_place(buffers):
    buffers[:] = buffers.sum(axis=0)
    return buffers


GOOD = (Mutant("90.1", "divides", mean, SUM), Mutant("90.1", "in place", in_place, INPUTS))


def test_checks_that_do_their_work_have_no_problem(all_reduce):
    assert trial("90.1", reference=all_reduce, stub=stub, mutants=GOOD) == []


def test_a_mutant_that_survives_is_named_for_every_seed(all_reduce):
    survivor = Mutant("90.1", "no fault at all", all_reduce, SUM)
    problems = trial("90.1", reference=all_reduce, stub=stub, mutants=[*GOOD, survivor], seeds=(0, 5))
    message = "no fault at all passes 'the sum on every rank'; it fails nothing"
    assert problems == [f"task 90.1, seed {seed}: {message}" for seed in (0, 5)]


def test_a_mutant_caught_by_another_check_is_reported(all_reduce):
    misplaced = Mutant("90.1", "divides", mean, INPUTS)
    (problem,) = trial("90.1", reference=all_reduce, stub=stub, mutants=[misplaced], seeds=(0,))
    assert problem.endswith("divides passes 'inputs stay'; it fails the sum on every rank, small buffers")


def test_a_reference_that_fails_is_shown():
    (problem,) = trial("90.1", reference=mean, stub=stub, mutants=GOOD, seeds=(0,))
    assert "the reference fails\n90.1 All-reduce: 1 of 4 points" in problem


@pytest.mark.parametrize("not_a_stub", [mean, 0])
def test_a_stub_that_is_judged_is_reported(all_reduce, not_a_stub):
    (problem,) = trial("90.1", reference=all_reduce, stub=not_a_stub, mutants=GOOD, seeds=(0,))
    assert "the stub counts as an answer" in problem


def test_a_task_without_mutants_is_reported(all_reduce):
    other = [Mutant("90.2", "of another task", 1, "the factor")]
    assert trial("90.1", reference=all_reduce, stub=stub, mutants=other) == ["task 90.1 has no mutant"]


def test_a_mutant_names_a_check_of_its_task(all_reduce):
    with pytest.raises(InvalidArgument, match="one of the sum on every rank, small buffers, inputs stay"):
        trial("90.1", reference=all_reduce, stub=stub, mutants=[Mutant("90.1", "m", mean, "no such check")])


def test_the_first_check_to_catch_a_mutant_is_known():
    assert caught_by(GOOD[0]) == [SUM, "small buffers"]
