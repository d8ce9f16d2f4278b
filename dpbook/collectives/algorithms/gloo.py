"""The ring that gloo runs for an all-reduce, with gloo's own chunks: simulated, it predicts gloo's bits."""

from dataclasses import dataclass

import numpy as np

from dpbook.collectives.schedule.bounds import AnySize
from dpbook.collectives.schedule.placement import complete_on
from dpbook.collectives.schedule.rounds import IntArray, LazyRounds, Round
from dpbook.collectives.schedule.schedule import Schedule
from dpbook.core import check_int

LARGEST_SEGMENT = 2**20
"""Bytes. A chunk is cut into segments of at most so many, at least two, so that the next is sent while one is added."""


@dataclass(frozen=True)
class GlooBounds(AnySize):
    """Chunks as gloo cuts them: each is made of whole segments, and a segment of whole elements.

    There are as many segments as 1 MiB goes into the bytes, at least 2 per chunk, and equally many per chunk. The last
    chunks may be short or empty: 7 elements of 4 bytes on 3 ranks are 4, 3 and 0. After gloo's source, `allreduce.cc`.
    """

    def __call__(self, size: int, itemsize: int) -> IntArray:
        nbytes = size * itemsize
        segments = self.n_chunks * _up(max(_up(nbytes, LARGEST_SEGMENT), 2 * self.n_chunks), self.n_chunks)
        segment = _up(_up(nbytes, segments), itemsize)  # in elements
        per_chunk = segments // self.n_chunks
        return np.minimum(np.arange(self.n_chunks + 1) * per_chunk * segment, size)


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


def _up(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)
