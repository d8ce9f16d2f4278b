"""Asynchronous SGD: every gradient is an update of its own, as soon as it is there, within a bound on its age."""

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

import numpy as np

from dpbook import collectives
from dpbook.core import InvalidArgument, check_float, check_int, plural
from dpbook.replicas.array import Array
from dpbook.replicas.method import Cluster, Method, Step


class Update(NamedTuple):
    """One rank's gradient that became an update.

    Attributes:
        rank: whose gradient it was.
        staleness: how many other updates there were since the rank took the parameters that the gradient is of.
        time: when, in the unit of the gradients' times; the first ranks begin at 0, and messages take no time.
        begins: the rank that takes the parameters after this update and begins its next gradient.
    """

    rank: int
    staleness: int
    time: float
    begins: int


def updates(
    world: int, bound: int, *, times: Sequence[float] | None = None, jitter: float = 0.0, seed: int = 0
) -> Iterator[Update]:
    """Yield without end the updates of ``world`` ranks, none of a gradient more than ``bound`` updates old.

    Two rules keep the bound, by making ranks wait. At most ``bound`` + 1 ranks are at work at a time, because the last
    of them may have to follow all others; the next to begin is the one that has waited longest. And a gradient that is
    ready waits if its update would make an older one, still on its way, too late. (Ho et al., More Effective
    Distributed ML via a Stale Synchronous Parallel Parameter Server, 2013, bound the ranks' clocks so; this bounds the
    updates themselves.)

    Every update makes the gradients of the others at work one update older. With n ranks at work the mean staleness
    therefore goes to n − 1, whatever their times; times and ``bound`` decide how it is spread.

    Args:
        times: mean time that each rank needs for a gradient; by default 1 for all.
        jitter: standard deviation of the times' logarithm: each is its mean times a log-normal number of mean 1.
    """
    world, bound = check_int("world", world, 1), check_int("bound", bound, 0)
    if times is not None and not np.iterable(times):
        raise InvalidArgument("times", times, f"one for each of {plural(world, 'rank')}")
    means = [1.0] * world if times is None else [check_float("times", time, above=0) for time in times]
    if len(means) != world:
        raise InvalidArgument("times", plural(len(means), "time"), f"one for each of {plural(world, 'rank')}")
    rng = np.random.default_rng(check_int("seed", seed, 0))
    check_float("jitter", jitter, minimum=0)
    waiting = deque(range(world))  # for their turn to begin
    taken: dict[int, int] = {}  # number of the update after which a rank took its parameters, in their order
    running: list[tuple[float, int]] = []  # when a rank's gradient is ready: a heap
    ready: list[int] = []  # ranks in the order in which their gradients were
    done, now = 0, 0.0

    def begin() -> int:
        rank = waiting.popleft()
        taken[rank] = done
        factor = float(np.exp(jitter * rng.standard_normal() - jitter**2 / 2))
        heapq.heappush(running, (now + means[rank] * factor, rank))
        return rank

    for _ in range(min(world, bound + 1)):
        begin()
    while True:
        rank = next((rank for rank in ready if _in_time(taken, rank, done, bound)), None)
        if rank is None:
            now, arrived = heapq.heappop(running)
            ready.append(arrived)
            continue
        ready.remove(rank)
        waiting.append(rank)
        staleness = done - taken.pop(rank)
        done += 1
        yield Update(rank, staleness, now, begin())


def _in_time(taken: dict[int, int], rank: int, done: int, bound: int) -> bool:
    """Whether all others can still follow, the oldest first, if the next update is that of ``rank``."""
    others = (since for other, since in taken.items() if other != rank)
    return all(done + 1 + place - since <= bound for place, since in enumerate(others))


@dataclass(frozen=True, repr=False)
class Asynchronous(Method):
    """Asynchronous updates at a parameter server (Dean et al., Large Scale Distributed Deep Networks, 2012), bounded.

    A rank sends its gradient to rank 0, which applies it alone and at once, with the whole learning rate and its own
    optimizer, and sends the new parameters to the rank that begins next, most often the same. `updates` says who comes
    when. A step of a run, which reads one global batch, is N updates: the j-th takes the gradient of the j-th part of
    the batch, whichever rank brings it. They are N times as many updates of N times smaller batches: learning rates
    are not those of the exact loop.

    With ``bound`` 0 no two ranks are at work at a time: sequential SGD on batches of a part each. From a bound of N − 1
    on nobody waits to begin; without jitter and with equal times every gradient is then N − 1 updates old, but for the
    first N.

    A run's row 0 is the server's parameters; the others are what each rank took last, so the drift is how far ranks are
    behind. No gradients are averaged: the gap is NaN. Rank 0 computes too, and sends itself nothing.
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

    def updates(self, world: int) -> Iterator[Update]:
        """The updates of a run with ``world`` ranks, in their order; see `updates`."""
        return updates(world, self.bound, times=self.times, jitter=self.jitter, seed=self.seed)

    def steps(self, params: Array, cluster: Cluster) -> Iterator[Step]:
        coming, server, held = self.updates(cluster.world), params[0], params.copy()
        while True:
            for part, arrived in enumerate(islice(coming, cluster.world)):
                gradient = cluster.gradients(held[arrived.rank][None], [part])[0]
                server = cluster.optimizers[0].step(server, gradient)
                held[arrived.begins] = server
                for schedule in _messages(cluster.world, arrived.rank, arrived.begins):
                    cluster.count(schedule, server.size, server.itemsize)
            yield Step(np.stack([server, *held[1:]]))


@lru_cache(maxsize=1024)
def _messages(world: int, rank: int, begins: int) -> list[collectives.Schedule]:
    """A gradient from one rank to rank 0, and the parameters from there to the one that begins."""
    ways = (collectives.reduce(2), rank), (collectives.broadcast(2), begins)
    return [collectives.embed(way, world, [0, other]) for way, other in ways if other != 0]
