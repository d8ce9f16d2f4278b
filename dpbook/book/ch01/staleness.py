"""Gradient descent with gradients of older parameters, and its picture."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpbook.core import InvalidArgument, check_float, check_int
from dpbook.figures import Plot
from dpbook.figures.card import LINES, draw_lines, finish, in_style, new_figure


def descend(rate: float, delay: int, steps: int) -> NDArray[np.float64]:
    """Return the parameter w (steps,) after each step of gradient descent on the parabola λ/2·w², from w = 1 on.

    The gradient of a step is that of the parameters ``delay`` updates earlier, w ← w − rate · w_old, where ``rate`` is
    the learning rate times the curvature λ; before there were any, that of the start. |w| shrinks for every rate below
    `replicas.inexact.largest_stable_rate` of the delay and grows above.
    """
    check_float("rate", rate, above=0)
    check_int("delay", delay, 0)
    w = [1.0] * (delay + 1)
    for _ in range(check_int("steps", steps, 1)):
        w.append(w[-1] - rate * w[-1 - delay])
    return np.array(w[delay + 1 :])


@in_style
def draw_paths(paths: Mapping[str, NDArray[Any]], title: str) -> Plot:
    """Plot one to four named paths from `descend`, whose minimum is at 0. Raises `InvalidArgument`."""
    if not isinstance(paths, Mapping) or not 1 <= len(paths) <= len(LINES):
        raise InvalidArgument("paths", paths, f"1 to {len(LINES)} paths by name")
    figure, axes = new_figure(title)
    draw_lines(axes, dict(paths))
    axes.set(xlabel="step", ylabel="parameter w; the minimum is at 0")
    axes.legend(loc="upper left", ncols=2, handlelength=3)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.3 * (high - low))  # room for the legend
    ends = "; ".join(f"{name}: {path[-1]:.2g}" for name, path in paths.items())
    return finish(figure, f"{title}. w at the end: {ends}.")
