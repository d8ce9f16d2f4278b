"""Is the published sweep the one that was published, and does the plot say how far models are from it?"""

import numpy as np
import pytest

from dpbook.book.ch06 import against_measured, published_sweep
from dpbook.collectives import AlphaBeta
from dpbook.core.errors import InvalidArgument
from dpbook.ranks import Sweep


def test_the_published_bandwidths_come_out_again():
    """The columns algbw and busbw of the source, in GB/s, at 32 KiB, 8 MiB, 256 MiB and 16 GiB."""
    sweep = published_sweep()
    rows = np.isin(sweep.nbytes, [2**15, 2**23, 2**28, 2**34])
    assert (sweep.algbw[rows] / 1e9).round(2) == pytest.approx([0.82, 88.87, 249.23, 275.58], rel=1e-3)
    assert (sweep.busbw[rows] / 1e9).round(2) == pytest.approx([1.44, 155.53, 436.15, 482.26], rel=5e-3)
    assert sweep.nbytes.tolist() == [2**power for power in range(15, 35)]


def test_a_plot_says_the_range_of_predicted_over_measured():
    measured = Sweep(2, np.array([10, 20]), np.array([[1.0], [4.0]]))
    plot = against_measured(measured, {"a line": AlphaBeta(0, 0.1)}, "Off by half")
    assert plot.alt == "Off by half. Predicted over measured time at 2 sizes: a line: 0.50 to 1.00."
    with pytest.raises(InvalidArgument, match=r"^models must be"):
        against_measured(measured, {}, "Nothing")
