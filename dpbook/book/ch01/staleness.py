"""Gradient descent with gradients of older parameters, and its picture."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpbook.core import InvalidArgument, check_float, check_int
from dpbook.figures import Plot
from dpbook.figures.card import LINES, draw_lines, finish, in_style, new_figure


def descend(rate: float, delay: int, steps: int) -> NDArray[np.float64]:
    """Return the distance |w| (steps,) from the minimum of the parabola λ/2·w² after each step, from w = 1 on.

    The gradient of a step is that of the parameters ``delay`` updates earlier, w ← w − rate · w_old, where ``rate`` is
    the learning rate times the curvature λ; before there were any, that of the start. It shrinks for every rate below
    2·cos(π·delay / (2·delay + 1)) and grows above (Levin and May, A note on difference-delay equations, 1976).
    """
    check_float("rate", rate, above=0)
    check_int("delay", delay, 0)
    w = [1.0] * (delay + 1)
    for _ in range(check_int("steps", steps, 1)):
        w.append(w[-1] - rate * w[-1 - delay])
    return np.abs(w[delay + 1 :])


@in_style
def draw_distances(paths: Mapping[str, NDArray[Any]], title: str) -> Plot:
    """Plot one to four named paths from `descend` on a logarithmic axis. Raises `InvalidArgument`."""
    if not isinstance(paths, Mapping) or not 1 <= len(paths) <= len(LINES):
        raise InvalidArgument("paths", paths, f"1 to {len(LINES)} paths by name")
    figure, axes = new_figure(title)
    draw_lines(axes, dict(paths))
    axes.set(xlabel="step", ylabel="distance from the minimum", yscale="log")
    axes.legend(loc="best", handlelength=3)
    ends = "; ".join(f"{name}: {path[-1]:.2g}" for name, path in paths.items())
    return finish(figure, f"{title}. Distance from the minimum at the end: {ends}.")
