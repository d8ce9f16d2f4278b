"""The parameter server, trees and rings: collective algorithms, each a schedule.

Names follow MPI and Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in
MPICH" (2005). Every function takes the number of ranks and raises `InvalidArgument` if it is below 1.
"""

from __future__ import annotations

import numpy as np

from dpbook.collectives.placement import complete_on
from dpbook.collectives.rounds import IntArray, LazyRounds, Round
from dpbook.collectives.schedule import Schedule
from dpbook.errors import check_int


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


def parameter_server(world: int) -> Schedule:
    """Every rank sends its whole buffer to rank 0, one after another, and gets the sum back the same way."""
    check_int("world", world, 1)

    def make(s: int) -> Round:
        worker = s % (world - 1) + 1
        return Round.of(worker, 0, 0, True) if s < world - 1 else Round.of(0, worker, 0, False)

    return Schedule(world, 1, LazyRounds(2 * (world - 1), make), name=f"parameter_server(world={world})")


def reduce(world: int, root: int = 0) -> Schedule:
    """Binomial tree, upwards: in round s the ranks at distance 2^s send their sums towards ``root``."""
    depth, ranks = _tree(world, root)

    def make(s: int) -> Round:
        parents = np.arange(0, world - 2**s, 2 ** (s + 1))
        return Round(ranks[parents + 2**s], ranks[parents], np.zeros_like(parents), reduce=True)

    after = (complete_on([root], world),)
    return Schedule(world, 1, LazyRounds(depth, make), after=after, name=f"reduce(world={world})")


def broadcast(world: int, root: int = 0) -> Schedule:
    """Binomial tree, downwards: in each round every rank that has the buffer sends it to one that has not."""
    depth, ranks = _tree(world, root)

    def make(s: int) -> Round:
        step = 2 ** (depth - 1 - s)
        parents = np.arange(0, world - step, 2 * step)
        return Round(ranks[parents], ranks[parents + step], np.zeros_like(parents), reduce=False)

    before = (complete_on([root], world),)
    return Schedule(world, 1, LazyRounds(depth, make), before=before, name=f"broadcast(world={world})")


def tree(world: int) -> Schedule:
    """Binomial tree all-reduce: reduce to rank 0, then broadcast; 2⌈log2 world⌉ rounds of the whole buffer."""
    return reduce(world).then(broadcast(world)).named(f"tree(world={world})")


def _circle(world: int) -> tuple[IntArray, IntArray]:
    """The ranks, and the right-hand neighbour of each."""
    ranks = np.arange(check_int("world", world, 1))
    return ranks, (ranks + 1) % world


def _tree(world: int, root: int) -> tuple[int, IntArray]:
    """The depth of a binomial tree over ``world`` ranks, and the ranks in its order: ``root`` first."""
    world = check_int("world", world, 1)
    check_int("root", root, 0, world - 1)
    return (world - 1).bit_length(), (np.arange(world) + root) % world
