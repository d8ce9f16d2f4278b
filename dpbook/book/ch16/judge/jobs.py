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
        ratio, slope = float(rng.uniform(20, 120)), float(rng.uniform(10, 50))
        alpha, bandwidth = _short(rng.uniform(0.02, 0.1)), 10 ** float(rng.uniform(7, 9))
        meeting = 2 * (ranks - 1) * alpha / latency
        nbytes = 256 * round((1 - latency) / latency * alpha * ranks * bandwidth / 256)
        return cls(
            slope * ratio, slope, ranks, _short(meeting / (aim**2 * ratio)), alpha, _short(1 / bandwidth), nbytes
        )

    def measure(self, rng: np.random.Generator) -> list[tuple[int, int]]:
        """(period, steps), some per cent off."""
        periods = np.repeat(PERIODS, SEEDS)
        steps = (self.start + self.slope * periods) * (1 + NOISE * rng.standard_normal(len(periods)))
        return [(int(period), round(count)) for period, count in zip(periods, steps, strict=True)]


def _short(number: float) -> float:
    """In three digits, to be read."""
    return float(f"{number:.3g}")


def drawn_jobs(rng: np.random.Generator) -> Iterator[Job]:
    """Some with the best period between the measured ones, some beyond, and one inside a machine, where it is 1."""
    yield replace(Job.draw(rng, 0.5, 8, 0.5), compute=1.0, alpha=2e-6, beta=2.5e-12)
    for ranks, latency in product((2, 4, 8, 64), (0.9, 0.5, 0.1)):
        drawn = (Job.draw(rng, float(rng.uniform(0.35, 2.5)), ranks, latency) for _ in count())
        yield next(job for job in drawn if job.best_measured >= TELLING * job.best)
