"""Analysis of inexact methods: parabolas, on which they have closed forms, and the distance between two runs."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from dpbook.core import InvalidArgument, check_float, check_int
from dpbook.replicas.networks import Array
from dpbook.replicas.training import Run


class Parabolas:
    """Model of one parameter w, in which an example is the parabola x / 2 · (w − y)² of curvature x and minimum y.

    ``x`` and ``y`` have shape (n,), and w begins at ``start``. The mean over several examples is a parabola too, with
    the mean curvature and its minimum at Σ x y / Σ x.
    """

    size = 1

    def __init__(self, start: float = 1.0) -> None:
        self.start = check_float("start", start)

    def init(self, rng: np.random.Generator, dtype: DTypeLike = np.float64) -> Array:
        """Return [start]; nothing is drawn."""
        return np.array([self.start], dtype)

    def loss(self, params: Array, x: Array, y: Array) -> float:
        """Return the mean of the examples' parabolas."""
        return float(np.mean(x / 2 * (params - y) ** 2))

    def gradient(self, params: Array, x: Array, y: Array) -> Array:
        """Return the derivative of the mean, of shape (1,)."""
        slope: Array = np.mean(x * (params - y), keepdims=True)
        return slope

    def predict(self, params: Array, x: Array) -> Array:
        """Return w for each example, (n, 1)."""
        return np.tile(params, (len(x), 1))


def local_fixed_point(curvatures: Sequence[float], minima: Sequence[float], lr: float, period: int) -> float:
    """Return the fixed point of local SGD if rank r always has one parabola, of curvature a_r and minimum p_r.

    ``period`` steps reduce the distance to the rank's minimum by q_r = (1 − lr a_r)^period, so the fixed point of the
    average is Σ (1 − q_r) p_r / Σ (1 − q_r). For a period of 1 that is the minimum of the sum, Σ a_r p_r / Σ a_r; as
    the period grows it tends to the plain mean of the minima. DiLoCo's outer gradient is 0 at the same point. ``lr`` is
    at most 1 / the largest curvature, so that every q_r is from 0 to below 1.
    """
    a = np.array([check_float("curvatures", curvature, above=0) for curvature in curvatures])
    p = np.array([check_float("minima", minimum) for minimum in minima])
    if not 0 < len(a) == len(p):
        raise InvalidArgument("curvatures", curvatures, "positive numbers, one for each minimum")
    if not 0 < check_float("lr", lr) <= 1 / a.max():
        raise InvalidArgument("lr", lr, f"above 0 and at most {1 / a.max():g}")
    moved = 1 - (1 - lr * a) ** check_int("period", period, 1)
    return float((moved * p).sum() / moved.sum())


def largest_stable_rate(delay: int) -> float:
    """Return the learning rate times the curvature below which `Stale` converges on a parabola, 2 cos(π d / (2 d + 1)).

    Above it the parameter diverges (Levin and May, A note on difference-delay equations, 1976). It is 2 without delay,
    1 for a delay of 1, and about π / (2 d + 1) for long delays.
    """
    d = check_int("delay", delay, 0)
    return 2 * math.cos(math.pi * d / (2 * d + 1))


def relative_distance(run: Run, exact: Run, start: Array) -> float:
    """Return the distance of a run's final parameters from the exact run's, relative to the exact run's distance moved.

    That is ‖w − w_exact‖ / ‖w_exact − w_start‖, where each w is the mean over the replicas. 0 is the exact run; 1 is as
    far from it as the start: the initial parameters, (size,) or one row per replica.
    """
    ends = [np.mean(np.atleast_2d(params), axis=0, dtype=np.float64) for params in (run.params, exact.params, start)]
    if len({end.shape for end in ends}) > 1:
        raise InvalidArgument("run, exact, start", [end.size for end in ends], "of one size")
    final, target, first = ends
    if not (moved := np.linalg.norm(target - first)):
        raise InvalidArgument("exact", exact, "a run that moved")
    return float(np.linalg.norm(final - target) / moved)
