"""The model on which inexact methods have closed forms: one parameter, and a parabola for every example."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from dpbook.core import InvalidArgument, check_float, check_int
from dpbook.replicas.array import Array


class Parabolas:
    """One parameter w; an example is the parabola x / 2 · (w − y)², of curvature x and with its minimum at y.

    ``x`` and ``y`` have shape (n,), and w begins at ``start``. Of several examples the mean is a parabola again, of the
    mean curvature and with its minimum at Σ x y / Σ x.
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
    """Where local SGD comes to rest if rank r always has one parabola, of curvature a_r and with its minimum at p_r.

    ``period`` steps leave q_r = (1 − lr a_r)^period of the distance to the rank's own minimum, so what the average
    brings back to itself is Σ (1 − q_r) p_r / Σ (1 − q_r). That is the minimum of all, Σ a_r p_r / Σ a_r, for a period
    of 1; it goes to the plain mean of the minima as the period grows. DiLoCo's outer gradient is 0 at the same place.

    Args:
        lr: at most 1 / the largest curvature, so that every q_r is from 0 to below 1.
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
    """Return the learning rate times the curvature below which `Stale` converges on a parabola: 2 cos(π d / (2 d + 1)).

    Above it the parameter grows without end (Levin and May, A note on difference-delay equations, 1976). Without delay
    it is 2, with a delay of 1 it is 1, and for long ones about π / (2 d + 1).
    """
    d = check_int("delay", delay, 0)
    return 2 * math.cos(math.pi * d / (2 * d + 1))
