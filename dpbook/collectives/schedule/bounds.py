"""Where the chunks of a buffer begin and end."""

import operator
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from dpbook.collectives.schedule.rounds import IntArray
from dpbook.core import InvalidArgument, check_int

LARGEST_SEGMENT = 2**20
"""Bytes. gloo cuts a chunk into segments of at most so many, at least two: the next is sent while one is added."""


class Bounds(Protocol):
    """A rule that cuts a buffer of ``size`` elements of ``itemsize`` bytes into chunks.

    Returns int64 offsets of shape (n_chunks + 1,), from 0 to ``size``, never decreasing: chunk c is
    ``buffer[offsets[c]:offsets[c + 1]]``. A rule compares equal to another that cuts the same way.
    """

    @property
    def n_chunks(self) -> int: ...

    @property
    def size(self) -> int | None:
        """The only size that it can cut, or None if it cuts all."""

    def __call__(self, size: int, itemsize: int) -> IntArray: ...


@dataclass(frozen=True)
class AnySize:
    """What rules for buffers of any size share."""

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
    """Given offsets, good for buffers of one size only: what the recording of a rank program yields."""

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
            raise InvalidArgument("size", size, f"{self.size}, the only size that these chunk bounds hold for")
        return np.array(self.offsets, dtype=np.int64)


def chunk_bounds(size: int, n_chunks: int) -> IntArray:
    """Offsets of the even split of ``size`` elements, shape (n_chunks + 1,); see `EvenSplit`."""
    return EvenSplit(n_chunks)(check_int("size", size, 0), 1)


def _up(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)
