"""Bytes per second of a collective, in the two ways in which nccl-tests reports them.

The algorithm bandwidth is what the caller sees: bytes of the buffer per second. The bus bandwidth is what a link
carries if every rank sends the least that it must, so that it can be compared with the link's own, whatever the number
of ranks; but only where the ranks do the adding. Where switches add, ranks send less, and it may exceed the link's.
"Bytes" are those of the whole buffer: for an all-gather or a reduce-scatter, of all ranks' parts together.
"""

import math
from typing import Literal, get_args

from dpbook.collectives.schedule.placement import Placement, complete_everywhere, everyone, partial
from dpbook.collectives.schedule.schedule import Schedule, check_schedule
from dpbook.core import check_float, check_int, check_one_of

Collective = Literal["all_reduce", "reduce_scatter", "all_gather", "reduce", "broadcast"]


def algbw(nbytes: float, seconds: float) -> float:
    """Algorithm bandwidth, bytes per second: ``nbytes`` / ``seconds``. NaN for no seconds. Raises `InvalidArgument`."""
    nbytes, seconds = check_float("nbytes", nbytes, minimum=0), check_float("seconds", seconds, minimum=0)
    return nbytes / seconds if seconds else math.nan


def busbw(nbytes: float, seconds: float, world: int, collective: Collective = "all_reduce") -> float:
    """Bus bandwidth, bytes per second: `algbw` · `bus_factor`. Raises `InvalidArgument`."""
    return algbw(nbytes, seconds) * bus_factor(world, collective)


def bus_factor(world: int, collective: Collective = "all_reduce") -> float:
    """Bus bandwidth in units of the algorithm bandwidth, as nccl-tests defines it (its doc/PERFORMANCE.md).

    2(N − 1)/N for an all-reduce, (N − 1)/N for a reduce-scatter or an all-gather, 1 for a reduce or a broadcast.
    Raises `InvalidArgument`.
    """
    world = check_int("world", world, 1)
    check_one_of("collective", collective, get_args(Collective))
    if collective == "all_reduce":
        return 2 * (world - 1) / world
    return (world - 1) / world if collective in ("reduce_scatter", "all_gather") else 1.0


def collective_of(schedule: Schedule) -> Collective | None:
    """Which collective ``schedule`` promises to be, from its ``before`` and ``after``; None for any other."""
    check_schedule(schedule)
    if schedule.is_all_reduce:
        return "all_reduce"
    if all(holding == partial(schedule.world) for holding in schedule.before):
        return _which(schedule.after, schedule.world, "reduce", "reduce_scatter")
    if all(holding == complete_everywhere(schedule.world) for holding in schedule.after):
        return _which(schedule.before, schedule.world, "broadcast", "all_gather")
    return None


def _which(placement: Placement, world: int, on_one: Collective, on_each: Collective) -> Collective | None:
    """Tell a collective by where its chunks are complete: all on one rank, or as many on each rank."""
    if any(len(holding) != 1 or set(holding.values()) != {everyone(world)} for holding in placement):
        return None
    owners = [rank for holding in placement for rank in holding]
    if len(set(owners)) == 1:
        return on_one
    return on_each if sorted(owners) == sorted([*range(world)] * (len(owners) // world)) else None
