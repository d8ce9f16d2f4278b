"""Plots of errors against a rounding bound and of distances between replicas; sums in bfloat16, emulated in float32."""

from collections.abc import Mapping
from math import ceil, floor, log10
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpbook.core import InvalidArgument, palette
from dpbook.figures import Picture, magnitude
from dpbook.figures.card import LINES, draw_lines, finish, in_style, new_figure
from dpbook.replicas import Array
from dpbook.replicas.inexact import bf16


def sum_in_bf16(buffers: Array) -> Array:
    """Return for every rank the sum (world, size) in rank order, rounded to bfloat16 after each addition.

    That is what comes of an all-reduce that sends bfloat16 from rank to rank, whatever precision a rank adds in.
    ``buffers`` is a float32 array (world, size); rows are rounded before they are added.
    """
    if not isinstance(buffers, np.ndarray) or buffers.ndim != 2 or buffers.dtype != np.float32:
        raise InvalidArgument("buffers", buffers, "a float32 array (world, size)")
    total, *others = bf16(buffers)
    for own in others:
        total = bf16(total + own)
    return np.tile(total, (len(buffers), 1))


@in_style
def error_ladder(errors: Mapping[str, float], bound: float, title: str, unit: str = "largest error") -> Picture:
    """Place named errors on one logarithmic axis, left or right of the largest that rounding can explain.

    ``errors`` are 1 to 10 positive finite numbers, drawn from top to bottom; what is at or below ``bound``, which is
    positive too, is rounding. ``title`` states the finding, ``unit`` what the axis measures. Raises `InvalidArgument`.
    """
    if not isinstance(errors, Mapping) or not 1 <= len(errors) <= 10 or not _positive(list(errors.values())):
        raise InvalidArgument("errors", errors, "1 to 10 positive finite numbers by name")
    if not _positive([bound]):
        raise InvalidArgument("bound", bound, "a positive finite number")
    figure, axes = new_figure(title, height=90 + 36 * len(errors))
    left, right = _limits(bound, list(errors.values()))
    axes.axvspan(left, bound, color=palette.PANEL, zorder=0)
    axes.axvline(bound, color=palette.INK, linewidth=1.6)
    for row, error in enumerate(errors.values()):
        marker, colour = ("o", palette.COMPLETE) if error <= bound else ("D", palette.EXPOSED)
        axes.plot([error], [row], marker, color=colour, markersize=8)
    axes.set(xscale="log", xlim=(left, right), xlabel=unit, ylim=(len(errors) - 0.4, -0.9))
    axes.set_yticks(range(len(errors)), labels=list(errors))
    for x, align, words in ((bound / 1.5, "right", "rounding explains it"), (bound * 1.5, "left", "different")):
        axes.text(x, -0.55, words, ha=align, va="center", color=palette.MUTED)
    told = [f"{name}: " + (f"{error:.2g}" if error > bound else "within it") for name, error in errors.items()]
    alt = f"{title}. The bound on rounding is {magnitude(bound)}. {'; '.join(told)}."
    return finish(figure, alt, varies=min(errors.values()) <= bound)


@in_style
def distances(series: Mapping[str, ArrayLike], title: str, unit: str) -> Picture:
    """Plot up to four named series of distances, one value per step from step 1, on a linear axis from 0."""
    named: dict[str, NDArray[Any]] = {name: np.asarray(values, float) for name, values in dict(series).items()}
    if not 1 <= len(named) <= len(LINES) or any(v.ndim != 1 or not np.isfinite(v).all() for v in named.values()):
        raise InvalidArgument("series", series, f"1 to {len(LINES)} one-dimensional, finite series by name")
    figure, axes = new_figure(title)
    draw_lines(axes, named)
    axes.set(xlabel="step", ylabel=unit, ylim=(0, 1.05 * max(values.max() for values in named.values())))
    ends = "; ".join(f"{name}: {values[0]:.3g} → {values[-1]:.3g}" for name, values in named.items())
    return finish(figure, f"{title}. {unit.capitalize()}, first to last step: {ends}.")


def _limits(bound: float, errors: list[float]) -> tuple[float, float]:
    """Ends of a logarithmic axis with a decade to spare, and with room for words on both sides of the bound."""
    low, middle, high = log10(min(errors)), log10(bound), log10(max(errors))
    left, right = floor(min(low, middle)) - 1, ceil(max(high, middle)) + 1
    left = min(left, floor(middle - 0.5 * (right - middle)))
    right = max(right, ceil(middle + 0.3 * (middle - left)))
    return 10.0 ** max(left, -307), 10.0 ** min(right, 308)  # the ends of float64


def _positive(values: list[float]) -> bool:
    return all(isinstance(value, int | float) and 0 < value < float("inf") for value in values)
