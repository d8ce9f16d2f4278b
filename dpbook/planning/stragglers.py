"""Stragglers: the cost of waiting for the slowest of N ranks, and the savings of backup workers and local steps.

The step time of a rank is a random variable, and ranks and steps are independent. A step is over when the ranks that it
needs have finished; communication is left out. Every formula has its simulation. Order statistics follow B. C. Arnold,
N. Balakrishnan and H. N. Nagaraja, "A First Course in Order Statistics" (1992).
"""

from dataclasses import dataclass
from math import erfc, expm1, inf, isinf, lgamma, log, log1p, sqrt
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpbook.core import InvalidArgument, check_float, check_int

Array = NDArray[np.float64]


class StepTimes(Protocol):
    """Distribution of the seconds of a step, drawn independently for each rank and step."""

    @property
    def mean(self) -> float:
        """Expected duration of a step, in seconds."""

    @property
    def deviation(self) -> float:
        """Standard deviation in seconds; infinite if the tail is too heavy for one."""

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Return independent times of this shape, in seconds."""

    def arrival(self, needed: int, world: int) -> float:
        """Return the expected seconds until ``needed`` of ``world`` ranks have finished, 1 ≤ needed ≤ world."""


@dataclass(frozen=True)
class Uniform:
    """Times between ``low`` and ``high`` seconds with equal probability."""

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
        """Return the expected arrival: N ranks cut the range into N + 1 parts of equal expected length."""
        return self.low + (self.high - self.low) * needed / (world + 1)


@dataclass(frozen=True)
class Exponential:
    """Times of at least ``shortest``, plus an exponential time of mean ``beyond``, in seconds.

    The remaining time does not depend on the time that has passed.
    """

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
        """Return the expected arrival, ``shortest`` + (H(N) − H(N − needed)) · ``beyond``.

        The first of j ranks that still run needs a j-th of ``beyond``; the sum gives harmonic numbers H.
        """
        return self.shortest + self.beyond * float((1 / np.arange(world - needed + 1, world + 1)).sum())


@dataclass(frozen=True)
class Normal:
    """Normal times of ``mean`` and a much smaller standard ``deviation``; negative times would have no meaning."""

    mean: float
    deviation: float

    def __post_init__(self) -> None:
        check_float("mean", self.mean, above=0)
        check_float("deviation", self.deviation, above=0)

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return rng.normal(self.mean, self.deviation, shape)

    def arrival(self, needed: int, world: int) -> float:
        """Return the expected arrival, by integrating x over the density of the k-th of N.

        The last of many ranks arrives about √(2 ln N) deviations after the mean.
        """
        late = _BELOW[::-1]  # 1 − _BELOW, without losing the small ones
        logs = (needed - 1) * np.log(_BELOW) + (world - needed) * np.log(late) - _GRID**2 / 2
        density = np.exp(logs - logs.max())
        return self.mean + self.deviation * float((_GRID * density).sum() / density.sum())


_GRID = np.linspace(-12, 12, 4801)
"""Points of the integral, in deviations. The density of an order statistic is smooth and vanishes at both ends, so that
a sum over equal steps converges faster than any power of the step. The grid is wide enough for 100,000 ranks. For a
million ranks of which many are not needed, the time is right to a thousandth of a deviation."""
_BELOW = np.array([erfc(-x / sqrt(2)) / 2 for x in _GRID])
"""Probability of a time below each point."""


@dataclass(frozen=True)
class Pareto:
    """Times with a heavy tail: t seconds or more with probability (shortest/t)^shape, where ``shape`` > 1."""

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
        """Return the expected arrival, a quotient of gamma functions; that of the last rank grows as N^(1/shape)."""
        late, part = world - needed + 1, 1 / self.shape
        return self.shortest * float(
            np.exp(lgamma(world + 1) - lgamma(world + 1 - part) + lgamma(late - part) - lgamma(late))
        )


@dataclass(frozen=True)
class Pauses:
    """Times of ``seconds``, and with ``probability`` a ``pause`` in addition: garbage collection, a slow read."""

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
        """Return the expected arrival: the pause counts if more than N − needed ranks have it.

        If all N are needed, its probability is 1 − (1 − p)^N.
        """
        p, spare = self.probability, world - needed
        if not spare:
            return self.seconds - self.pause * expm1(world * log1p(-p))
        ways = lgamma(world + 1) - np.array([lgamma(j + 1) + lgamma(world - j + 1) for j in range(spare + 1)])
        chance = ways + np.arange(spare + 1) * log(p) + (world - np.arange(spare + 1)) * log1p(-p)
        return self.seconds + self.pause * max(0.0, 1 - float(np.exp(chance).sum()))


def check_step_times(times: object) -> None:
    """Raise `InvalidArgument` unless ``times`` is one of the distributions above."""
    if not isinstance(times, Uniform | Exponential | Normal | Pareto | Pauses):
        raise InvalidArgument("times", times, "Uniform, Exponential, Normal, Pareto or Pauses")


@dataclass(frozen=True)
class Estimate:
    """Mean of independent draws and its standard ``error``, in the same unit."""

    mean: float
    error: float

    def off(self, expected: float) -> float:
        """Return the distance between the mean and ``expected`` in standard errors; more than 4 is no accident."""
        return abs(self.mean - expected) / self.error if self.error else float("inf") * (self.mean != expected)

    def __repr__(self) -> str:
        return f"{self.mean:.4g} ± {self.error:.1g}"


def slowest(times: StepTimes, world: int) -> float:
    """Return the expected seconds of a step that waits for all ranks: the largest of ``world`` times."""
    check_step_times(times)
    return times.arrival(check_int("world", world, 1), world)


@dataclass(frozen=True)
class BackupWorkers:
    """A step of ``world`` + ``backups`` ranks that continues with the gradients of the first ``world``.

    It takes ``seconds`` on average, and ``seconds_without`` without backups, when it waits for all ``world`` ranks.
    """

    world: int
    backups: int
    seconds: float
    seconds_without: float

    @property
    def speedup(self) -> float:
        """Number of steps in the time of one without backups; both average the examples of ``world`` ranks."""
        return self.seconds_without / self.seconds

    @property
    def machines(self) -> float:
        """Number of machines, relative to a step without backups."""
        return (self.world + self.backups) / self.world

    @property
    def worth(self) -> float:
        """Speedup per machine: above 1 the backups pay for themselves."""
        return self.speedup / self.machines


def backup_workers(times: StepTimes, world: int, backups: int) -> BackupWorkers:
    """Predict a step that waits for the first ``world`` of ``world`` + ``backups`` ranks and drops the other gradients.

    After J. Chen, X. Pan, R. Monga, S. Bengio and R. Jozefowicz, "Revisiting Distributed Synchronous SGD" (2016). For
    exponential times the wait is H(N + b) − H(b) instead of H(N).
    """
    all_ranks = world + check_int("backups", backups, 0)
    seconds_without = slowest(times, world)
    return BackupWorkers(world, backups, times.arrival(world, all_ranks), seconds_without)


def local_steps(times: StepTimes, world: int, steps: int) -> float:
    """Return the expected seconds per step if ranks wait for one another only after every ``steps``-th step.

    The largest of N sums replaces a sum of largest times. A sum of many times is nearly normal, so the wait shrinks as
    1/√steps. That is exact for `Normal`, and the limit of many steps for other times. For few steps it is too small if
    the tail is heavy, and too large if times have an upper end; `simulate_wait` shows the error. Raises
    `InvalidArgument` for times without a finite deviation.
    """
    check_step_times(times)
    if isinf(times.deviation):
        raise InvalidArgument("times", times, "times with a finite standard deviation")
    return slowest(Normal(times.mean, times.deviation / sqrt(check_int("steps", steps, 1))), world)


def simulate_wait(
    times: StepTimes, world: int, *, needed: int | None = None, steps: int = 1, rounds: int = 1000, seed: int = 0
) -> Estimate:
    """Estimate the seconds per step by drawing times.

    In each of ``rounds`` rounds all ranks take ``steps`` steps, and the first ``needed`` ranks (default: all) are
    awaited. Draws rounds · steps · world times.
    """
    check_step_times(times)
    needed = check_int("world", world, 1) if needed is None else check_int("needed", needed, 1, world)
    check_int("steps", steps, 1)
    rng = np.random.default_rng(check_int("seed", seed, 0))
    ends = (times.draw(rng, (steps, world)).sum(0) for _ in range(check_int("rounds", rounds, 2)))
    draws = np.array([np.partition(end, needed - 1)[needed - 1] for end in ends]) / steps
    return Estimate(float(draws.mean()), float(draws.std(ddof=1) / np.sqrt(draws.size)))
