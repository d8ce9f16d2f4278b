"""What it costs to wait for the slowest of N ranks, and what backup workers and local steps save of it.

A step is over when the ranks that it needs are done; communication is left out. Every formula has its simulation.
"""

from dataclasses import dataclass
from math import isinf, sqrt

import numpy as np

from dpbook.core import InvalidArgument, check_int
from dpbook.planning.estimates import Estimate, estimate
from dpbook.planning.step_times import Normal, StepTimes, check_step_times


def slowest(times: StepTimes, world: int) -> float:
    """Expected seconds of a step that waits for all ranks: of the largest of ``world`` times."""
    check_step_times(times)
    return times.arrival(check_int("world", world, 1), world)


@dataclass(frozen=True)
class Backed:
    """A step of ``world`` + ``backups`` ranks that goes on with the gradients of the first ``world``.

    ``seconds``: expected, of a step; ``without``: of one that waits for all of ``world`` ranks and has no backups.
    """

    world: int
    backups: int
    seconds: float
    without: float

    @property
    def speedup(self) -> float:
        """Steps in the time of one without backups; both average the examples of ``world`` ranks."""
        return self.without / self.seconds

    @property
    def machines(self) -> float:
        """How many times the machines it takes."""
        return (self.world + self.backups) / self.world

    @property
    def dropped(self) -> float:
        """The share of the examples whose gradients nobody uses."""
        return self.backups / (self.world + self.backups)

    @property
    def worth(self) -> float:
        """Steps for the same machine-seconds, beside those without backups: above 1 the backups pay for themselves."""
        return self.speedup / self.machines


def backup_workers(times: StepTimes, world: int, backups: int) -> Backed:
    """Wait for the first ``world`` of ``world`` + ``backups`` ranks, drop what the others compute, and begin anew.

    After J. Chen, X. Pan, R. Monga, S. Bengio and R. Jozefowicz, "Revisiting Distributed Synchronous SGD" (2016). Of
    exponential times the wait is H(N + b) − H(b), where it was H(N).
    """
    without, everyone = slowest(times, world), world + check_int("backups", backups, 0)
    return Backed(world, backups, times.arrival(world, everyone), without)


def local_steps(times: StepTimes, world: int, steps: int) -> float:
    """Expected seconds per step where ranks wait for one another after every ``steps``-th step alone.

    The largest of N sums takes the place of a sum of largest. A sum of many times is nearly normal, so that the wait
    shrinks as 1/√steps: exact for `Normal`, for others the limit of many steps. Of few steps it is too small where the
    tail is heavy and too large where times have an upper end: `simulate_wait` tells by how much. Raises
    `InvalidArgument` for times without a finite deviation.
    """
    check_step_times(times)
    if isinf(times.deviation):
        raise InvalidArgument("times", times, "of finite deviation: of others no sum becomes normal")
    return slowest(Normal(times.mean, times.deviation / sqrt(check_int("steps", steps, 1))), world)


def simulate_wait(
    times: StepTimes, world: int, *, needed: int | None = None, steps: int = 1, rounds: int = 1000, seed: int = 0
) -> Estimate:
    """Seconds per step by drawing: ``rounds`` times all ranks take ``steps`` each and the first ``needed`` are awaited.

    ``needed`` is ``world`` unless said otherwise. Draws rounds · steps · world times.
    """
    check_step_times(times)
    needed = check_int("world", world, 1) if needed is None else check_int("needed", needed, 1, world)
    check_int("steps", steps, 1)
    rng = np.random.default_rng(check_int("seed", seed, 0))
    ends = (times.draw(rng, (steps, world)).sum(0) for _ in range(check_int("rounds", rounds, 2)))
    return estimate(np.array([np.partition(end, needed - 1)[needed - 1] for end in ends]) / steps)
