"""A training run as its metrics tell it: loss and step time over the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from dpbook.core import InvalidArgument
from dpbook.figures.card import palette
from dpbook.figures.card.plot import Plot, check_title, finish, in_style, new_figure

Lines = Sequence[Mapping[str, Any]]


@in_style
def run_loss(metrics: Lines, title: str) -> Plot:
    """Plot the loss of the global batch over the steps of ``metrics``, a mapping with "step" and "loss" each."""
    steps, losses = _columns(metrics, "loss")
    check_title(title)
    figure, axes = new_figure(title)
    axes.plot(steps, losses, color=palette.COMPUTATION, linewidth=2)
    axes.set(xlabel="step", ylabel="loss of the global batch")
    return finish(
        figure, f"{title}. From {losses[0]:.3f} at step {steps[0]:,} to {losses[-1]:.3f} at step {steps[-1]:,}."
    )


@in_style
def run_seconds(metrics: Lines, title: str, predicted: float | None = None) -> Plot:
    """Plot the seconds of every step, their median, and what was ``predicted``, if given."""
    steps, seconds = _columns(metrics, "seconds")
    check_title(title)
    figure, axes = new_figure(title)
    middle = median(seconds)
    axes.plot(steps, [1e3 * s for s in seconds], ".", color=palette.COMPUTATION, markersize=4, label="measured")
    axes.axhline(1e3 * middle, color=palette.INK, linewidth=1.5, label=f"median, {1e3 * middle:.3g} ms")
    if predicted is not None:
        label = f"simulated, {1e3 * predicted:.3g} ms"
        axes.axhline(1e3 * predicted, color=palette.COMMUNICATION, linewidth=2, linestyle="--", label=label)
    axes.set(xlabel="step", ylabel="milliseconds", ylim=(0, 3e3 * middle))
    axes.legend(loc="upper right")
    beside = "" if predicted is None else f", {1e3 * predicted:.3g} ms simulated"
    return finish(figure, f"{title}. Median of {len(seconds)} steps: {1e3 * middle:.3g} ms{beside}.")


def _columns(metrics: Lines, name: str) -> tuple[list[int], list[float]]:
    try:
        steps, values = [int(line["step"]) for line in metrics], [float(line[name]) for line in metrics]
    except (TypeError, KeyError, ValueError):
        steps, values = [], []
    if not steps:
        raise InvalidArgument("metrics", metrics, f"one or more lines with step and {name}")
    return steps, values
