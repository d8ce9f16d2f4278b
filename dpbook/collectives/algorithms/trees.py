"""Binomial trees: half of the ranks that still take part send their whole buffer.

Names follow MPI and Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in
MPICH" (2005). Every function takes the number of ranks and raises `InvalidArgument` if it is below 1.
"""

import numpy as np

from dpbook.collectives.schedule.placement import complete_on
from dpbook.collectives.schedule.rounds import IntArray, LazyRounds, Round
from dpbook.collectives.schedule.schedule import Schedule
from dpbook.core import check_int


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


def _tree(world: int, root: int) -> tuple[int, IntArray]:
    """The depth of a binomial tree over ``world`` ranks, and the ranks in its order: ``root`` first."""
    world = check_int("world", world, 1)
    check_int("root", root, 0, world - 1)
    return (world - 1).bit_length(), (np.arange(world) + root) % world
