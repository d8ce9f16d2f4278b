"""Does the plot say how far models are from it?"""

import numpy as np
import pytest

from dpbook.book.ch06 import against_measured
from dpbook.collectives import AlphaBeta
from dpbook.core.errors import InvalidArgument
from dpbook.ranks import Sweep


def test_a_plot_says_the_range_of_predicted_over_measured():
    measured = Sweep(2, np.array([10, 20]), np.array([[1.0], [4.0]]))
    plot = against_measured(measured, {"a line": AlphaBeta(0, 0.1)}, "Off by half")
    assert plot.alt == "Off by half. Predicted over measured time at 2 sizes: a line: 0.50 to 1.00."
    with pytest.raises(InvalidArgument, match=r"^series must be"):
        against_measured(measured, {}, "Nothing")
