"""Do the made-up cases of exercise 15 have the fault that they are said to have, from that update on, and no other?"""

from itertools import pairwise

import numpy as np
import pytest

from dpbook.book.ch15 import exhibits
from dpbook.book.ch15.exercise_cases import CAUSES, LEFT_OUT, blind_case
from dpbook.core import InvalidArgument
from tests.cases import each


def same(one, other):
    return all(np.array_equal(one[name], other[name]) for name in one)


@each("seed", range(8))
def test_in_a_run_without_a_fault_all_ranks_step_with_the_mean_over_all_tokens(seed):
    ranks, verdict = blind_case(seed, "")
    assert verdict == ("", None, None)
    for records in zip(*ranks, strict=True):
        tokens = sum(seen["count"] for seen in records)
        for name, applied in records[0]["gradient"].items():
            mean = sum(seen["own"][name].astype(float) * seen["count"] for seen in records) / tokens
            np.testing.assert_allclose(applied, mean, rtol=1e-5, atol=1e-6)
        assert all(same(seen["gradient"], records[0]["gradient"]) for seen in records)
        assert all(seen["before"] == records[0]["before"] and seen["after"] == records[0]["after"] for seen in records)
        read = [example for seen in records for example in seen["examples"]]
        assert len(set(read)) == len(read)


@each("seed", range(8))
def test_the_weights_after_an_update_are_those_before_the_next(seed):
    for records in blind_case(seed).ranks:
        assert all(one["after"] == other["before"] for one, other in pairwise(records))


def without_arrays(ranks):
    return [[{key: repr(found) for key, found in seen.items()} for seen in records] for records in ranks]


@each("cause", CAUSES)
def test_a_fault_begins_in_the_update_that_is_named_and_the_rank_is_there(cause):
    for seed in range(6):
        ranks, (named, rank, update) = blind_case(seed, cause)
        assert named == cause
        assert 1 <= update <= len(ranks[0])
        assert rank is None or 0 <= rank < len(ranks)


def test_causes_are_called_as_in_the_museum():
    assert set(CAUSES) - {each.name for each in exhibits()} == {LEFT_OUT}


def test_a_seed_is_a_case():
    assert without_arrays(blind_case(3).ranks) == without_arrays(blind_case(3).ranks)
    assert blind_case(3).verdict == blind_case(3).verdict
    assert len({blind_case(seed).verdict for seed in range(20)}) > 10


def test_a_cause_that_there_is_not_is_reported():
    with pytest.raises(InvalidArgument, match="cause must be one of"):
        blind_case(0, "gremlins")
