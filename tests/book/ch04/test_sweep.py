"""Does a race count the steps that a plain run of each network takes, and does its table show them?"""

import numpy as np
import pytest

from dpbook.book.ch04 import Race, draw_races, race
from dpbook.replicas import MLP, accuracy, cross_entropy, digits, permutation, split
from tests.cases import each, refuses

TRAINING, TEST = split(*digits())
FEW = TRAINING[0][:60], TRAINING[1][:60]
OTHERS = TRAINING[0][60:120], TRAINING[1][60:120]
MODEL = MLP(64, 32, 10, cross_entropy)


def alone(batch, rate, seed, goal, most):
    """One network, one step after another, with its loss asked after each."""
    params, step = MODEL.init(np.random.default_rng(seed)), 0
    for epoch in range(most):
        order = permutation(60, seed, epoch)
        for first in range(0, 60 - batch + 1, batch):
            own = order[first : first + batch]
            params = params - rate * MODEL.gradient(params, FEW[0][own], FEW[1][own])
            step += 1
            if MODEL.loss(params, *OTHERS) < goal:
                return step, accuracy(MODEL, params, *TEST)
            if step == most:
                return np.inf, np.nan
    raise AssertionError


@pytest.mark.parametrize("batch", [4, 7, 60])
def test_a_stack_of_networks_takes_the_steps_that_each_takes_alone(batch):
    """Up to step 50 the goal is looked at after every step; 7 does not divide 60."""
    rates, goal, most = [0.02, 0.4, 0.8], 2.1, 50
    found = race(FEW, OTHERS, TEST, batch, rates, goal, most, seeds=3)
    expected = [[alone(batch, rate, seed, goal, most) for seed in range(3)] for rate in rates]
    assert found.steps.tolist() == [[steps for steps, _ in row] for row in expected]
    np.testing.assert_allclose(found.accuracies, [[right for _, right in row] for row in expected], rtol=0, atol=1e-12)
    assert np.isfinite(found.steps).any()
    assert np.isinf(found.steps).any()


def test_later_looks_are_at_most_two_per_cent_apart():
    found, exact = (race(FEW, OTHERS, TEST, 4, [0.05], 1.5, 1000, 1).steps[0, 0], alone(4, 0.05, 0, 1.5, 1000)[0])
    assert exact > 100
    assert exact <= found <= 1.02 * exact + 1


def raced(*means, rates=(0.1, 0.2, 0.4), batch=8):
    steps = np.array(means, float)[:, None].repeat(2, axis=1)
    return Race(batch, np.array(rates), steps, np.full_like(steps, 0.9))


@each(("means", "best", "inside"), [((30, 20, 25), 1, True), ((10, 20, 25), 0, False), ((30, 20, 5), 2, False)])
def test_the_best_rate_and_whether_it_lies_inside(means, best, inside):
    found = raced(*means)
    assert (found.best, found.inside) == (best, inside)


@each(("failed", "best"), [(0, 1), (1, 1), (2, 0), (3, 0)])
def test_one_failed_run_of_four_costs_a_rate_nothing_and_two_rule_it_out(failed, best):
    steps = np.array([[30.0] * 4, [20.0] * (4 - failed) + [np.inf] * failed])
    found = Race(8, np.array([0.1, 0.2]), steps, np.where(np.isfinite(steps), 0.9, np.nan))
    assert found.best == best
    shown = "20 steps at rate 0.20" if best else "30 steps at rate 0.10"
    assert repr(found) == f"Race(batch 8: {shown}, test accuracy 90%)"


def test_the_table_says_each_batchs_best():
    plot = draw_races([raced(30, 20, np.inf), raced(12, 9, 10, batch=16)], "Title")
    assert (
        plot.alt
        == "Title. The best rate of each batch and the steps that it needs: 8: 0.2, 20 steps; 16: 0.2, 9 steps."
    )
    assert plot.svg == draw_races([raced(30, 20, np.inf), raced(12, 9, 10, batch=16)], "Title").svg


test_bad_input_is_named = refuses(
    (lambda: race(FEW, OTHERS, TEST, 61, [0.1], 1.0, 9, 1), "batch"),
)
