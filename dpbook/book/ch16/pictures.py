"""Curves of this chapter, and the race of all methods against simulated time, for any link."""

from collections.abc import Mapping

import numpy as np

from dpbook.book.ch16.racing import Raced
from dpbook.collectives import Link
from dpbook.core import palette
from dpbook.figures import Explorer, Knob, Plot
from dpbook.figures.card import draw_lines, finish, in_style, new_figure, seconds_in_words
from dpbook.planning import LINKS
from dpbook.replicas import Array

GOAL = 0.2
"""The test loss at which the title of a race looks for the first."""
SECONDS = 3.0, 4e4
"""Where the axis of the race's time begins and ends, whatever the link."""
KINDS = {
    "exact": (palette.INK, "-", 3.5),
    "bf16": (palette.COMPUTATION, "-", 2.0),
    "int8": (palette.COMPUTATION, "--", 2.0),
    "top-k": (palette.COMMUNICATION, "-", 2.0),
    "sign": (palette.COMMUNICATION, "--", 2.0),
    "low rank": (palette.COMMUNICATION, ":", 2.4),
    "local SGD": (palette.COMPLETE, "-", 2.0),
    "DiLoCo": (palette.COMPLETE, "--", 2.0),
    "stale": (palette.EXPOSED, "-", 1.6),
    "backup": (palette.EXPOSED, "--", 1.6),
}
"""Colour, dashes and width of a method's curve: a colour for what it spends."""
OTHER = (palette.MUTED, "-", 1.6)
"""Of a method of the reader's own."""


@in_style
def curves(series: Mapping[str, Array], x: Array, title: str, *, across: str, up: str, log: str = "") -> Plot:
    """Plot up to four named series over ``x``. ``log`` holds "x" and "y" where the axis is to be logarithmic."""
    figure, axes = new_figure(title)
    draw_lines(axes, series, x)
    axes.set(xlabel=across, ylabel=up)
    axes.set(xscale="log" if "x" in log else "linear", yscale="log" if "y" in log else "linear")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    if len(series) > 1:
        axes.legend(handlelength=3)
    told = "; ".join(f"{name}: {values[0]:.2g} to {values[-1]:.2g}" for name, values in series.items())
    return finish(figure, f"{title}. {up} by {across}, from {x[0]:.3g} to {x[-1]:.3g}. {told}.")


@in_style
def race_over(found: Mapping[str, Raced], link: Link, scale: float) -> Plot:
    """Draw every method's test loss against simulated time over ``link``; the title names the first at `GOAL`."""
    clocks = {name: raced.clock(link, scale) for name, raced in found.items()}
    firsts = {name: raced.first(clocks[name], GOAL) for name, raced in found.items()}
    quickest = min(firsts, key=lambda name: firsts[name])
    title = f"{link.name}: first at a loss of {GOAL:g} is {quickest}"
    if quickest != "exact" and np.isfinite(firsts.get("exact", np.inf)):
        longer = firsts["exact"] / firsts[quickest]
        title = f"{link.name}: {quickest} is first, exact takes {longer:.1f}×"
    figure, axes = new_figure(title)
    for name, raced in found.items():
        colour, dashes, width = KINDS.get(name, OTHER)
        axes.plot(clocks[name], raced.losses, dashes, color=colour, linewidth=width, label=name)
    axes.axhline(GOAL, color=palette.MUTED, linewidth=0.8)
    axes.set(xlabel="simulated seconds", ylabel="test loss", xscale="log", yscale="log", xlim=SECONDS, ylim=(0.1, 2.5))
    axes.set_yticks([0.1, 0.2, 0.5, 1, 2], labels=["0.1", "0.2", "0.5", "1", "2"])
    axes.set_xticks([10, 100, 1_000, 10_000], labels=["10", "100", "1,000", "10,000"])
    axes.minorticks_off()
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), handlelength=3)
    told = [f"{name} {seconds_in_words(at) if np.isfinite(at) else 'never'}" for name, at in firsts.items()]
    return finish(figure, f"{title}. Test loss against simulated time. When each is at {GOAL:g}: {', '.join(told)}.")


def explore_race(found: Mapping[str, Raced], scale: float, start: str) -> Explorer:
    """The race with a slider for the link, from the slowest to the fastest; ``start`` is the name of one in `LINKS`."""
    links = sorted(LINKS.values(), key=lambda link: link.bandwidth)
    knob = Knob("link", "link", {link.name: link for link in links}, start)
    return Explorer(lambda link: race_over(found, link, scale), [knob])
