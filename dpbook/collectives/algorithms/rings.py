"""Rings: every rank sends to the next, and all send at once.

Names follow MPI and Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in
MPICH" (2005). Every function takes the number of ranks and raises `InvalidArgument` if it is below 1.
"""

import numpy as np

from dpbook.collectives.schedule.placement import complete_on
from dpbook.collectives.schedule.rounds import IntArray, LazyRounds, Round, read_only
from dpbook.collectives.schedule.schedule import Schedule
from dpbook.core import check_int


def reduce_scatter(world: int) -> Schedule:
    """Ring reduce-scatter: in round s rank r sends chunk (r − s) mod world to rank r + 1, which adds it.

    After world − 1 rounds rank r holds the complete sum of chunk (r + 1) mod world.
    """
    ranks, right = _circle(world)
    rounds = LazyRounds(world - 1, lambda s: Round(ranks, right, (ranks - s) % world, reduce=True))
    after = tuple(complete_on([(chunk - 1) % world], world) for chunk in range(world))
    return Schedule(world, world, rounds, after=after, name=f"reduce_scatter(world={world})")


def all_gather(world: int) -> Schedule:
    """Ring all-gather: rank r begins with chunk (r + 1) mod world; in round s it passes chunk (r + 1 − s) on."""
    ranks, right = _circle(world)
    rounds = LazyRounds(world - 1, lambda s: Round(ranks, right, (ranks + 1 - s) % world, reduce=False))
    before = tuple(complete_on([(chunk - 1) % world], world) for chunk in range(world))
    return Schedule(world, world, rounds, before=before, name=f"all_gather(world={world})")


def ring(world: int) -> Schedule:
    """Ring all-reduce: a reduce-scatter, then an all-gather; 2(world − 1) rounds (Patarasuk and Yuan, 2009)."""
    return reduce_scatter(world).then(all_gather(world)).named(f"ring(world={world})")


def _circle(world: int) -> tuple[IntArray, IntArray]:
    """The ranks, and the right-hand neighbour of each."""
    ranks = np.arange(check_int("world", world, 1))
    return read_only("ranks", ranks), read_only("ranks", (ranks + 1) % world)
