"""Cost of failures in a long run: the rate of interruptions, the best checkpoint interval, and the goodput.

Failures are independent, equally frequent on each GPU, and their rate does not change. A job stops as soon as one of
its GPUs does. Saving a checkpoint stops the training; saving in the background costs less.
"""

from dataclasses import dataclass
from math import exp, expm1, sqrt
from typing import NamedTuple

import numpy as np

from dpbook.core import check_float, check_int
from dpbook.planning.stragglers import Estimate

DAY = 86_400.0
"""Seconds of a day."""


@dataclass(frozen=True)
class Interruptions:
    """Published ``count`` of interruptions of one job on ``gpus`` GPUs in ``days`` days, with its ``source``."""

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
        """Mean seconds between failures of one GPU, including its share of the machine."""
        return self.days * DAY * self.gpus / self.count

    def between(self, gpus: int) -> float:
        """Return the mean seconds between failures of a job on ``gpus`` GPUs."""
        return self.per_gpu / check_int("gpus", gpus, 1)

    def per_day(self, gpus: int) -> float:
        """Return the expected failures per day of a job on ``gpus`` GPUs."""
        return DAY / self.between(gpus)


LLAMA_3 = Interruptions(
    count=419,
    days=54,
    gpus=16_384,
    source="Llama Team, AI @ Meta, The Llama 3 Herd of Models (2024), section 3.3.4: 466, of which 47 were planned",
)
"""The unexpected interruptions of a snapshot of the training of Llama 3 405B on up to 16,384 H100."""


class Shares(NamedTuple):
    """Shares of the time for new steps (goodput), saving, repeated steps and restarting; their sum is 1."""

    goodput: float
    saving: float
    repeated: float
    restarting: float


@dataclass(frozen=True)
class Recovery:
    """A job with failures, which resumes from its last checkpoint.

    A failure may come while the job trains, saves or restarts; steps after the last checkpoint are lost.

    Attributes:
        between: mean seconds between failures.
        checkpoint: seconds to save a checkpoint.
        restart: seconds to restart.
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
        """Young's interval in seconds, √(2 · checkpoint · between): the best if checkpoint is far below between.

        J. W. Young, "A first order approximation to the optimum checkpoint interval" (1974).
        """
        return sqrt(2 * self.checkpoint * self.between)

    @property
    def daly(self) -> float:
        """Daly's interval in seconds, to a higher order: good even if failures are nearly as frequent as checkpoints.

        J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps" (2006).
        """
        if self.checkpoint >= 2 * self.between:
            return self.between
        part = self.checkpoint / (2 * self.between)
        return self.young * (1 + sqrt(part) / 3 + part / 9) - self.checkpoint

    def shares(self, interval: float) -> Shares:
        """Return the shares of the time with ``interval`` seconds of training between checkpoints.

        Daly's (2006) complete model: between two failures E[⌊(life − restart)/(interval + checkpoint)⌋] intervals are
        saved, which for an exponential life of mean M is e^(−restart/M) / (e^((interval + checkpoint)/M) − 1).
        """
        interval, mean = check_float("interval", interval, above=0), self.between
        saved = exp(-self.restart / mean - (interval + self.checkpoint) / mean)
        saved /= -expm1(-(interval + self.checkpoint) / mean)
        goodput, saving = saved * interval / mean, saved * self.checkpoint / mean
        restarting = 1 - exp(-self.restart / mean)
        return Shares(goodput, saving, 1 - goodput - saving - restarting, restarting)

    def simulate(self, interval: float, failures: int = 100_000, seed: int = 0) -> Estimate:
        """Estimate the goodput of a run with this many ``failures``: after each it restarts, then trains and saves."""
        cycle = check_float("interval", interval, above=0) + self.checkpoint
        lives = np.random.default_rng(check_int("seed", seed, 0)).exponential(
            self.between, check_int("failures", failures, 2)
        )
        useful = interval * np.floor(np.maximum(lives - self.restart, 0) / cycle)
        goodput = float(useful.sum() / lives.sum())
        residual = useful - goodput * lives  # the error of a quotient of two means, to first order
        return Estimate(goodput, float(residual.std() / lives.mean() / np.sqrt(failures)))
