"""Steps without some ranks: backup workers, whose gradients are dropped, and a rank that is lost."""

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from itertools import islice
from typing import Literal, TypeAlias, get_args

import numpy as np

from dpbook import collectives
from dpbook.collectives import Schedule
from dpbook.core import check_int, check_one_of
from dpbook.replicas.four_phases import update
from dpbook.replicas.method import EXACT, Method, RankGroup, Step
from dpbook.replicas.networks import Array

Divisor: TypeAlias = Literal["survivors", "world"]
"""Divisor of the survivors' sum: their number, or, by mistake, the number of all ranks at the start."""


@lru_cache(maxsize=1024)
def all_reduce_among(world: int, ranks: tuple[int, ...], *, broadcast: bool = False) -> Schedule:
    """Return a ring all-reduce over some ``ranks`` of a world.

    With ``broadcast`` these ranks send the sum to the others in one more round, in nearly equal parts. The schedule
    promises that every sum is over ``ranks`` alone, and `verify` proves it.
    """
    summed = collectives.embed(collectives.ring(len(ranks)), world, ranks)
    others = [rank for rank in range(world) if rank not in ranks]
    if not broadcast or not others:
        return summed
    chunks = np.tile(np.arange(summed.n_chunks), len(others))
    dest = np.repeat(others, summed.n_chunks)
    source = np.array(ranks)[(chunks + np.repeat(np.arange(len(others)), summed.n_chunks)) % len(ranks)]
    last_round = collectives.Round(source, dest, chunks, reduce=False)
    everywhere = dict.fromkeys(range(world), frozenset(ranks))
    after = (everywhere,) * summed.n_chunks
    rounds = [*summed.rounds, last_round]
    return Schedule(world, summed.n_chunks, rounds, summed.bounds, summed.before, after, f"{summed.name}, broadcast")


@dataclass(frozen=True, repr=False)
class Backup(Method):
    """Backup workers: a step averages the first N − ``spare`` gradients of N ranks, and waits for no others.

    Chen, Pan, Monga, Bengio and Jozefowicz, Revisiting Distributed Synchronous SGD, 2016. The first ranks are
    drawn anew in every step, each set with the same probability. They add by a ring, whichever all-reduce the run has,
    and all ranks receive the sum, so that replicas stay equal. With equal parts the average is the exact gradient of
    the examples of the first ranks; the others', ``spare`` of them, are dropped.
    """

    spare: int
    _: KW_ONLY
    seed: int = 0

    def __post_init__(self) -> None:
        check_int("spare", self.spare, 0)
        check_int("seed", self.seed, 0)

    def steps(self, params: Array, group: RankGroup) -> Iterator[Step]:
        check_int("spare", self.spare, 0, group.world - 1)
        rng = np.random.default_rng(self.seed)
        while True:
            first = tuple(sorted(rng.permutation(group.world)[: group.world - self.spare].tolist()))
            schedule = all_reduce_among(group.world, first, broadcast=True)
            sums = group.run_schedule(schedule, group.gradients(params))
            averaged = sums / _divisor(group, first)
            params = update(params, averaged, group.optimizers)
            yield Step(params, averaged)


@dataclass(frozen=True, repr=False)
class Lost(Method):
    """The four-phase loop until ``rank`` is lost in a step; the survivors finish that step and all later ones alone.

    The average is then the exact gradient of the survivors' examples. No rank reads the examples of the lost rank from
    this step on. The survivors add by a ring, whichever all-reduce the run has. The failed attempt is not counted in
    the bytes sent. The lost rank's row of parameters continues with the first survivor's sum, without a message, as for
    a rank that replaces it. So the drift is that of the survivors, and losses, which are those of the whole batch, are
    at their parameters. Steps count from 0. ``divide_by`` is "survivors", or "world" for the mistake, which makes every
    later SGD step (N − 1) / N as long.
    """

    rank: int
    step: int
    _: KW_ONLY
    divide_by: Divisor = "survivors"

    def __post_init__(self) -> None:
        check_int("rank", self.rank, 0)
        check_int("step", self.step, 0)
        check_one_of("divide_by", self.divide_by, get_args(Divisor))

    def steps(self, params: Array, group: RankGroup) -> Iterator[Step]:
        check_int("world", group.world, 2)
        check_int("rank", self.rank, 0, group.world - 1)
        for exact in islice(EXACT.steps(params, group), self.step):
            params = exact.params
            yield exact
        survivors = tuple(rank for rank in range(group.world) if rank != self.rank)
        schedule = all_reduce_among(group.world, survivors)
        while True:
            sums = group.run_schedule(schedule, group.gradients(params))
            sums[self.rank] = sums[survivors[0]]
            averaged = sums / (group.world if self.divide_by == "world" else _divisor(group, survivors))
            params = update(params, averaged, group.optimizers)
            yield Step(params, averaged)


def _divisor(group: RankGroup, ranks: Sequence[int]) -> float:
    """Return the divisor of a sum over ``ranks``: their number, or their weights if parts of the batch are unequal."""
    return float(group.weights[list(ranks)].sum()) or 1.0  # 1 if none has an example: their sum stays 0
