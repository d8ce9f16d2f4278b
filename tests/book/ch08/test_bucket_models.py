"""Do the models of exercise 08.3 cost what the exercise says, and can its par be reached in each?"""

from itertools import combinations, permutations

import numpy as np
import pytest

from dpbook.book.ch08 import sample, simulate
from dpbook.book.ch08.judge import MAX_OPTIMUM, PAR, _best_cap, _least, _worthwhile
from dpbook.core.errors import InvalidArgument


def exposed(model, groups):
    """The rule as the exercise words it: a message waits for its gradients and for the message before it."""
    end = 0.0
    for group in groups:
        seconds = model.alpha + model.beta * sum(model.nbytes[index] for index in group)
        end = max([end, *(model.ready[index] for index in group)]) + seconds
    return end - max(model.ready)


def partitions(items):
    """All ways to put the items into groups."""
    if not items:
        yield []
        return
    first, *others = items
    for size in range(len(items)):
        for chosen in combinations(others, size):
            for rest in partitions([item for item in others if item not in chosen]):
                yield [[first, *chosen], *rest]


@pytest.mark.parametrize("layers", [1, 2, 5, 7, 16])
def test_the_simulated_step_exposes_what_the_rule_says(layers):
    rng = np.random.default_rng(layers)
    for seed in range(5):
        model = sample(layers, seed)
        shuffled = rng.permutation(2 * layers)
        groups = [part.tolist() for part in np.array_split(shuffled, rng.integers(1, 2 * layers + 1))]
        assert simulate(model, groups).exposed() == pytest.approx(exposed(model, groups), abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_nothing_beats_what_the_check_takes_for_the_least(seed):
    model = sample(3, seed)
    plans = (order for groups in partitions(range(6)) for order in permutations(groups))
    assert 1e3 * min(exposed(model, groups) for groups in plans) == pytest.approx(_least(model), abs=1e-9)


def test_the_par_is_within_reach_and_out_of_reach_of_every_cap():
    assert MAX_OPTIMUM < PAR < 1
    for seed, best in _worthwhile(np.random.default_rng(0)):
        assert best == _best_cap(sample(12, seed))
        assert _least(sample(12, seed)) < PAR * best < best


def test_equal_seeds_are_one_model():
    assert sample(5, 3) == sample(5, 3) != sample(5, 4)


@pytest.mark.parametrize("groups", [[[0, 1, 2]], [[0, 1], [1, 2, 3]], [[0, 1, 2, 3], []], 7])
def test_groups_that_do_not_hold_every_gradient_once_are_refused(groups):
    with pytest.raises(InvalidArgument):
        simulate(sample(2), groups)
