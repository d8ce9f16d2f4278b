"""Do scripts that are run rank by rank get the sums and gradients that they ask for?"""

import numpy as np
import pytest

from dpbook.book.ch15.exercise_cases import Sentences, run_script
from dpbook.core import DpbookError

TRIAL = {"world": 3, "examples": 6, "batch": 2, "epochs": 1, "rate": 0.5, "limit": 1.0, "seed": 4}


def test_an_all_reduce_is_the_sum_over_ranks_and_leaves_what_it_is_given():
    def script(rank):
        mine = np.array([rank.number, 1.0])
        return [rank.all_reduce(mine), mine, np.array([rank.all_reduce(rank.number + 1)])]

    for number, rank in enumerate(run_script(script, TRIAL)):
        assert [each.tolist() for each in rank["weights"]] == [[3.0, 3.0], [number, 1.0], [6.0]]


def test_the_gradient_is_that_of_half_the_squared_error_of_all_tokens():
    sentences, weights, step = Sentences(6, 4), np.array([0.3, -1.0, 0.5, 2.0]), 1e-5

    def loss(at):
        return sum(np.square(sentences.tokens[k] @ at - sentences.targets[k]).sum() / 2 for k in (1, 4))

    total, count = sentences.gradient(weights, [1, 4])
    slopes = [(loss(weights + step * unit) - loss(weights - step * unit)) / (2 * step) for unit in np.eye(4)]
    np.testing.assert_allclose(total, slopes, rtol=1e-6, atol=1e-7)
    assert count == len(sentences.targets[1]) + len(sentences.targets[4])


def test_what_a_rank_reads_is_written_down():
    def script(rank):
        weights = np.zeros(rank.size)
        rank.gradient(weights, np.array([rank.number, 5]))
        return [weights]

    assert [rank["read"] for rank in run_script(script, TRIAL)] == [[[0, 5]], [[1, 5]], [[2, 5]]]


def test_a_forgotten_return_is_reported():
    with pytest.raises(DpbookError, match="is a return missing"):
        run_script(lambda rank: None, TRIAL)
