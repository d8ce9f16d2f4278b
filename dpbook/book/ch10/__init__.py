"""Chapter 10: Build your own DDP. Plots of step times: over an emulated and a real link, measured and predicted."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpbook.core import lazy_exports, palette
from dpbook.figures import Picture
from dpbook.figures.card import finish, in_style, new_figure
from dpbook.overlap import StepRecord

if TYPE_CHECKING:
    from dpbook.book.ch10.wires import in_threads

__getattr__ = lazy_exports(__name__, in_threads="wires")


Times = Mapping[str, Sequence[float]]
COLOURS = (palette.COMMUNICATION, palette.COMPUTATION)
SPREAD_PERCENTILE = 90
"""Upper end of the spread, a percentile of the steps: slower ones are due to the machine's other work."""


@in_style
def step_prediction(record: StepRecord, title: str) -> Picture:
    """Plot predicted and measured step times over the bucket cap, with bars from the fastest to the 90th percentile."""
    caps = list(record.measured)
    figure, axes = new_figure(title)
    for name, mark, shift, colour in (("measured", "o", 0.97, COLOURS[0]), ("predicted", "s", 1.03, COLOURS[1])):
        times = [getattr(record, name)[cap] for cap in caps]
        middle, low, high = _spread(times)
        axes.errorbar(
            [shift * cap for cap in caps], middle, [middle - low, high - middle],
            fmt=mark, color=colour, markersize=7, capsize=4, linewidth=1.5, label=name,
        )  # fmt: skip
    axes.set(xscale="log", xlabel="bucket cap (MiB)", ylabel="milliseconds per step")
    axes.set_xticks(caps, labels=[f"{cap:g}" for cap in caps])
    axes.minorticks_off()
    axes.set_ylim(0)
    medians = [(cap, median(record.predicted[cap]), median(record.measured[cap])) for cap in caps]
    values = "; ".join(f"{cap:g} MiB: {first:.0f} ms predicted, {then:.0f} measured" for cap, first, then in medians)
    return finish(figure, f"Medians of {len(record.measured[caps[0]])} steps: {values}.")


@in_style
def step_bars(links: Mapping[str, Times], title: str) -> Picture:
    """Draw, for one or two links by name, a bar per wrapper: its median step time in ms, with the spread."""
    names = list(next(iter(links.values())))
    figure, axes = new_figure(title, height=90 + 24 * len(links) * len(names))
    height = 0.8 / len(links)
    for place, ((link, times), colour) in enumerate(zip(links.items(), COLOURS, strict=False)):
        rows = np.arange(len(names)) + (place - (len(links) - 1) / 2) * height
        middle, low, high = _spread([times[name] for name in names])
        axes.barh(rows, middle, 0.92 * height, color=colour, label=link)
        axes.errorbar(middle, rows, xerr=[middle - low, high - middle], fmt="none", color=palette.INK, capsize=3)
        for row, value, end in zip(rows, middle, high, strict=True):
            axes.annotate(f"{value:.0f}", (end, row), (5, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(names)), labels=names)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    longest = max(_spread(list(times.values()))[2].max() for times in links.values())
    axes.set(xlabel="milliseconds per step", xlim=(0, 1.12 * longest))
    medians = {k: ", ".join(f"{name} {median(times[name]):.0f} ms" for name in names) for k, times in links.items()}
    values = "; ".join(f"{link}: {of_link}" for link, of_link in medians.items())
    return finish(figure, f"Median step times, {values}.")


def _spread(times: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """Return median, minimum and 90th percentile of each series, (3, n)."""
    return np.array([np.percentile(series, (50, 0, SPREAD_PERCENTILE)) for series in times]).T
