"""Steps without some of the ranks: backup workers, whose gradient is not waited for, and a rank that is lost."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from itertools import islice
from typing import Literal, TypeAlias, get_args

import numpy as np

from dpbook import collectives
from dpbook.collectives import Schedule
from dpbook.core import InvalidArgument, check_int, check_one_of
from dpbook.replicas.array import Array
from dpbook.replicas.loop import update
from dpbook.replicas.method import EXACT, Cluster, Method, Step

Among: TypeAlias = Callable[[int], Schedule]
"""The all-reduce of a number of ranks, such as `collectives.ring`."""
Divisor: TypeAlias = Literal["survivors", "world"]
"""What the survivors' sum is divided by: as many as it is the sum of, or, by mistake, as many as there once were."""


@lru_cache(maxsize=1024)
def all_reduce_among(
    world: int, ranks: tuple[int, ...], among: Among = collectives.ring, *, tell: bool = False
) -> Schedule:
    """An all-reduce among some ``ranks`` of a world, who with ``tell`` hand the sum to the others in one more round.

    Each of them tells about as much of it. That whoever holds the sum holds that over ``ranks`` and no other is its
    promise, for `verify` to prove.
    """
    inside = among(len(ranks)) if callable(among) else None
    if not isinstance(inside, Schedule) or inside.world != len(ranks) or not inside.is_all_reduce:
        raise InvalidArgument("among", among, "a function from a number of ranks to their all-reduce, such as ring")
    summed = collectives.embed(inside, world, ranks)
    others = [rank for rank in range(world) if rank not in ranks]
    if not tell or not others:
        return summed
    chunks = np.tile(np.arange(summed.n_chunks), len(others))
    dest = np.repeat(others, summed.n_chunks)
    source = np.array(ranks)[(chunks + np.repeat(np.arange(len(others)), summed.n_chunks)) % len(ranks)]
    telling = collectives.Round(source, dest, chunks, reduce=False)
    everywhere = dict.fromkeys(range(world), frozenset(ranks))
    after = (everywhere,) * summed.n_chunks
    rounds = [*summed.rounds, telling]
    return Schedule(world, summed.n_chunks, rounds, summed.bounds, summed.before, after, f"{summed.name}, told")


@dataclass(frozen=True, repr=False)
class Backup(Method):
    """Of N ranks the first N − ``spare`` gradients of a step count, divided by those who came; nobody waits for more.

    Chen, Pan, Monga, Bengio and Jozefowicz, Revisiting Distributed Synchronous SGD, 2016. Who comes is drawn anew in
    every step, each set of ranks with the same chance. All ranks are told the sum, so that replicas stay equal. With
    equal parts the average is the exact gradient of the examples of those who came; the others' examples are dropped.

    Attributes:
        spare: how many gradients of a step are not waited for, below the world.
        among: the all-reduce of those who came, in place of the run's own.
    """

    spare: int
    _: KW_ONLY
    seed: int = 0
    among: Among = collectives.ring

    def __post_init__(self) -> None:
        check_int("spare", self.spare, 0)
        check_int("seed", self.seed, 0)

    def steps(self, params: Array, cluster: Cluster) -> Iterator[Step]:
        check_int("spare", self.spare, 0, cluster.world - 1)
        rng = np.random.default_rng(self.seed)
        while True:
            came = tuple(sorted(rng.permutation(cluster.world)[: cluster.world - self.spare].tolist()))
            sums = cluster.carry_out(
                all_reduce_among(cluster.world, came, self.among, tell=True), cluster.gradients(params)
            )
            averaged = sums / _share(cluster, came)
            params = update(params, averaged, cluster.optimizers)
            yield Step(params, averaged)


@dataclass(frozen=True, repr=False)
class Lost(Method):
    """The four-phase loop until ``rank`` is lost in mid-step; the survivors end that step, and all later ones, alone.

    The average is then the exact gradient of the survivors' examples. Those of the lost rank are read by nobody, from
    this step on; the attempt that failed is not counted among what is sent. The lost rank's row goes on with the first
    survivor's sum, which nobody sends it: it is what a rank that takes its place would be given, so that the drift is
    the survivors' and losses, those of the whole batch, are at their parameters.

    Attributes:
        step: the one in which it is lost, from 0, as a learning rate counts them.
        divide_by: "survivors", or "world" for the mistake: every later step is then (N − 1) / N as long for SGD.
        among: the all-reduce of the survivors; until the loss the run's own is used.
    """

    rank: int
    step: int
    _: KW_ONLY
    divide_by: Divisor = "survivors"
    among: Among = collectives.ring

    def __post_init__(self) -> None:
        check_int("rank", self.rank, 0)
        check_int("step", self.step, 0)
        check_one_of("divide_by", self.divide_by, get_args(Divisor))

    def steps(self, params: Array, cluster: Cluster) -> Iterator[Step]:
        check_int("world", cluster.world, 2)
        check_int("rank", self.rank, 0, cluster.world - 1)
        for exact in islice(EXACT.steps(params, cluster), self.step):
            params = exact.params
            yield exact
        survivors = tuple(rank for rank in range(cluster.world) if rank != self.rank)
        schedule = all_reduce_among(cluster.world, survivors, self.among)
        while True:
            sums = cluster.carry_out(schedule, cluster.gradients(params))
            sums[self.rank] = sums[survivors[0]]
            averaged = sums / (cluster.world if self.divide_by == "world" else _share(cluster, survivors))
            params = update(params, averaged, cluster.optimizers)
            yield Step(params, averaged)


def _share(cluster: Cluster, ranks: Sequence[int]) -> float:
    """What a sum over ``ranks`` is divided by: their number, or where parts of the batch are unequal, their weights.

    1 if none of them has an example: their sum is 0, and it stays 0.
    """
    return float(cluster.weights[list(ranks)].sum()) or 1.0
