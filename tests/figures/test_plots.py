"""Do the data plots show their arguments, in a small SVG with fixed words?"""

import re

import numpy as np
import pytest

from dpbook import figures
from dpbook.collectives import AlphaBeta, crossover, fit
from dpbook.core import palette
from dpbook.figures import cap_sweep, digits_grid, drift_and_gap, loss_curve
from dpbook.figures.card import LINES, VARIES, finish, new_figure
from dpbook.overlap import CapSweep, best_cap, equal_layers
from dpbook.replicas import Run, digits, shard, split
from tests.cases import refuses
from tests.figures.reading import NS, check_plot, parse, shows


def run(world=4, drift=0.0, gap=1e-16, steps=50):
    falling = np.geomspace(1, 0.1, steps)
    return Run(np.zeros((world, 3)), falling, 0.1, np.full(steps, drift), np.full(steps, gap))


def lines(plot, colour):
    """Return the points (n, 2) of each line of one colour, without the sign of the legend."""
    paths = [node.get("d") for node in parse(plot).findall(f"{NS}path") if node.get("stroke") == colour]
    return [np.array(re.findall(r"([-\d.]+) ([-\d.]+)", path), float) for path in paths]


SMALL, LARGE = AlphaBeta(1e-5, 4e-9), AlphaBeta(1e-3, 1e-9)
SIZES = np.geomspace(1e4, 1e8, 12)
FIT = fit(SIZES, LARGE(SIZES) * np.where(SIZES < 1e6, 3, 1))
SHARDS = shard(*split(*digits())[0], 4)
PLOTS = {
    "loss": lambda: loss_curve([run(1), run(8)], "The curves are one"),
    "drift": lambda: drift_and_gap(run(), "No drift"),
    "digits": lambda: digits_grid(SHARDS, "Each rank sees its own"),
    "curves": lambda: figures.cost_curves({"small": SMALL, "large": LARGE}, "They cross"),
    "fit": lambda: figures.fitted_sweep(FIT, "It fits above 1 MB"),
    "caps": lambda: cap_sweep(best_cap(equal_layers(8, 0.1, 0.2, 8000), AlphaBeta(0.01, 1e-5)), "One is best"),
}


@pytest.mark.parametrize("draw", PLOTS.values(), ids=list(PLOTS))
def test_a_plot_is_a_small_picture_with_its_words(draw):
    plot = draw()
    data, metadata = plot._repr_mimebundle_()
    assert set(data) == {"text/html", "text/plain"}
    assert data["text/plain"] == repr(plot) == plot.alt
    assert "id=" not in plot.svg
    assert metadata == {}
    check_plot(draw, most=40_000)


def test_runs_that_lie_on_each_other_are_both_seen():
    plot = loss_curve({"one": run(), "other": run()}, "The same")
    assert shows(plot, LINES[0][0])
    assert shows(plot, LINES[1][0])


def test_the_best_cap_of_a_sweep_is_marked_on_its_curve():
    caps, durations = np.geomspace(1e4, 1e9, 7).astype(int), np.full(7, 1.1)
    durations[3] = 1.0
    plot = cap_sweep(CapSweep(caps, np.ones(7, int), durations, 0.9 * durations), "Title")
    ((mark,), (curve,)) = (lines(plot, colour) for colour in (palette.INK, palette.COMPUTATION))
    assert curve[:, 1].max() == mark[0, 1]
    assert shows(plot, palette.EXPOSED)
    between = np.interp(np.log(25 * 2**20), np.log(caps[[0, -1]]), curve[[0, -1], 0])
    assert any(np.allclose(line[:, 0], between, atol=1) for line in lines(plot, palette.MUTED))


def test_a_running_mean_lies_in_the_middle_of_losses_that_alternate():
    swinging = Run(np.zeros((8, 3)), np.tile([4.0, 1.0], 20), 0.1, np.zeros(40), np.zeros(40))
    plot = loss_curve(swinging, "Two values", mean_over=2)
    (mean,), (raw,) = lines(plot, LINES[0][0]), lines(plot, palette.tint(LINES[0][0], 0.35))
    np.testing.assert_allclose(mean[:, 1], (raw[:, 1].min() + raw[:, 1].max()) / 2, atol=0.2)
    assert raw[0, 0] < mean[0, 0] < raw[2, 0]
    assert lines(loss_curve(swinging, "Two values"), palette.tint(LINES[0][0], 0.35)) == []


def test_a_loss_curve_says_where_it_begins_and_ends():
    assert (
        loss_curve(run(8), "Down").alt
        == "Down. Loss of the global batch from the first to the last step: 8 replicas: 1 → 0.1."
    )
    assert loss_curve(run(8), "Down", log=True).svg != loss_curve(run(8), "Down").svg


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (1e-17, 1, ["10⁻¹⁶", "10⁻¹⁴", "10⁻¹²", "10⁻¹⁰", "10⁻⁸", "10⁻⁶", "10⁻⁴", "10⁻²", "10⁰"]),
        (0.5, 2000, ["10⁰", "10¹", "10²", "10³"]),
        (10, 100, ["10¹", "10²"]),
        (1500, 20_000, ["10⁴", "2×10³", "3×10³", "4×10³", "6×10³", "2×10⁴"]),
        (0.011, 0.09, ["2×10⁻²", "3×10⁻²", "4×10⁻²", "6×10⁻²"]),
    ],
)
def test_a_logarithmic_axis_has_these_labels_with_every_matplotlib(low, high, labels):
    figure, axes = new_figure("Title")
    axes.set(xscale="log", xlim=(low, high), yticks=[])
    assert [node.text for node in parse(finish(figure, "Alt.")).findall(f"{NS}text")][1:] == labels


@pytest.mark.parametrize(
    ("drift", "gap", "words"),
    [
        (0, 5.6e-16, "the drift is exactly 0 and the gap at most 1e-15"),
        (0, 0, "the drift is exactly 0 and the gap exactly 0"),
        (2e-8, 1e-16, "the drift is at most 1e-07 and the gap at most 1e-16"),
        (np.nan, np.inf, "the drift is not finite and the gap not finite"),
    ],
)
def test_drift_and_gap_are_recognised_by_their_magnitude(drift, gap, words):
    assert words in drift_and_gap(run(drift=drift, gap=gap), "Title").alt


def test_a_drift_of_zero_is_a_line_of_its_own():
    """The line lies at the foot of the upper axes, below the smallest power of ten."""
    plot = drift_and_gap(run(drift=0, gap=1e-16), "Zero")
    (line,) = lines(plot, LINES[0][0])
    assert len(set(line[:, 1])) == 1
    words = {node.text: float(node.get("y")) for node in parse(plot).iter(f"{NS}text")}
    assert words["10⁻¹⁷"] < line[0, 1] < words["gap of the gradients"]


def test_a_drift_far_from_the_gap_leaves_the_gaps_axis_alone():
    near, far = (drift_and_gap(run(drift=drift, gap=1e-16), "Two axes") for drift in (1e-15, 1e3))
    heights = [lines(plot, LINES[1][0])[0][:, 1] for plot in (near, far)]
    np.testing.assert_array_equal(*heights)


@pytest.mark.parametrize(("drift", "gap", "varies"), [(0, 0, False), (0, 1e-16, True), (1e-8, 0, True), (1, 2, False)])
def test_errors_of_rounding_are_marked_as_different_between_processors(drift, gap, varies):
    plot = drift_and_gap(run(drift=drift, gap=gap), "Title")
    assert (f'<img class="{VARIES}"' in plot.html) == varies


def test_labels_of_the_digits_are_in_the_text():
    alt = digits_grid(SHARDS[:2], "Two", per_rank=3).alt
    assert alt == f"Two. The first digits of each shard. Rank 0: {_first(0)}. Rank 1: {_first(1)}."


def _first(rank):
    return ", ".join(map(str, SHARDS[rank][1][:3]))


test_bad_input_is_named = refuses(
    (lambda: loss_curve("run", "Title"), "runs"),
    (lambda: loss_curve([], "Title"), "runs"),
    (lambda: loss_curve([run(2), run(2)], "Title"), "runs"),
    (lambda: loss_curve([run(w) for w in range(1, 6)], "Title"), "runs"),
    (lambda: loss_curve(run(), ""), "title"),
    (lambda: drift_and_gap(7, "Title"), "runs"),
    (lambda: digits_grid([], "Title"), "shards"),
    (lambda: digits_grid([(np.zeros((2, 3)), np.zeros(2))], "Title"), "shards"),
    (lambda: digits_grid(SHARDS, "Title", per_rank=0), "per_rank"),
    (lambda: figures.cost_curves({}, "Title"), "costs"),
    (lambda: figures.cost_curves({"a": 3}, "Title"), "costs"),
    (lambda: figures.cost_curves({"a": SMALL}, "Title", smallest=10, largest=5), "largest"),
    (lambda: figures.cost_curves({"a": SMALL}, ""), "title"),
    (lambda: figures.fitted_sweep(LARGE, "Title"), "fit"),
    (lambda: cap_sweep([1], "Title"), "sweep"),
)


def test_a_crossover_is_marked_where_it_is():
    assert crossover(SMALL, LARGE) == pytest.approx(330e3)
    assert "large becomes cheaper than small at 330 kB" in PLOTS["curves"]().alt
    assert "becomes" not in figures.cost_curves({"small": SMALL}, "Alone").alt
    assert "becomes" not in figures.cost_curves({"small": SMALL, "large": LARGE}, "No marks", mark=False).alt


def test_a_fit_shows_where_it_is_good():
    assert shows(PLOTS["fit"](), palette.tint(palette.COMPLETE, 0.18))
