"""Is the planner as far from a published sweep as the chapter says?"""

import numpy as np
import pytest

from dpbook.book import ch13
from dpbook.book.ch13.published import WIRES
from dpbook.ranks import published_sweep


def test_every_second_size_predicts_the_others_within_15_percent():
    sweep = published_sweep()
    nbytes, seconds = sweep.nbytes, sweep.seconds
    node = ch13.fixed(nbytes[::2], seconds[::2])
    assert node.wires == pytest.approx(WIRES, abs=0.005)
    errors = ch13.predicted_sweep(node, nbytes[1::2]) / seconds[1::2] - 1
    assert np.abs(errors).max() < 0.15
    assert np.abs(errors).max() > 0.05  # it is not fitted to them
