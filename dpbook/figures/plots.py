"""Data plots of training: loss and step times, what keeps replicas apart, and the digits."""

from collections.abc import Mapping, Sequence
from math import ceil, floor, log10
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpbook.core import InvalidArgument, check_int, milliseconds, palette
from dpbook.figures.card import LINES, VARIES, check_named, draw_lines, finish, in_style, new_figure
from dpbook.figures.card.plot import DPI, Plot, check_title
from dpbook.replicas import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAST = 1e-4
"""A difference below is taken for rounding, in which no two processors agree."""
Runs = Run | Sequence[Run] | Mapping[str, Run]
Lines = Sequence[Mapping[str, Any]]


@in_style
def loss_curve(runs: Runs, title: str, *, log: bool = False) -> Plot:
    """Plot the loss of each step for one run, several, or several by name (default: by their number of replicas).

    ``title`` states the finding. ``log``: logarithmic axis of the loss. Raises `InvalidArgument`.
    """
    named = _named(runs)
    figure, axes = new_figure(title)
    draw_lines(axes, {name: run.losses for name, run in named.items()})
    axes.set(xlabel="step", ylabel="loss of the global batch", yscale="log" if log else "linear")
    if len(named) > 1:
        axes.legend(loc="upper right", handlelength=3)
    ends = "; ".join(f"{name}: {run.losses[0]:.4g} → {run.losses[-1]:.4g}" for name, run in named.items())
    return finish(figure, f"{title}. Loss of the global batch from the first to the last step: {ends}.")


@in_style
def drift_and_gap(run: Run, title: str) -> Plot:
    """Plot the drift between replicas and, below it, the gap to the big batch after each step, on logarithmic axes.

    Two axes, because a drift is a distance of parameters and a gap one of gradients: neither is larger than the other.
    Values of exactly 0 have no place on such an axis: they lie on a line of their own at its foot, labelled 0.
    """
    from matplotlib.figure import Figure

    _named(run)
    check_title(title)
    figure = Figure(figsize=(6.6, 4.2), dpi=DPI, layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    upper.set_title(title)
    _draw_differences(upper, run.drifts, "drift, of parameters", LINES[0][0])
    _draw_differences(lower, run.gaps, "gap, of gradients", LINES[1][0])
    margin = max(1, len(run.drifts) - 1) / 20  # said, as older matplotlibs stretch the axis to the shaded foot's 0
    lower.set(xlabel="step", xlim=(1 - margin, len(run.drifts) + margin))
    drift, gap = magnitude(run.drift), magnitude(run.gap)
    return finish(figure, f"{title}. Over {len(run.drifts)} steps the drift is {drift} and the gap {gap}.")


def _draw_differences(axes: "Axes", values: NDArray[Any], label: str, colour: str) -> None:
    positive = values[np.isfinite(values) & (values > 0)]
    low = floor(log10(positive.min())) if positive.size else -17
    high = max(low + 1, ceil(log10(positive.max())) if positive.size else -15)
    zero = 10.0 ** (low - 1)
    axes.axhspan(zero / 10**0.4, zero * 10**0.4, color=palette.PANEL, zorder=0)
    axes.plot(np.arange(1, len(values) + 1), np.where(values == 0, zero, values), color=colour, linewidth=2)
    if 0 < values.max() < LEAST:
        axes.set_gid(VARIES)
    decades = range(low, high + 1, max(1, (high - low) // 4))
    axes.set(ylabel=label, yscale="log", ylim=(zero / 10**0.4, 10.0**high))
    axes.set_yticks([zero, *(10.0**d for d in decades)], labels=["0", *(f"$10^{{{d}}}$" for d in decades)])
    axes.yaxis.minorticks_off()


def magnitude(value: float) -> str:
    """A power of ten that bounds ``value``: its digits differ between processors."""
    if not np.isfinite(value):
        return "not finite"
    return "exactly 0" if value == 0 else f"at most 1e{ceil(log10(value)):+03d}"


@in_style
def run_loss(metrics: Lines, title: str) -> Plot:
    """Plot the loss of the global batch over the steps of ``metrics``, a mapping with "step" and "loss" each."""
    steps, losses = _columns(metrics, "loss")
    figure, axes = new_figure(title)
    axes.plot(steps, losses, color=palette.COMPUTATION, linewidth=2)
    axes.set(xlabel="step", ylabel="loss of the global batch")
    told = f"From {losses[0]:.3f} at step {steps[0]:,} to {losses[-1]:.3f} at step {steps[-1]:,}"
    return finish(figure, f"{title}. {told}.")


@in_style
def run_seconds(metrics: Lines, title: str, predicted: float | None = None) -> Plot:
    """Plot the seconds of every step, their median, and what was ``predicted``, if given."""
    steps, seconds = _columns(metrics, "seconds")
    figure, axes = new_figure(title)
    middle = median(seconds)
    axes.plot(steps, [1e3 * s for s in seconds], ".", color=palette.COMPUTATION, markersize=4, label="measured")
    axes.axhline(1e3 * middle, color=palette.INK, linewidth=1.5, label=f"median, {milliseconds(middle)}")
    if predicted is not None:
        label = f"simulated, {milliseconds(predicted)}"
        axes.axhline(1e3 * predicted, color=palette.COMMUNICATION, linewidth=2, linestyle="--", label=label)
    axes.set(xlabel="step", ylabel="milliseconds", ylim=(0, 3e3 * middle))
    axes.legend(loc="upper right")
    beside = "" if predicted is None else f", {milliseconds(predicted)} simulated"
    return finish(figure, f"{title}. Median of {len(seconds)} steps: {milliseconds(middle)}{beside}.")


@in_style
def digits_grid(shards: Sequence[tuple[NDArray[Any], NDArray[Any]]], title: str, *, each: int = 10) -> Plot:
    """Show the first ``each`` digits of every shard, a row per rank, with their labels.

    ``shards`` is what `replicas.shard` returns: images (examples, 64) from 0 to 1, and labels, of at most 16 ranks.
    """
    from matplotlib.figure import Figure

    check_int("each", each, 1, 20)
    check_title(title)
    if not isinstance(shards, Sequence) or not 1 <= len(shards) <= 16:
        raise InvalidArgument("shards", shards, "a list of 1 to 16 shards, each (images, labels)")
    for images, labels in shards:
        if np.ndim(images) != 2 or np.shape(images)[1] != 64 or len(images) != len(labels):
            raise InvalidArgument("shards", np.shape(images), "images of shape (examples, 64), with as many labels")
    figure = Figure(figsize=(0.62 * each + 1.0, 0.78 * len(shards) + 0.65), dpi=DPI)
    figure.suptitle(title, x=0.02, ha="left", fontsize=11.5, fontweight="bold")
    grid = figure.subplots(len(shards), each, squeeze=False)
    for rank, (row, (images, labels)) in enumerate(zip(grid, shards, strict=True)):
        for axes in row:
            axes.set_axis_off()
        row[0].text(-0.35, 0.5, f"rank {rank}", transform=row[0].transAxes, ha="right", va="center")
        for axes, image, label in zip(row, images, labels, strict=False):
            axes.imshow(np.reshape(image, (8, 8)), cmap="gray_r", vmin=0, vmax=1)
            axes.set_title(str(label), fontsize=9, pad=2, loc="center", fontweight="normal")
    left, top = 0.85 / figure.get_figwidth(), 1 - 0.55 / figure.get_figheight()
    figure.subplots_adjust(left=left, right=0.98, top=top, bottom=0.03, hspace=0.45, wspace=0.15)
    told = " ".join(f"Rank {r}: {', '.join(map(str, labels[:each]))}." for r, (_, labels) in enumerate(shards))
    return finish(figure, f"{title}. The first digits of each shard. {told}")


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


def _columns(metrics: Lines, name: str) -> tuple[list[int], list[float]]:
    try:
        steps, values = [int(line["step"]) for line in metrics], [float(line[name]) for line in metrics]
    except (TypeError, KeyError, ValueError):
        steps, values = [], []
    if not steps:
        raise InvalidArgument("metrics", metrics, f"one or more lines with step and {name}")
    return steps, values
