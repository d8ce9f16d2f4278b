"""A fair race: every method at a rate of its own, which images that decide nothing else have chosen."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from dpbook.collectives import Link
from dpbook.core import InvalidArgument, check_int
from dpbook.replicas import Array, Method, Model, Momentum, RankGroup, Step, train

Data = tuple[Array, Array]
LOOK = 8
"""Steps from one look at a run to the next."""


@dataclass(frozen=True)
class Entry:
    """What runs: a method and the learning rates to try, rising.

    ``seconds``: how long a step computes, with the wait for other ranks. ``momentum``: the optimizer's, 0 for methods
    that have one of their own. ``late``: whether messages travel while the next step computes.
    """

    method: Method
    rates: Sequence[float]
    seconds: float
    momentum: float = 0.5
    late: bool = False


@dataclass(frozen=True)
class Raced:
    """The runs of an entry; a look is taken after every `LOOK` steps.

    Attributes:
        validation: (rates, seeds), the loss on the images that choose the rate, after the last step.
        test: (looks, seeds), the loss on the test images at the best rate.
        sent: (steps,), bytes of the rank that has sent most in a step, at the best rate with the first seed.
        rounds: (steps,), rounds of messages.
    """

    entry: Entry
    validation: Array = field(repr=False)
    test: Array = field(repr=False)
    sent: Array = field(repr=False)
    rounds: Array = field(repr=False)

    @property
    def best(self) -> int:
        """The index of the rate with the smallest mean loss on the validation images."""
        return int(self.validation.mean(axis=1).argmin())

    @property
    def inside(self) -> bool:
        """Whether a worse rate lies on either side of the best; else the best may not have been tried."""
        return 0 < self.best < len(self.entry.rates) - 1

    @property
    def losses(self) -> Array:
        """The mean test loss at each look, (looks,)."""
        means: Array = self.test.mean(axis=1)
        return means

    @property
    def bytes(self) -> Array:
        """What has been sent until each look, (looks,)."""
        total: Array = self.sent.cumsum()[LOOK - 1 :: LOOK]
        return total

    def clock(self, link: Link, scale: float = 1.0) -> Array:
        """Seconds until each look, (looks,): a step computes, then its rounds follow one another over ``link``.

        Every byte counts ``scale`` times: a model of so many times the parameters.
        """
        messages = self.rounds * link.latency + scale * self.sent / link.bandwidth
        steps = np.maximum(messages, self.entry.seconds) if self.entry.late else messages + self.entry.seconds
        total: Array = steps.cumsum()[LOOK - 1 :: LOOK]
        return total

    def first(self, spent: Array, goal: float) -> float:
        """What had been ``spent`` at the first look with a test loss of at most ``goal``; infinite without one."""
        there = np.flatnonzero(self.losses <= goal)
        return float(spent[there[0]]) if len(there) else float("inf")

    def within(self, spent: Array, budget: float) -> float:
        """The test loss at the last look for which no more than ``budget`` had been ``spent``; NaN before the first."""
        looks = int((spent <= budget * (1 + 1e-12)).sum())
        return float(self.losses[looks - 1]) if looks else float("nan")


def race(
    model: Model,
    training: Data,
    validation: Data,
    test: Data,
    entries: Mapping[str, Entry],
    *,
    world: int,
    steps: int,
    seeds: int,
    global_batch: int,
) -> dict[str, Raced]:
    """Train every entry with each of its rates and seeds; a seed is that of the parameters and of the order of reading.

    Looks are at rank 0's parameters. Raises `InvalidArgument` unless ``steps`` is a multiple of `LOOK`.
    """
    if check_int("steps", steps, 1) % LOOK:
        raise InvalidArgument("steps", steps, f"a multiple of {LOOK}")

    def run(entry: Entry, lr: float, seed: int) -> tuple[float, list[float], Array, Array]:
        seen: list[Array] = []
        done = train(
            model, training, world, method=_Watched(entry.method, seen.append), steps=steps, lr=lr,
            optimizer=partial(Momentum, momentum=entry.momentum), global_batch=global_batch, seed=seed, meters=(),
        )  # fmt: skip
        curve = [model.loss(params, *test) for params in seen]
        return model.loss(seen[-1], *validation), curve, done.sent.max(axis=1), done.rounds

    found = {}
    for name, entry in entries.items():
        runs = [[run(entry, lr, seed) for seed in range(seeds)] for lr in entry.rates]
        chosen = np.array([[each[0] for each in same] for same in runs])
        best = runs[int(chosen.mean(axis=1).argmin())]
        found[name] = Raced(entry, chosen, np.array([each[1] for each in best]).T, best[0][2], best[0][3])
    return found


@dataclass(frozen=True, repr=False)
class _Watched(Method):
    """A method that shows rank 0's parameters after every `LOOK` steps."""

    method: Method
    look: Callable[[Array], None]

    def steps(self, params: Array, group: RankGroup) -> Iterator[Step]:
        for number, step in enumerate(self.method.steps(params, group), start=1):
            if number % LOOK == 0:
                self.look(step.params[0])
            yield step
