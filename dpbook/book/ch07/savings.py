"""Explorer of what overlap saves, over computation, communication and the number of equal buckets."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dpbook import overlap
from dpbook.core import plural
from dpbook.figures import Explorer, Knob, Picture
from dpbook.figures.card import stacked
from dpbook.figures.steps import draw_until, position_curve
from dpbook.overlap import Layer, Strategy, Timeline, simulate_step

COUNTS = (1, 2, 3, 4, 5, 8, 10, 20, 50)
MOST_MS = 150
"""Longest computation and longest communication; the axis is twice as long."""
MOST_SAVED = 0.4
"""Upper end of the axis of what overlap saves: forward, a third of the computation, hides nothing."""


def explore_savings() -> Explorer:
    """Vary computation, communication and the number of equal buckets, and see how much of a naive step overlap saves.

    Backward is two thirds of the computation; with k buckets, one is sent at the end of each k-th of it.
    """

    def saved(compute: float, communication: float, buckets: int) -> float:
        naive, overlapped = (_equal_step(do, compute, communication, buckets) for do in strategies.values())
        return 1 - overlapped.duration / naive.duration

    def draw(compute: float, communication: float, buckets: int, before: Mapping[str, Any] | None = None) -> Picture:
        steps = {name: _equal_step(do, compute, communication, buckets) for name, do in strategies.items()}
        share = saved(compute, communication, buckets)
        title = f"With {plural(buckets, 'bucket')} overlap saves {share:.0%} of the naive step"
        curves = []
        for name, values, what in (("communication", times, "communication"), ("buckets", counts, "number of buckets")):
            now: dict[str, Any] = {"compute": compute, "communication": communication, "buckets": buckets}
            curve = {label: saved(**{**now, name: value}) for label, value in values.items()}
            labels = {value: label for label, value in values.items()}
            last = (labels[before[name]], saved(**before)) if before else None
            over = f"What overlap saves, over the {what}"
            curves.append(position_curve(curve, labels[now[name]], over, "{:.0%}".format, (0, MOST_SAVED), max, last))
        return stacked(draw_until(steps, title, end=2e-3 * MOST_MS), *curves)

    strategies = {"naive": overlap.naive_flat, "overlapped": overlap.hook}
    times = {f"{ms} ms": ms / 1e3 for ms in (10, 20, 35, 50, 67, 75, 100, MOST_MS)}
    counts = {str(count): count for count in COUNTS}
    knobs = [
        Knob("compute", "computation", times, "100 ms"),
        Knob("communication", "communication", times, "35 ms"),
        Knob("buckets", "buckets", counts, "4"),
    ]
    return Explorer(draw, knobs)


def _equal_step(
    strategy: Callable[[Sequence[Layer]], Strategy], compute: float, communication: float, buckets: int
) -> Timeline:
    """Simulate a step of as many equal layers as ``buckets``."""
    layers = overlap.equal_layers(buckets, compute / 3, compute * 2 / 3, buckets)
    return simulate_step(layers, strategy(layers), lambda nbytes: communication * nbytes / buckets)
