"""Do the plots of costs show and say what they are given?"""

import matplotlib
import numpy as np
import pytest

from dpbook import figures
from dpbook.collectives import AlphaBeta, crossover, fit
from dpbook.core import palette
from dpbook.core.errors import InvalidArgument
from dpbook.overlap import best_cap, equal_layers
from tests.cases import each
from tests.figures.test_plots import shows

SMALL, LARGE = AlphaBeta(1e-5, 4e-9), AlphaBeta(1e-3, 1e-9)
SIZES = np.geomspace(1e4, 1e8, 12)
FIT = fit(SIZES, LARGE(SIZES) * np.where(SIZES < 1e6, 3, 1))
PLOTS = {
    "curves": lambda: figures.cost_curves({"small": SMALL, "large": LARGE}, "They cross"),
    "fit": lambda: figures.fitted_sweep(FIT, "It fits above 1 MB"),
    "caps": lambda: figures.cap_sweep(best_cap(equal_layers(8, 0.1, 0.2, 8000), AlphaBeta(0.01, 1e-5)), "One is best"),
}


@each("draw", PLOTS.values())
def test_a_plot_is_a_small_png_with_its_words_and_leaves_no_settings(draw):
    before = dict(matplotlib.rcParams)
    plot = draw()
    assert plot.png == draw().png
    assert len(plot.png) < 80_000
    assert plot.alt.count(". ") >= 1
    assert dict(matplotlib.rcParams) == before


def test_a_crossover_is_marked_where_it_is():
    assert crossover(SMALL, LARGE) == pytest.approx(330e3)
    assert "large becomes cheaper than small at 330 kB" in PLOTS["curves"]().alt
    assert "becomes" not in figures.cost_curves({"small": SMALL}, "Alone").alt
    assert "becomes" not in figures.cost_curves({"small": SMALL, "large": LARGE}, "No marks", mark=False).alt


def test_a_fit_shows_where_it_is_good():
    assert shows(PLOTS["fit"](), palette.tint(palette.COMPLETE, 0.18))


@each(
    ("call", "name"),
    [
        (lambda: figures.cost_curves({}, "Title"), "costs"),
        (lambda: figures.cost_curves({"a": 3}, "Title"), "costs"),
        (lambda: figures.cost_curves({"a": SMALL}, "Title", smallest=10, largest=5), "largest"),
        (lambda: figures.cost_curves({"a": SMALL}, ""), "title"),
        (lambda: figures.fitted_sweep(LARGE, "Title"), "fit"),
        (lambda: figures.cap_sweep([1], "Title"), "sweep"),
    ],
)
def test_bad_input_is_named(call, name):
    with pytest.raises(InvalidArgument, match=name):
        call()
