"""Data plots: loss and step times of training, drift of replicas, costs of collectives; and the digits by rank."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import ceil, floor, log10
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpbook.collectives import Fit
from dpbook.core import InvalidArgument, check_float, check_int, check_type, in_words, milliseconds, palette
from dpbook.figures.card.picture import Card, Picture, check_named
from dpbook.figures.card.plot import LINES, blank_figure, draw_lines, finish, in_style, new_figure
from dpbook.figures.card.svg import MARGIN, aside, element, text
from dpbook.ranks import Sweep
from dpbook.replicas import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROUNDING = 1e-4
"""Differences up to this are errors of rounding, which differ between processors."""
POINTS = 400
"""Sizes at which a cost is evaluated."""
PIXEL = 4
"""Pixels of the picture for one pixel of a digit."""
LEVELS = 16
"""Shades of grey of a digit."""
Runs = Run | Sequence[Run] | Mapping[str, Run]
Metrics = Sequence[Mapping[str, Any]]
Cost = Callable[[NDArray[Any]], NDArray[Any]]
"""Seconds of a collective by the bytes of its buffer."""


@in_style
def loss_curve(runs: Runs, title: str, *, log: bool = False, mean_over: int = 1) -> Picture:
    """Plot the loss of each step for one run, several, or several by name (default: by their number of replicas).

    ``title`` states the finding. ``log``: logarithmic axis of the loss. ``mean_over``: steps of a running mean, behind
    which the losses themselves are faint. Raises `InvalidArgument`.
    """
    named = _named(runs)
    figure, axes = new_figure(title)
    check_int("mean_over", mean_over, 1, min(len(run.losses) for run in named.values()))
    window = np.full(mean_over, 1 / mean_over)
    for (name, run), (colour, dashes, width) in zip(named.items(), LINES, strict=False):
        if mean_over > 1:
            steps = np.arange(1, len(run.losses) + 1)
            axes.plot(steps, run.losses, color=palette.tint(colour, 0.35), linewidth=0.8, zorder=1)
        means = np.convolve(run.losses, window, "valid")
        axes.plot(np.arange(len(means)) + mean_over, means, dashes, color=colour, linewidth=width, label=name)
    mean = f", mean of {mean_over} steps" if mean_over > 1 else ""
    axes.set(xlabel="step", ylabel=f"loss of the global batch{mean}", yscale="log" if log else "linear")
    ends = "; ".join(f"{name}: {run.losses[0]:.4g} → {run.losses[-1]:.4g}" for name, run in named.items())
    return finish(figure, f"Loss of the global batch from the first to the last step: {ends}.")


@in_style
def drift_and_gap(run: Run, title: str) -> Picture:
    """Plot the drift between replicas and, below it, the gap to the big batch after each step, on logarithmic axes.

    There are two axes because a drift is a distance of parameters and a gap one of gradients: neither is larger than
    the other. Values of exactly 0 have no place on a logarithmic axis: they lie on a line of their own at its foot,
    labelled 0.
    """
    _named(run)
    figure = blank_figure(title, 400)
    upper, lower = figure.subplots(2, 1, sharex=True)
    _draw_differences(upper, run.drifts, "drift of the parameters", LINES[0][0])
    _draw_differences(lower, run.gaps, "gap of the gradients", LINES[1][0])
    margin = max(1, len(run.drifts) - 1) / 20  # set here: the shaded foot would stretch older matplotlibs' axis to 0
    lower.set(xlabel="step", xlim=(1 - margin, len(run.drifts) + margin))
    drift, gap = magnitude(run.drift), magnitude(run.gap)
    alt = f"Over {len(run.drifts)} steps the drift is {drift} and the gap {gap}."
    varies = any(0 < differences.max() < ROUNDING for differences in (run.drifts, run.gaps))
    return finish(figure, alt, varies=varies)


def _draw_differences(axes: "Axes", values: NDArray[Any], label: str, colour: str) -> None:
    positive = values[np.isfinite(values) & (values > 0)]
    low = floor(log10(positive.min())) if positive.size else -17
    high = max(low + 1, ceil(log10(positive.max())) if positive.size else -15)
    zero = 10.0 ** (low - 1)
    axes.axhspan(zero / 10**0.4, zero * 10**0.4, color=palette.PANEL, zorder=0)
    axes.plot(np.arange(1, len(values) + 1), np.where(values == 0, zero, values), color=colour, linewidth=2)
    decades = range(low, high + 1, max(1, (high - low) // 4))
    axes.set(ylabel=label, yscale="log", ylim=(zero / 10**0.4, 10.0**high))
    axes.set_yticks([zero, *(10.0**d for d in decades)], labels=["0", *(f"$10^{{{d}}}$" for d in decades)])
    axes.yaxis.minorticks_off()


def magnitude(value: float) -> str:
    """Return a power of ten that bounds ``value``, in words: its digits differ between processors."""
    if not np.isfinite(value):
        return "not finite"
    return "exactly 0" if value == 0 else f"at most {10.0 ** ceil(log10(value)):g}"


@in_style
def run_loss(metrics: Metrics, title: str) -> Picture:
    """Plot the loss of the global batch over the steps of ``metrics``, a mapping with "step" and "loss" each."""
    steps, losses = _columns(metrics, "loss")
    figure, axes = new_figure(title)
    axes.plot(steps, losses, color=palette.COMPUTATION, linewidth=2)
    axes.set(xlabel="step", ylabel="loss of the global batch")
    return finish(figure, f"From {losses[0]:.3f} at step {steps[0]:,} to {losses[-1]:.3f} at step {steps[-1]:,}.")


@in_style
def run_seconds(metrics: Metrics, title: str, predicted: float | None = None) -> Picture:
    """Plot the time of every step, the median, and the ``predicted`` time in seconds, if given."""
    steps, seconds = _columns(metrics, "seconds")
    figure, axes = new_figure(title)
    middle = median(seconds)
    axes.plot(steps, [1e3 * s for s in seconds], ".", color=palette.COMPUTATION, markersize=6, label="measured")
    axes.axhline(1e3 * middle, color=palette.INK, linewidth=1.5, label=f"median, {milliseconds(middle)}")
    if predicted is not None:
        label = f"simulated, {milliseconds(predicted)}"
        axes.axhline(1e3 * predicted, color=palette.COMMUNICATION, linewidth=2, linestyle="--", label=label)
    axes.set(xlabel="step", ylabel="milliseconds", ylim=(0, 3e3 * middle))
    beside = "" if predicted is None else f", {milliseconds(predicted)} simulated"
    return finish(figure, f"Median of {len(seconds)} steps: {milliseconds(middle)}{beside}.")


def digits_grid(shards: Sequence[tuple[NDArray[Any], NDArray[Any]]], title: str, *, per_rank: int = 10) -> Picture:
    """Show the first ``per_rank`` digits of every shard, a row per rank, with their labels.

    ``shards`` come from `replicas.shard`: images (examples, 64) from 0 to 1, and labels, of at most 16 ranks. Raises
    `InvalidArgument`.
    """
    check_int("per_rank", per_rank, 1, 20)
    if not isinstance(shards, Sequence) or not 1 <= len(shards) <= 16:
        raise InvalidArgument("shards", shards, "a list of 1 to 16 shards, each (images, labels)")
    for images, labels in shards:
        if np.ndim(images) != 2 or np.shape(images)[1] != 64 or len(images) != len(labels):
            raise InvalidArgument("shards", np.shape(images), "images of shape (examples, 64), with as many labels")
    left, pitch = MARGIN + 60, 8 * PIXEL + 8
    card = Card(max(left + per_rank * pitch + MARGIN, 560), title)
    for rank, (images, labels) in enumerate(shards):
        card.add(text(MARGIN, card.y + 20 + 4 * PIXEL, f"rank {rank}", 13))
        for column, label in enumerate(labels[:per_rank]):
            card.add(aside(left + column * pitch + 4 * PIXEL, card.y + 11, str(label), anchor="middle"))
        row = np.zeros((8, per_rank, pitch // PIXEL))
        row[:, : len(labels), :8] = np.reshape(images[:per_rank], (-1, 8, 8)).swapaxes(0, 1)
        place = f"translate({left} {card.y + 16:g}) scale({PIXEL})"
        card.add(element("g", _shades(row.reshape(8, -1)), transform=place, shape_rendering="crispEdges"))
        card.y += 16 + 8 * PIXEL + 14
    first = " ".join(f"Rank {r}: {', '.join(map(str, labels[:per_rank]))}." for r, (_, labels) in enumerate(shards))
    return card.picture(card.y + 6, f"The first digits of each shard. {first}")


def _shades(image: NDArray[Any]) -> Iterator[str]:
    """Yield the pixels of an image of values from 0 to 1, those of one shade of grey as one element."""
    shades = np.rint(LEVELS * image).astype(int)
    for shade in sorted(set(shades[shades > 0].tolist())):
        pixels = "".join(f"M{column} {row}h1v1h-1z" for row, column in np.argwhere(shades == shade))
        yield element("path", d=pixels, fill=palette.tint(palette.INK, shade / LEVELS))


@in_style
def cost_curves(
    costs: Mapping[str, Cost], title: str, *, smallest: float = 1e3, largest: float = 1e9, mark: bool = True
) -> Picture:
    """Plot up to four costs by name, such as `AlphaBeta`, over message sizes in bytes; both axes are logarithmic.

    ``mark``: put a dot and a size where another cost becomes the smallest. Raises `InvalidArgument`.
    """
    if not isinstance(costs, Mapping) or not 1 <= len(costs) <= len(LINES) or not all(map(callable, costs.values())):
        raise InvalidArgument("costs", costs, f"1 to {len(LINES)} functions of bytes by name")
    check_float("largest", largest, above=check_float("smallest", smallest, above=0))
    sizes = np.geomspace(smallest, largest, POINTS)
    seconds = {name: cost(sizes) for name, cost in costs.items()}
    figure, axes = new_figure(title)
    draw_lines(axes, seconds, sizes)
    axes.set(xscale="log", yscale="log", xlabel="bytes of the buffer", ylabel="seconds")
    _size_axis(axes, smallest, largest)
    crossings = []
    best = np.argmin(list(seconds.values()), axis=0)
    for left, right in pairwise(range(POINTS)):
        if mark and best[left] != best[right]:
            before, after = list(seconds)[best[left]], list(seconds)[best[right]]
            size = _where_equal(costs[before], costs[after], sizes[left], sizes[right])
            height = float(costs[after](np.array([size]))[0])
            axes.plot([size], [height], "o", color=palette.INK, markersize=6, zorder=5)
            axes.annotate(in_words(size, "B"), (size, height), (8, -15), textcoords="offset points", fontweight="bold")
            crossings.append(f"{after} becomes cheaper than {before} at {in_words(size, 'B')}")
    ends = [f"{name}: {in_words(v[0], 's')} → {in_words(v[-1], 's')}" for name, v in seconds.items()]
    reach = f"from {in_words(smallest, 'B')} to {in_words(largest, 'B')}"
    return finish(figure, f"Time of a call {reach}. {'; '.join([*ends, *crossings])}.")


@in_style
def fitted_sweep(fit: Fit, title: str) -> Picture:
    """Plot a measured sweep, the α–β line fitted to it, and shade where the line is within the fit's tolerance."""
    check_type("fit", fit, Fit, "a Fit, as collectives.fit returns it")
    figure, axes = new_figure(title)
    smallest, largest = max(float(fit.nbytes.min()), 1.0), float(fit.nbytes.max())
    sizes = np.geomspace(smallest, largest, POINTS)
    if fit.good:
        colour = palette.tint(palette.COMPLETE, 0.18)
        axes.axvspan(*fit.good, color=colour, label=f"within {fit.tolerance:.0%}", zorder=0)
    axes.plot(sizes, fit.model(sizes), color=palette.COMMUNICATION, linewidth=2, label="α + β · bytes")
    axes.plot(fit.nbytes, fit.seconds, "o", color=palette.INK, markersize=5, label="measured")
    axes.set(xscale="log", yscale="log", xlabel="bytes of the buffer", ylabel="seconds")
    _size_axis(axes, smallest, largest)
    low, high = fit.good or (np.inf, np.inf)
    within = sum(low <= size <= high for size in fit.nbytes)
    return finish(figure, f"{len(fit.nbytes)} measured calls; the fitted line is within its tolerance for {within}.")


@in_style
def sweeps(measured: Mapping[str, Sweep], title: str) -> Picture:
    """Plot the bus bandwidth of up to four measured sweeps by name against the size of the message."""
    check_named("measured", measured, len(LINES), Sweep, f"1 to {len(LINES)} Sweep by name")
    figure, axes = new_figure(title)
    for (name, sweep), (colour, dashes, _) in zip(measured.items(), LINES, strict=False):
        points = sweep.nbytes, sweep.busbw / 1e9
        axes.plot(*points, dashes, color=colour, linewidth=2, marker="o", markersize=4, label=name)
    axes.set(xscale="log", xlabel="bytes of the buffer", ylabel="bus bandwidth (GB/s)", ylim=(0, None))
    sizes = np.concatenate([sweep.nbytes for sweep in measured.values()])
    _size_axis(axes, float(sizes.min()), float(sizes.max()))
    largest = [f"{name}: at most {in_words(float(sweep.busbw.max()), 'B')}/s" for name, sweep in measured.items()]
    return finish(figure, f"{'; '.join(largest)}.")


def _size_axis(axes: "Axes", smallest: float, largest: float) -> None:
    """Label sizes in bytes at every power of 1,000, or of 10 if the axis has less than five decades."""
    step = 3 if largest / smallest >= 1e5 else 1
    powers = range(ceil(log10(smallest) / step), floor(log10(largest) / step) + 1)
    axes.set_xticks([10.0 ** (step * p) for p in powers], labels=[in_words(10.0 ** (step * p), "B") for p in powers])
    axes.xaxis.minorticks_off()


def _where_equal(a: Cost, b: Cost, low: float, high: float) -> float:
    """Return the size between ``low`` and ``high`` at which costs ``a`` and ``b`` are equal, by bisection."""
    first = a(np.array([low])) < b(np.array([low]))
    for _ in range(60):
        middle = np.array([(low + high) / 2])
        low, high = (middle[0], high) if (a(middle) < b(middle)) == first else (low, middle[0])
    return high


def _named(runs: Runs) -> dict[str, Run]:
    if isinstance(runs, Run):
        runs = [runs]
    if not isinstance(runs, Mapping):
        try:
            listed = list(runs)
            runs = {f"{run.world} replicas" if run.world > 1 else "1 process": run for run in listed}
        except (TypeError, AttributeError):
            raise InvalidArgument("runs", runs, "a Run, a list of them, or a dict of them by name") from None
        if len(runs) < len(listed):
            raise InvalidArgument("runs", listed, "runs of different worlds, or a dict of them by name")
    check_named("runs", runs, len(LINES), Run, f"1 to {len(LINES)} runs, each a Run")
    return dict(runs)


def _columns(metrics: Metrics, name: str) -> tuple[list[int], list[float]]:
    try:
        steps, values = [int(line["step"]) for line in metrics], [float(line[name]) for line in metrics]
    except (TypeError, KeyError, ValueError):
        steps, values = [], []
    if not steps:
        raise InvalidArgument("metrics", metrics, f"one or more lines with step and {name}")
    return steps, values
