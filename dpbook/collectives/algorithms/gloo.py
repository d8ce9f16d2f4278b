"""The ring that gloo runs for an all-reduce, with gloo's own chunks: simulated, it predicts gloo's bits."""

import numpy as np

from dpbook.collectives.schedule.bounds import GlooBounds
from dpbook.collectives.schedule.placement import complete_on
from dpbook.collectives.schedule.rounds import LazyRounds, Round
from dpbook.collectives.schedule.schedule import Schedule
from dpbook.core import check_int


def gloo_ring(world: int) -> Schedule:
    """Ring all-reduce as gloo runs it: every rank sends to the one before it, and chunk c ends on rank c.

    Chunk c starts at rank c − 1 and is added to at c − 2, c − 3, …, so that its sum is ((x[c−1] + x[c−2]) + …) + x[c].
    """
    ranks = np.arange(check_int("world", world, 1))
    left = (ranks - 1) % world
    scatter = LazyRounds(world - 1, lambda s: Round(ranks, left, (ranks + 1 + s) % world, reduce=True))
    gather = LazyRounds(world - 1, lambda s: Round(ranks, left, (ranks + s) % world, reduce=False))
    owned = tuple(complete_on([chunk], world) for chunk in range(world))
    first = Schedule(world, world, scatter, GlooBounds(world), after=owned)
    second = Schedule(world, world, gather, GlooBounds(world), before=owned)
    return first.then(second).named(f"gloo_ring(world={world})")
