"""How long a rank computes for a step, as a random variable, and when the k-th of N such ranks is expected to be done.

Ranks and steps are independent of each other. Order statistics after B. C. Arnold, N. Balakrishnan and H. N. Nagaraja,
"A First Course in Order Statistics" (1992).
"""

from dataclasses import dataclass
from math import erfc, expm1, inf, lgamma, log, log1p, sqrt
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpbook.core import InvalidArgument, check_float

Array = NDArray[np.float64]


class StepTimes(Protocol):
    """Seconds of a rank's step, drawn anew for each rank and step."""

    @property
    def mean(self) -> float:
        """Expected seconds."""

    @property
    def deviation(self) -> float:
        """Standard deviation in seconds; infinite where the tail is too heavy for one."""

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Independent times of this shape."""

    def arrival(self, needed: int, world: int) -> float:
        """Expected seconds until ``needed`` of ``world`` ranks are done, 1 ≤ needed ≤ world."""


@dataclass(frozen=True)
class Uniform:
    """Between ``low`` and ``high``, each as likely."""

    low: float
    high: float

    def __post_init__(self) -> None:
        check_float("high", self.high, above=check_float("low", self.low, minimum=0))

    @property
    def mean(self) -> float:
        return (self.low + self.high) / 2

    @property
    def deviation(self) -> float:
        return (self.high - self.low) / sqrt(12)

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return rng.uniform(self.low, self.high, shape)

    def arrival(self, needed: int, world: int) -> float:
        """N ranks cut the range into N + 1 parts that are expected to be equal."""
        return self.low + (self.high - self.low) * needed / (world + 1)


@dataclass(frozen=True)
class Exponential:
    """At least ``shortest``, and beyond it exponential with mean ``beyond``: how much is left does not depend on how
    much has passed."""

    shortest: float
    beyond: float

    def __post_init__(self) -> None:
        check_float("shortest", self.shortest, minimum=0)
        check_float("beyond", self.beyond, above=0)

    @property
    def mean(self) -> float:
        return self.shortest + self.beyond

    @property
    def deviation(self) -> float:
        return self.beyond

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return self.shortest + rng.exponential(self.beyond, shape)

    def arrival(self, needed: int, world: int) -> float:
        """The next of j ranks under way takes a j-th of ``beyond``: harmonic numbers, H(N) − H(N − needed) of it."""
        return self.shortest + self.beyond * float((1 / np.arange(world - needed + 1, world + 1)).sum())


@dataclass(frozen=True)
class Normal:
    """Around ``mean`` with a standard ``deviation``, which is small beside it: a negative time has no meaning."""

    mean: float
    deviation: float

    def __post_init__(self) -> None:
        check_float("mean", self.mean, above=0)
        check_float("deviation", self.deviation, above=0)

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return rng.normal(self.mean, self.deviation, shape)

    def arrival(self, needed: int, world: int) -> float:
        """The integral of x under the density of the k-th of N; of the last, about √(2 ln N) deviations for large N."""
        late = _BELOW[::-1]  # 1 − _BELOW, without losing the small ones
        logs = (needed - 1) * np.log(_BELOW) + (world - needed) * np.log(late) - _GRID**2 / 2
        density = np.exp(logs - logs.max())
        return self.mean + self.deviation * float((_GRID * density).sum() / density.sum())


_GRID = np.linspace(-12, 12, 4801)
"""Deviations. The density of an order statistic is smooth and vanishes at both ends, where the plain sum of equal steps
converges faster than any power of the step. It is wide enough up to 100,000 ranks; of a million of which many are not
waited for, the time is right to a thousandth of a deviation."""
_BELOW = np.array([erfc(-x / sqrt(2)) / 2 for x in _GRID])
"""The probability to lie below each."""


@dataclass(frozen=True)
class Pareto:
    """At least ``shortest``, and t seconds or more with probability (shortest/t)^shape: a heavy tail, ``shape`` > 1."""

    shortest: float
    shape: float

    def __post_init__(self) -> None:
        check_float("shortest", self.shortest, above=0)
        check_float("shape", self.shape, above=1)

    @property
    def mean(self) -> float:
        return self.shortest * self.shape / (self.shape - 1)

    @property
    def deviation(self) -> float:
        return self.mean / sqrt(self.shape * (self.shape - 2)) if self.shape > 2 else inf

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return self.shortest * (1 + rng.pareto(self.shape, shape))

    def arrival(self, needed: int, world: int) -> float:
        """A quotient of four gamma functions; of the last rank, it grows as N^(1/shape)."""
        late, part = world - needed + 1, 1 / self.shape
        return self.shortest * float(
            np.exp(lgamma(world + 1) - lgamma(world + 1 - part) + lgamma(late - part) - lgamma(late))
        )


@dataclass(frozen=True)
class Pauses:
    """``seconds``, and with ``probability`` a ``pause`` of so many more: a collection of garbage, a slow read."""

    seconds: float
    pause: float
    probability: float

    def __post_init__(self) -> None:
        check_float("seconds", self.seconds, minimum=0)
        check_float("pause", self.pause, above=0)
        check_float("probability", self.probability, above=0, below=1)

    @property
    def mean(self) -> float:
        return self.seconds + self.pause * self.probability

    @property
    def deviation(self) -> float:
        return self.pause * sqrt(self.probability * (1 - self.probability))

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return np.where(rng.random(shape) < self.probability, self.seconds + self.pause, self.seconds)

    def arrival(self, needed: int, world: int) -> float:
        """The pause counts if more ranks have it than need not come: of all N with probability 1 − (1 − p)^N."""
        p, spare = self.probability, world - needed
        if not spare:
            return self.seconds - self.pause * expm1(world * log1p(-p))
        ways = lgamma(world + 1) - np.array([lgamma(j + 1) + lgamma(world - j + 1) for j in range(spare + 1)])
        chance = ways + np.arange(spare + 1) * log(p) + (world - np.arange(spare + 1)) * log1p(-p)
        return self.seconds + self.pause * max(0.0, 1 - float(np.exp(chance).sum()))


def check_step_times(times: object) -> None:
    """Raise `InvalidArgument` unless ``times`` is one of this module's."""
    if not isinstance(times, Uniform | Exponential | Normal | Pareto | Pauses):
        raise InvalidArgument("times", times, "Uniform, Exponential, Normal, Pareto or Pauses")
