"""Are drawn sweeps what exercise 06.2 says of them?"""

import numpy as np

from dpbook.book.ch06 import SCATTER, draw, sample
from tests.cases import each


@each("seed", range(20))
def test_from_the_switch_on_a_call_is_two_rounds_of_half_the_buffer(seed):
    drawn = draw(np.random.default_rng(seed))
    above = drawn.nbytes >= drawn.first
    by_hand = 2 * (drawn.link.latency + drawn.nbytes / 2 / drawn.link.bandwidth)
    assert (abs(drawn.seconds / by_hand - 1)[above] <= SCATTER).all()
    assert (abs(drawn.seconds / by_hand - 1)[~above] > 0.3).any()


@each("seed", range(20))
def test_the_switch_comes_late_so_that_the_time_falls_there_and_nowhere_else(seed):
    drawn = draw(np.random.default_rng(seed))
    falls = np.flatnonzero(np.diff(drawn.seconds) < 0)
    assert drawn.nbytes[falls + 1].tolist() == [drawn.first]


def test_equal_seeds_are_one_sweep():
    for first, second in zip(sample(3), sample(3), strict=True):
        assert np.array_equal(first, second)
    assert not np.array_equal(sample(3)[1], sample(4)[1])
