"""Chunks of a buffer: their bounds, and placements, which say whose contributions each rank's copy of a chunk contains.

The placement of one chunk is a `Holding`: a mapping from a rank to the set of ranks whose contributions are summed in
its copy. The copy of a rank that is not listed has no defined content. Three holdings are enough for most schedules:
partial (each rank has its own contribution), complete on one rank, and complete everywhere. Composed schedules have
others in between, such as "each node's sum on one rank of the node".
"""

import copyreg
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import Protocol

import numpy as np

from dpbook.collectives.schedule.rounds import IntArray
from dpbook.core import InvalidArgument, check_int, check_type, plural, ranks_in_words

LARGEST_SEGMENT = 2**20
"""Most bytes of a segment. gloo cuts a chunk into at least two segments, and sends the next while it adds one."""


class Bounds(Protocol):
    """A rule that cuts a buffer of ``size`` elements of ``itemsize`` bytes into chunks.

    Returns int64 offsets of shape (n_chunks + 1,), from 0 to ``size``, never decreasing: chunk c is
    ``buffer[offsets[c]:offsets[c + 1]]``. A rule compares equal to another that cuts the same way.
    """

    @property
    def n_chunks(self) -> int: ...

    @property
    def size(self) -> int | None:
        """The only size that the rule can cut, or None if it cuts all."""

    def __call__(self, size: int, itemsize: int) -> IntArray: ...


@dataclass(frozen=True)
class AnySize:
    """Base of rules for buffers of any size."""

    n_chunks: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_chunks", check_int("n_chunks", self.n_chunks, 1))

    @property
    def size(self) -> None:
        return None


@dataclass(frozen=True)
class EvenSplit(AnySize):
    """Chunks that differ by at most one element; the first ``size % n_chunks`` are the longer ones.

    A buffer smaller than ``n_chunks`` has empty chunks at its end.
    """

    def __call__(self, size: int, itemsize: int) -> IntArray:
        short, longer = divmod(size, self.n_chunks)
        index = np.arange(self.n_chunks + 1)
        return index * short + np.minimum(index, longer)


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


@dataclass(frozen=True)
class FixedBounds:
    """Fixed offsets for buffers of one size only, as the recording of a rank program yields them."""

    offsets: tuple[int, ...]

    def __post_init__(self) -> None:
        try:
            offsets = tuple(map(operator.index, self.offsets))
        except TypeError:
            offsets = ()
        if len(offsets) < 2 or offsets[0] != 0 or any(a > b for a, b in pairwise(offsets)):
            raise InvalidArgument("offsets", self.offsets, "integers that begin at 0 and never decrease")
        object.__setattr__(self, "offsets", offsets)

    @property
    def n_chunks(self) -> int:
        return len(self.offsets) - 1

    @property
    def size(self) -> int:
        return self.offsets[-1]

    def __call__(self, size: int, itemsize: int) -> IntArray:
        if size != self.size:
            raise InvalidArgument("size", size, f"{self.size}, the only size of these chunk bounds")
        return np.array(self.offsets, dtype=np.int64)


def chunk_bounds(size: int, n_chunks: int) -> IntArray:
    """Return the offsets of the even split of ``size`` elements, shape (n_chunks + 1,); see `EvenSplit`."""
    return EvenSplit(n_chunks)(check_int("size", size, 0), 1)


def _up(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(-a // b)


Holding = Mapping[int, frozenset[int]]
Placement = tuple[Holding, ...]  # one holding per chunk

copyreg.pickle(MappingProxyType, lambda holding: (_read_only, (dict(holding),)))  # so that a schedule can be pickled


@lru_cache(maxsize=64)
def everyone(world: int) -> frozenset[int]:
    """Return all ranks as one object per world, so that placements share it and compare by identity."""
    return frozenset(range(check_int("world", world, 1)))


@lru_cache(maxsize=64)
def partial(world: int) -> Holding:
    """Return the holding in which each rank has its own contribution, with which every all-reduce begins."""
    return MappingProxyType({rank: frozenset((rank,)) for rank in range(check_int("world", world, 1))})


@lru_cache(maxsize=64)
def complete_everywhere(world: int) -> Holding:
    """Return the holding in which every rank has the complete sum, with which every all-reduce ends."""
    return complete_on(range(world), world)


def complete_on(ranks: Iterable[int], world: int) -> Holding:
    """Return the holding in which only ``ranks`` have the complete sum. Raises `InvalidArgument`."""
    whole = everyone(world)
    check_type("ranks", ranks, Iterable, "a collection of ranks")
    return MappingProxyType({check_int("rank", rank, 0, world - 1): whole for rank in ranks})


def describe(placement: Placement, world: int) -> str:
    """Return a placement in a few words."""
    for words, holding in (
        ("complete on every rank", complete_everywhere(world)),
        ("partial on every rank", partial(world)),
    ):
        if all(h is holding or h == holding for h in placement):
            return words
    chunks = [f"chunk {c}: {_describe_holding(h, world)}" for c, h in enumerate(placement[:4])]
    return "; ".join(chunks) + ("; …" if len(placement) > 4 else "")


def _describe_holding(holding: Holding, world: int) -> str:
    if not holding:
        return "not used"
    if all(whose == everyone(world) for whose in holding.values()):
        return f"complete on {ranks_in_words(holding)}"
    return f"partial on {ranks_in_words(holding)}"


def check_placement(name: str, placement: Placement, world: int, n_chunks: int) -> Placement:
    """Return ``placement`` as a tuple of read-only mappings. Raises `InvalidArgument` unless it fits the schedule."""
    if not isinstance(placement, Sequence) or not all(isinstance(holding, Mapping) for holding in placement):
        raise InvalidArgument(name, placement, "a holding per chunk, as `partial` and `complete_on` make them")
    if len(placement) != n_chunks:
        raise InvalidArgument(name, plural(len(placement), "holding"), f"one holding per chunk, {n_chunks}")
    read_only = {id(holding): _read_only(holding) for holding in placement}  # most chunks share one
    groups: dict[int, Iterable[int]] = {id(group): group for h in read_only.values() for group in (h, *h.values())}
    for group in groups.values():
        if not everyone(world).issuperset(group):
            raise InvalidArgument(name, sorted(group), f"about ranks in 0..{world - 1}")
    return tuple(read_only[id(holding)] for holding in placement)


def _read_only(holding: Holding) -> MappingProxyType[int, frozenset[int]]:
    return holding if isinstance(holding, MappingProxyType) else MappingProxyType(dict(holding))
