"""Late updates: asynchronous SGD with a bound on the age of gradients, and averages that are some steps old."""

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
from dpbook.replicas.arrays import Array
from dpbook.replicas.four_phases import update
from dpbook.replicas.method import Method, RankGroup, Step


class AsyncUpdate(NamedTuple):
    """An update from the gradient of one rank.

    Attributes:
        rank: rank that computed the gradient.
        staleness: number of other updates since the rank took the parameters of its gradient.
        time: time of the update, in the unit of the gradients' times; the first ranks begin at 0, and messages take no
            time.
        next_rank: rank that takes the parameters after this update and begins its next gradient.
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
