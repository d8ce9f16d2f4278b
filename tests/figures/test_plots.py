"""Do the data plots show what they are given, in a moderate PNG with fixed words?"""

import io
import re

import matplotlib
import numpy as np
import pytest

from dpbook.core import palette
from dpbook.core.errors import InvalidArgument
from dpbook.figures import cap_sweep, digits_grid, drift_and_gap, loss_curve
from dpbook.overlap import CapSweep
from dpbook.replicas import Run, digits, shard, split
from tests.cases import each


def run(world=4, drift=0.0, gap=1e-16, steps=50):
    falling = np.geomspace(1, 0.1, steps)
    return Run(np.zeros((world, 3)), falling, 0.1, np.full(steps, drift), np.full(steps, gap))


def pixels(plot):
    return matplotlib.image.imread(io.BytesIO(plot.png))[..., :3]


def shows(plot, colour):
    """Whether some pixel has the colour."""
    wanted = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return bool((abs(pixels(plot) - wanted) < 0.01).all(axis=-1).any())


SHARDS = shard(*split(*digits())[0], 4)
PLOTS = {
    "loss": lambda: loss_curve([run(1), run(8)], "The curves are one"),
    "drift": lambda: drift_and_gap(run(), "No drift"),
    "digits": lambda: digits_grid(SHARDS, "Each rank sees its own"),
}


@pytest.mark.parametrize("draw", PLOTS.values(), ids=list(PLOTS))
def test_a_plot_is_a_small_png_with_its_words(draw):
    plot = draw()
    data, metadata = plot._repr_mimebundle_()
    assert set(data) == {"image/png", "text/plain"}
    assert data["text/plain"] == repr(plot) == plot.alt == metadata["image/png"]["alt"]
    assert plot.png.startswith(b"\x89PNG")
    assert len(plot.png) < 60_000
    assert metadata["image/png"]["width"] < pixels(plot).shape[1]
    assert metadata["needs_background"] == "light"  # where JupyterLab looks for it: not inside that of the image


@pytest.mark.parametrize("draw", PLOTS.values(), ids=list(PLOTS))
def test_the_same_plot_has_the_same_bytes_and_leaves_no_settings(draw):
    before = dict(matplotlib.rcParams)
    assert draw().png == draw().png
    assert dict(matplotlib.rcParams) == before


def test_runs_that_lie_on_each_other_are_both_seen():
    from dpbook.figures.card.plot import LINES

    plot = loss_curve({"one": run(), "other": run()}, "The same")
    assert shows(plot, LINES[0][0])
    assert shows(plot, LINES[1][0])


@pytest.mark.parametrize("best", [0, 3, 6])
def test_no_words_lie_on_the_curves_of_a_sweep(best):
    """The dashed line just below the best point has no gap that is wider than between two of its dashes."""
    caps, durations = np.geomspace(1e4, 1e9, 7).astype(int), np.full(7, 1.1)
    durations[best] = 1.0
    plot = cap_sweep(CapSweep(caps, np.ones(7, int), durations, 0.9 * durations), "Title")
    wanted = [int(palette.EXPOSED[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    lower_half = pixels(plot)[pixels(plot).shape[0] // 3 :]
    (columns,) = np.nonzero((abs(lower_half - wanted) < 0.05).all(axis=-1).any(axis=0))
    assert np.diff(columns).max() < 20


def test_a_loss_curve_says_where_it_begins_and_ends():
    assert (
        loss_curve(run(8), "Down").alt
        == "Down. Loss of the global batch from the first to the last step: 8 replicas: 1 → 0.1."
    )
    assert loss_curve(run(8), "Down", log=True).png != loss_curve(run(8), "Down").png


@pytest.mark.parametrize(
    ("drift", "gap", "words"),
    [
        (0, 5.6e-16, "the drift is exactly 0 and the gap at most 1e-15"),
        (0, 0, "the drift is exactly 0 and the gap exactly 0"),
        (2e-8, 1e-16, "the drift is at most 1e-07 and the gap at most 1e-16"),
        (np.nan, np.inf, "the drift is not finite and the gap not finite"),
    ],
)
def test_drift_and_gap_are_told_by_their_magnitude(drift, gap, words):
    assert words in drift_and_gap(run(drift=drift, gap=gap), "Title").alt


def test_a_drift_of_zero_is_a_line_of_its_own():
    from dpbook.figures.card.plot import LINES

    plot = drift_and_gap(run(drift=0, gap=1e-16), "Zero")
    picture = pixels(plot)
    blue = [int(LINES[0][0][i : i + 2], 16) / 255 for i in (1, 3, 5)]
    rows = np.flatnonzero((abs(picture - blue) < 0.01).all(axis=-1).sum(axis=1) > picture.shape[1] / 2)
    assert rows.size
    assert 0.35 * picture.shape[0] < rows.min() < 0.55 * picture.shape[0]  # at the foot of the upper half


def test_a_drift_far_from_the_gap_leaves_the_gaps_axis_alone():
    near, far = (pixels(drift_and_gap(run(drift=drift, gap=1e-16), "Two axes")) for drift in (1e-15, 1e3))
    half = near.shape[0] // 2 + 20
    assert np.array_equal(near[half:, 150:], far[half:, 150:])


def test_labels_of_the_digits_are_told():
    alt = digits_grid(SHARDS[:2], "Two", each=3).alt
    assert alt == f"Two. The first digits of each shard. Rank 0: {_first(0)}. Rank 1: {_first(1)}."


def _first(rank):
    return ", ".join(map(str, SHARDS[rank][1][:3]))


@each(
    ("call", "name"),
    [
        (lambda: loss_curve("run", "Title"), "runs"),
        (lambda: loss_curve([], "Title"), "runs"),
        (lambda: loss_curve([run(2), run(2)], "Title"), "runs"),
        (lambda: loss_curve([run(w) for w in range(1, 6)], "Title"), "runs"),
        (lambda: loss_curve(run(), ""), "title"),
        (lambda: drift_and_gap(7, "Title"), "runs"),
        (lambda: digits_grid([], "Title"), "shards"),
        (lambda: digits_grid([(np.zeros((2, 3)), np.zeros(2))], "Title"), "shards"),
        (lambda: digits_grid(SHARDS, "Title", each=0), "each"),
    ],
)
def test_bad_input_is_named(call, name):
    with pytest.raises(InvalidArgument, match=rf"^{re.escape(name)} "):
        call()
