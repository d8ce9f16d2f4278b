"""Jobs of local steps: how long a goal takes with each period, and what was measured of it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count, product

import numpy as np

PERIODS, SEEDS, NOISE = (1, 4, 16, 64), 3, 0.03
MOST = 2000
TELLING = 1.04
"""How far above the best of all periods the best measured one of a job that is drawn has to be."""


@dataclass(frozen=True)
class Job:
    """The steps to the goal are ``start`` + ``slope`` · period; a meeting is a ring."""

    start: float
    slope: float
    ranks: int
    compute: float
    alpha: float
    beta: float
    nbytes: int

    @property
    def meeting(self) -> float:
        return 2 * (self.ranks - 1) * (self.alpha + self.beta * self.nbytes / self.ranks)

    def seconds(self, period: float) -> float:
        """To the goal."""
        return (self.start + self.slope * period) * (self.compute + self.meeting / period)

    @property
    def best(self) -> float:
        return min(map(self.seconds, range(1, MOST + 1)))

    @property
    def best_measured(self) -> float:
        return min(map(self.seconds, PERIODS))

    @classmethod
    def draw(cls, rng: np.random.Generator, aim: float, ranks: int, latency: float) -> "Job":
        """``aim``: the best period in units of start / slope; ``latency``: its share of a meeting."""
        ratio = float(rng.uniform(20, 120))
        compute, nbytes = float(f"{rng.uniform(0.02, 0.5):.3g}"), int(rng.integers(1, 1000)) * 10**6
        slope = float(rng.uniform(10, 50))
        meeting = compute * aim**2 * ratio
        alpha = latency * meeting / (2 * (ranks - 1))
        beta = (1 - latency) * meeting / (2 * (ranks - 1) / ranks * nbytes)
        return cls(slope * ratio, slope, ranks, compute, float(f"{alpha:.3g}"), float(f"{beta:.3g}"), nbytes)

    def measure(self, rng: np.random.Generator) -> list[tuple[int, int]]:
        """(period, steps), some per cent off."""
        periods = np.repeat(PERIODS, SEEDS)
        steps = (self.start + self.slope * periods) * (1 + NOISE * rng.standard_normal(len(periods)))
        return [(int(period), round(count)) for period, count in zip(periods, steps, strict=True)]


def drawn_jobs(rng: np.random.Generator) -> Iterator[Job]:
    """Some with the best period between the measured ones, some beyond, and one on a link that is nearly free."""
    yield replace(Job.draw(rng, 0.5, 8, 0.5), alpha=1e-9, beta=1e-15)
    for ranks, latency in product((2, 4, 8, 64), (0.9, 0.5, 0.1)):
        drawn = (Job.draw(rng, float(rng.uniform(0.35, 2.5)), ranks, latency) for _ in count())
        yield next(job for job in drawn if job.best_measured >= TELLING * job.best)
