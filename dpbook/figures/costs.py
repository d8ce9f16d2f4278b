"""What a collective costs against the size of its message: curves with their crossovers, and measured sweeps."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpbook.collectives import Fit
from dpbook.core import InvalidArgument, check_float, check_type, in_words, palette
from dpbook.figures.card.plot import LINES, Plot, check_named, draw_lines, finish, in_style, new_figure
from dpbook.ranks import Sweep

Seconds = Callable[[NDArray[Any]], NDArray[Any]]
POINTS = 400


@in_style
def cost_curves(
    costs: Mapping[str, Seconds], title: str, *, smallest: float = 1e3, largest: float = 1e9, mark: bool = True
) -> Plot:
    """Plot up to four costs by name, such as `AlphaBeta`, over message sizes in bytes; both axes are logarithmic.

    ``mark``: put a dot and a size where another one becomes the cheapest. Raises `InvalidArgument`.
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
    told = []
    best = np.argmin(list(seconds.values()), axis=0)
    for left, right in pairwise(range(POINTS)):
        if mark and best[left] != best[right]:
            before, after = list(seconds)[best[left]], list(seconds)[best[right]]
            size = _where_equal(costs[before], costs[after], sizes[left], sizes[right])
            height = float(costs[after](np.array([size]))[0])
            axes.plot([size], [height], "o", color=palette.INK, markersize=6, zorder=5)
            axes.annotate(in_words(size, "B"), (size, height), (8, -13), textcoords="offset points", fontweight="bold")
            told.append(f"{after} becomes cheaper than {before} at {in_words(size, 'B')}")
    axes.legend(loc="upper left", handlelength=3)
    ends = [f"{name}: {in_words(v[0], 's')} → {in_words(v[-1], 's')}" for name, v in seconds.items()]
    reach = f"from {in_words(smallest, 'B')} to {in_words(largest, 'B')}"
    return finish(figure, f"{title}. Time of a call {reach}. {'; '.join([*ends, *told])}.")


@in_style
def fitted_sweep(fit: Fit, title: str) -> Plot:
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
    axes.legend(loc="upper left")
    low, high = fit.good or (np.inf, np.inf)
    told = f"fitted line is within its tolerance for {sum(low <= size <= high for size in fit.nbytes)}"
    return finish(figure, f"{title}. {len(fit.nbytes)} measured calls; the {told}.")


@in_style
def sweeps(measured: Mapping[str, Sweep], title: str) -> Plot:
    """Plot the bus bandwidth of up to four measured sweeps by name against the size of the message."""
    check_named("measured", measured, len(LINES), Sweep, f"1 to {len(LINES)} Sweep by name")
    figure, axes = new_figure(title)
    for (name, sweep), (colour, dashes, _) in zip(measured.items(), LINES, strict=False):
        points = sweep.nbytes, sweep.busbw / 1e9
        axes.plot(*points, dashes, color=colour, linewidth=2, marker="o", markersize=4, label=name)
    axes.set(xscale="log", xlabel="bytes of the buffer", ylabel="bus bandwidth (GB/s)", ylim=(0, None))
    sizes = np.concatenate([sweep.nbytes for sweep in measured.values()])
    _size_axis(axes, float(sizes.min()), float(sizes.max()))
    axes.legend(loc="upper left", handlelength=3)
    told = "; ".join(f"{name}: at most {in_words(float(one.busbw.max()), 'B')}/s" for name, one in measured.items())
    return finish(figure, f"{title}. {told}.")


def _size_axis(axes: Any, smallest: float, largest: float) -> None:
    """Label sizes in bytes at every power of 1,000."""
    powers = range(int(np.ceil(np.log10(smallest) / 3)), int(np.floor(np.log10(largest) / 3)) + 1)
    axes.set_xticks([1e3**p for p in powers], labels=[in_words(1e3**p, "B") for p in powers])


def _where_equal(a: Seconds, b: Seconds, low: float, high: float) -> float:
    """The size between ``low`` and ``high`` at which the costs ``a`` and ``b`` change places, by bisection."""

    first = a(np.array([low])) < b(np.array([low]))
    for _ in range(60):
        middle = np.array([(low + high) / 2])
        low, high = (middle[0], high) if (a(middle) < b(middle)) == first else (low, middle[0])
    return high
