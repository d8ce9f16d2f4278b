"""Does what chapter 04 says of best rates and of the two rules hold in ten groups of six runs, from two bases?"""

import numpy as np
import pytest

from dpbook.book.ch04 import race
from dpbook.replicas import digits, linear_scaling, split, square_root_scaling

pytestmark = pytest.mark.proof
BATCHES, RATES = np.array([1, 2, 4, 8, 16, 32, 64, 256]), 2.0 ** np.arange(-3.5, 1.1, 0.5)
GROUPS = 10


@pytest.fixture(scope="module")
def medians():
    """Median steps of each group, batch and rate, (groups, batches, rates); infinite where half of the runs failed."""
    (x, y), test = split(*digits())
    training, validation = (x[:1080], y[:1080]), (x[1080:], y[1080:])
    races = [race(training, validation, test, b, RATES, 0.3, 90 + 1700 // b, 6 * GROUPS) for b in BATCHES.tolist()]
    return np.array([np.median(one.steps.reshape(len(RATES), GROUPS, 6), axis=2) for one in races]).transpose(2, 0, 1)


def relative(medians, rule, base):
    """Steps at the rate of a rule, as a multiple of the fewest, by k; of each group until the rate leaves the table."""
    start, found = BATCHES.tolist().index(base), []
    for group in medians:
        steps = {}
        for row in range(start + 1, len(BATCHES)):
            rate = rule(RATES[group[start].argmin()], int(BATCHES[row]), base)
            column = np.abs(RATES / rate - 1).argmin()
            if abs(RATES[column] / rate - 1) < 0.01:
                steps[int(BATCHES[row]) // base] = float(group[row, column] / group[row].min())
        found.append(steps)
    return found


def test_the_best_rate_grows_ever_more_slowly(medians):
    best = RATES[medians.argmin(axis=2)]
    slopes = []
    for low, high in ((1, 8), (8, 64), (64, 256)):
        rows = (low <= BATCHES) & (high >= BATCHES)
        slopes.append([np.polyfit(np.log(BATCHES[rows]), np.log(own[rows]), 1)[0] for own in best])
    small, middle, large = np.array(slopes).round(9)
    assert ((small >= 0.6) & (small <= 1)).all()
    assert ((middle >= 0.15) & (middle <= 0.5)).all()
    assert ((large >= 0) & (large <= 0.25)).all()
    assert (small > middle).all()
    assert (middle >= large - 0.1).all()


def test_the_linear_rule_fails_from_either_base(medians):
    assert all(np.isinf(steps[4]) for steps in relative(medians, linear_scaling, 4))
    assert all(np.isinf(steps.get(4, np.inf)) for steps in relative(medians, linear_scaling, 8))


def test_what_becomes_of_the_square_root_depends_on_the_base(medians):
    assert all(max(steps.values()) < 1.2 for steps in relative(medians, square_root_scaling, 4))
    from_8 = relative(medians, square_root_scaling, 8)
    held = sum(steps[8] < 1.2 for steps in from_8)
    failed = sum(np.isinf(steps[8]) for steps in from_8)
    assert (held, failed) == (3, 7)


def test_the_largest_rate_fails_mostly(medians):
    """Nine of ten runs up to batch 64, and at 256 so many that no group has this rate as its best."""
    assert np.isinf(medians[:, :-1, -1]).all()
    assert (medians[:, -1].argmin(axis=1) < len(RATES) - 1).all()
