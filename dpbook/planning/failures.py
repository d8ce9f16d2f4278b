"""What failures cost a long run: how often one interrupts it, how often to save, and what is left of the time.

Failures come independently of one another, as many on each GPU, at a rate that does not change; a job stops as soon as
one of its GPUs does. Saving stops the training: what is saved in the background costs less.
"""

from dataclasses import dataclass
from math import exp, expm1, sqrt
from typing import NamedTuple

import numpy as np

from dpbook.core import check_float, check_int
from dpbook.planning.estimates import Estimate

DAY = 86_400.0
"""Seconds."""


@dataclass(frozen=True)
class Interruptions:
    """So many interruptions in so many days of one job on so many GPUs, and where that is published."""

    count: int
    days: float
    gpus: int
    source: str

    def __post_init__(self) -> None:
        check_int("count", self.count, 1)
        check_float("days", self.days, above=0)
        check_int("gpus", self.gpus, 1)

    @property
    def per_gpu(self) -> float:
        """Mean seconds between the failures of one GPU, and of what belongs to it."""
        return self.days * DAY * self.gpus / self.count

    def between(self, gpus: int) -> float:
        """Mean seconds between the failures of a job on ``gpus`` GPUs."""
        return self.per_gpu / check_int("gpus", gpus, 1)

    def per_day(self, gpus: int) -> float:
        """Expected failures a day of a job on ``gpus`` GPUs."""
        return DAY / self.between(gpus)


LLAMA_3 = Interruptions(
    count=419,
    days=54,
    gpus=16_384,
    source="Llama Team, AI @ Meta, The Llama 3 Herd of Models (2024), section 3.3.4: 466, of which 47 were planned",
)
"""The unexpected interruptions of a snapshot of the training of Llama 3 405B on up to 16,384 H100."""


class Shares(NamedTuple):
    """Where the time goes, as shares of it: new steps, saving, steps done once more, and restarting. Their sum is 1."""

    goodput: float
    saving: float
    repeated: float
    restarting: float


@dataclass(frozen=True)
class Recovery:
    """A job that fails every ``between`` seconds in the mean, saves in ``checkpoint`` and restarts in ``restart``.

    All in seconds. A failure may come while it trains, saves or restarts; what was not saved is lost.
    """

    between: float
    checkpoint: float
    restart: float

    def __post_init__(self) -> None:
        check_float("between", self.between, above=0)
        check_float("checkpoint", self.checkpoint, above=0)
        check_float("restart", self.restart, minimum=0)

    @property
    def young(self) -> float:
        """Seconds to train between checkpoints, √(2 · checkpoint · between): the best where both are far apart.

        J. W. Young, "A first order approximation to the optimum checkpoint interval" (1974).
        """
        return sqrt(2 * self.checkpoint * self.between)

    @property
    def daly(self) -> float:
        """The same to a higher order, good also where failures come nearly as often as checkpoints.

        J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps" (2006).
        """
        if self.checkpoint >= 2 * self.between:
            return self.between
        part = self.checkpoint / (2 * self.between)
        return self.young * (1 + sqrt(part) / 3 + part / 9) - self.checkpoint

    def shares(self, interval: float) -> Shares:
        """Where the time goes with ``interval`` seconds of training between checkpoints.

        Daly's (2006) complete model: of the time between two failures, E[⌊(life − restart)/(interval + checkpoint)⌋]
        intervals are saved, which for an exponential life is e^(−restart/M) / (e^((interval + checkpoint)/M) − 1).
        """
        interval, mean = check_float("interval", interval, above=0), self.between
        saved = exp(-self.restart / mean - (interval + self.checkpoint) / mean)
        saved /= -expm1(-(interval + self.checkpoint) / mean)
        goodput, saving = saved * interval / mean, saved * self.checkpoint / mean
        restarting = 1 - exp(-self.restart / mean)
        return Shares(goodput, saving, 1 - goodput - saving - restarting, restarting)

    def simulate(self, interval: float, failures: int = 100_000, seed: int = 0) -> Estimate:
        """The goodput of a run through so many ``failures``, from one to the next: restart, then train and save."""
        cycle = check_float("interval", interval, above=0) + self.checkpoint
        lives = np.random.default_rng(check_int("seed", seed, 0)).exponential(
            self.between, check_int("failures", failures, 2)
        )
        useful = interval * np.floor(np.maximum(lives - self.restart, 0) / cycle)
        goodput = float(useful.sum() / lives.sum())
        off = useful - goodput * lives  # a quotient of two means, to first order
        return Estimate(goodput, float(off.std() / lives.mean() / np.sqrt(failures)))
