"""Delayed updates: averages after local steps (local SGD, DiLoCo), asynchronous SGD, and averages that are late."""

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from itertools import count, islice, pairwise
from typing import NamedTuple

import numpy as np

from dpbook import collectives
from dpbook.collectives import chunk_bounds
from dpbook.core import InvalidArgument, check_float, check_int, plural
from dpbook.replicas.four_phases import update
from dpbook.replicas.method import Method, RankGroup, Step
from dpbook.replicas.networks import Array


@dataclass(frozen=True, repr=False)
class LocalSGD(Method):
    """Local SGD: every replica steps from its own gradient, and averages its parameters after every ``period`` steps.

    McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017 (there called
    federated averaging); Stich, Local SGD Converges Fast and Communicates Little, 2019.

    A period of 1 gives the exact loop's parameters, within rounding, for optimizers that are linear in the gradients:
    SGD and momentum, not Adam. The state of an optimizer stays on its rank. A rank with a larger part of the batch
    takes longer steps, by its weight, so that a period of 1 is exact then too. Between two averages the replicas
    differ; after a whole number of periods they are equal.
    """

    period: int

    def __post_init__(self) -> None:
        check_int("period", self.period, 1)

    def steps(self, params: Array, group: RankGroup) -> Iterator[Step]:
        for step in count(1):
            params = update(params, group.gradients(params), group.optimizers)
            if step % self.period == 0:
                params = group.average(params)
            yield Step(params)


@dataclass(frozen=True, repr=False)
class DiLoCo(Method):
    """DiLoCo: replicas step alone with the run's optimizer, and take one outer step together every ``period`` steps.

    The outer gradient Δ is the mean over the ranks of (outer parameters − local parameters). The outer step is
    Nesterov's, as in torch's ``SGD(nesterov=True)``, with v = 0 at the start:

        v ← outer_momentum · v + Δ;   outer ← outer − outer_lr · (Δ + outer_momentum · v);   local ← outer

    Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models, 2023, who use 0.7 and 0.9. With
    outer_lr 1 and outer_momentum 0 this is local SGD. The state of the inner optimizers stays on their ranks.

    Streamed (Douillard et al., Streaming DiLoCo with Overlapping Communication, 2025): the parameters are cut evenly
    into ``fragments``, whose outer steps are spread evenly over the period: fragment p of F takes its step when
    (p + 1) · period // F steps of a period are over. Such a step sends an F-th of the bytes. In the paper a fragment
    is a group of layers, its step arrives some local steps later and mixes with them, and outer gradients have 4 bits.
    There are at most ``period`` fragments.
    """

    period: int
    outer_lr: float = 0.7
    outer_momentum: float = 0.9
    _: KW_ONLY
    fragments: int = 1

    def __post_init__(self) -> None:
        check_int("period", self.period, 1)
        check_float("outer_lr", self.outer_lr, above=0)
        check_float("outer_momentum", self.outer_momentum, minimum=0, below=1)
        check_int("fragments", self.fragments, 1, self.period)

    def steps(self, params: Array, group: RankGroup) -> Iterator[Step]:
        cuts = [slice(*ends) for ends in pairwise(chunk_bounds(params.shape[1], self.fragments))]
        ends = [(index + 1) * self.period // self.fragments for index in range(self.fragments)]
        outer, velocity = params.copy(), np.zeros_like(params)
        for step in count(1):
            params = update(params, group.gradients(params), group.optimizers)
            for cut, end in zip(cuts, ends, strict=True):
                if (step - end) % self.period == 0:
                    moved = group.average(outer[:, cut] - params[:, cut])
                    velocity[:, cut] = self.outer_momentum * velocity[:, cut] + moved
                    outer[:, cut] -= self.outer_lr * (moved + self.outer_momentum * velocity[:, cut])
                    params[:, cut] = outer[:, cut]
            yield Step(params)


class AsyncUpdate(NamedTuple):
    """An update from the gradient of one ``rank``.

    ``staleness`` counts the other updates since it took the parameters of its gradient. ``time`` is in the unit of the
    gradients' times; the first ranks begin at 0, and messages take no time. ``next_rank`` takes the parameters after
    this update and begins its next gradient.
    """

    rank: int
    staleness: int
    time: float
    next_rank: int


def updates(
    world: int, bound: int, *, times: Sequence[float] | None = None, jitter: float = 0.0, seed: int = 0
) -> Iterator[AsyncUpdate]:
    """Yield the updates of ``world`` ranks without end; no gradient is more than ``bound`` updates old.

    Two rules enforce the bound by making ranks wait. First, at most ``bound`` + 1 ranks compute at a time, because the
    last of them may have to follow all others; the rank that has waited longest begins next. Second, a ready gradient
    waits if its update would make an older gradient, which is still being computed, too late. (Ho et al., More
    Effective Distributed ML via a Stale Synchronous Parallel Parameter Server, 2013, bound the ranks' clocks in this
    way; here the updates themselves are bounded.)

    Every update makes the gradients of the other computing ranks one update older. With n computing ranks the mean
    staleness therefore tends to n − 1 for any times; times and ``bound`` determine its distribution.

    Args:
        times: mean time of a gradient on each rank; by default 1 for all.
        jitter: standard deviation of the times' logarithm; each time is its mean times a log-normal number of mean 1.
    """
    world, bound = check_int("world", world, 1), check_int("bound", bound, 0)
    if times is not None and not np.iterable(times):
        raise InvalidArgument("times", times, f"one for each of {plural(world, 'rank')}")
    means = [1.0] * world if times is None else [check_float("times", time, above=0) for time in times]
    if len(means) != world:
        raise InvalidArgument("times", plural(len(means), "time"), f"one for each of {plural(world, 'rank')}")
    rng = np.random.default_rng(check_int("seed", seed, 0))
    check_float("jitter", jitter, minimum=0)
    waiting = deque(range(world))  # ranks that may begin next
    taken: dict[int, int] = {}  # number of updates before each computing rank took its parameters, oldest first
    running: list[tuple[float, int]] = []  # heap of (time at which its gradient is ready, rank)
    ready: list[int] = []  # ranks with a ready gradient, in the order of time
    n_updates, now = 0, 0.0

    def begin() -> int:
        rank = waiting.popleft()
        taken[rank] = n_updates
        factor = float(np.exp(jitter * rng.standard_normal() - jitter**2 / 2))
        heapq.heappush(running, (now + means[rank] * factor, rank))
        return rank

    for _ in range(min(world, bound + 1)):
        begin()
    while True:
        rank = next((rank for rank in ready if _in_time(taken, rank, n_updates, bound)), None)
        if rank is None:
            now, arrived = heapq.heappop(running)
            ready.append(arrived)
            continue
        ready.remove(rank)
        waiting.append(rank)
        staleness = n_updates - taken.pop(rank)
        n_updates += 1
        yield AsyncUpdate(rank, staleness, now, begin())


def _in_time(taken: dict[int, int], rank: int, n_updates: int, bound: int) -> bool:
    """Return whether all other ranks can still follow in time, the oldest first, if ``rank`` updates next."""
    others = (since for other, since in taken.items() if other != rank)
    return all(n_updates + 1 + place - since <= bound for place, since in enumerate(others))


@dataclass(frozen=True, repr=False)
class Asynchronous(Method):
    """Asynchronous updates at a parameter server (Dean et al., Large Scale Distributed Deep Networks, 2012), bounded.

    A rank sends its gradient to rank 0, which applies it alone and at once, with the whole learning rate and its own
    optimizer, and sends the new parameters to the rank that begins next, most often the same. `updates` gives
    their order. A step of a run reads one global batch and makes N updates; the j-th is the gradient of the j-th part
    of the batch, from the rank that is ready. There are N times as many updates as in the exact loop, from N times
    smaller batches, so learning rates differ from those of the exact loop.

    With ``bound`` 0 one rank computes at a time, which is sequential SGD on the parts of the batch. From a bound of
    N − 1 on no rank waits to begin. Without jitter and with equal times every gradient is then N − 1 updates old,
    except the first N.

    Row 0 of a run's parameters is the server's; each other row has the parameters that its rank took last, so the drift
    measures their lag. No gradients are averaged, so the gap is NaN. Rank 0 computes too, and sends itself nothing.
    """

    bound: int
    _: KW_ONLY
    times: Sequence[float] | None = None
    jitter: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        check_int("bound", self.bound, 0)
        check_float("jitter", self.jitter, minimum=0)
        check_int("seed", self.seed, 0)

    def updates(self, world: int) -> Iterator[AsyncUpdate]:
        """Yield the updates of a run with ``world`` ranks in order; see `updates`."""
        return updates(world, self.bound, times=self.times, jitter=self.jitter, seed=self.seed)

    def steps(self, params: Array, group: RankGroup) -> Iterator[Step]:
        coming, server, taken = self.updates(group.world), params[0], params.copy()
        while True:
            for part, arrived in enumerate(islice(coming, group.world)):
                gradient = group.gradients(taken[arrived.rank][None], [part])[0]
                server = group.optimizers[0].step(server, gradient)
                taken[arrived.next_rank] = server
                for schedule in _messages(group.world, arrived.rank, arrived.next_rank):
                    group.count(schedule, server.size, server.itemsize)
            yield Step(np.stack([server, *taken[1:]]))


@lru_cache(maxsize=1024)
def _messages(world: int, rank: int, next_rank: int) -> list[collectives.Schedule]:
    """Return the messages of an update: a gradient from ``rank`` to rank 0, and parameters to ``next_rank``."""
    pairs = (collectives.reduce(2), rank), (collectives.broadcast(2), next_rank)
    return [collectives.embed(schedule, world, [0, other]) for schedule, other in pairs if other != 0]


@dataclass(frozen=True, repr=False)
class Stale(Method):
    """The four-phase loop, but each step applies the averaged gradient at the parameters of ``delay`` steps before.

    The first steps use the gradient at the initial parameters. This models a loop in which ``delay`` further steps
    begin before an all-reduce is over: it sends as much as the exact loop, and no rank waits. `largest_stable_rate` is
    its cost. The gap of a run compares the old gradients with those of the batch at the present parameters.
    """

    delay: int

    def __post_init__(self) -> None:
        check_int("delay", self.delay, 0)

    def steps(self, params: Array, group: RankGroup) -> Iterator[Step]:
        history = deque([params], maxlen=self.delay + 1)
        while True:
            averaged = group.average(group.gradients(history[0]))
            params = update(params, averaged, group.optimizers)
            history.append(params)
            yield Step(params, averaged)
