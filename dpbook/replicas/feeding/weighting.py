"""Which mean? Ranks with unequal shares of the batch must not count alike.

A mean over all examples is the mean of the ranks' means, each weighted by its number of examples. In a model of
sequences whose loss is a mean per token, the tokens are what counts. The weights here are relative to an equal share:
they average to 1 and are exactly 1.0 where all shares are equal, so the usual sum and division by the world serve both
cases, and equal shares give the bits that they gave without weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dpbook.collectives import chunk_bounds
from dpbook.core import InvalidArgument, check_int
from dpbook.replicas.array import Array


def rank_weights(counts: Sequence[int] | Array) -> Array:
    """Return each rank's weight relative to an equal share, world · n_r / Σn, as float64 (world,).

    Args:
        counts: how many examples (or tokens) each rank's local mean is taken over; 0 for a rank that has none.
    """
    numbers = np.array([check_int("counts", n, 0) for n in counts])
    if numbers.sum() == 0:
        raise InvalidArgument("counts", counts, "one number per rank, at least one of them positive")
    weights: Array = len(numbers) * numbers / numbers.sum()
    return weights


@dataclass(frozen=True)
class Means:
    """One set of local means, averaged in both ways.

    Attributes:
        plain: the mean of the ranks' means, every rank counting alike; () or (size,).
        weighted: the mean over everything that the ranks' means were taken over.
    """

    plain: Array
    weighted: Array

    @property
    def bias(self) -> Array:
        """What the plain mean is wrong by: the correlation of the ranks' means with their sizes."""
        bias: Array = self.plain - self.weighted
        return bias

    def __repr__(self) -> str:
        if np.ndim(self.plain) == 0:
            return f"Means(plain {self.plain:.6g}, weighted {self.weighted:.6g}, bias {self.bias:.3g})"
        return f"Means({np.size(self.plain):,} elements, largest bias {np.abs(self.bias).max():.3g})"


def both_means(local_means: ArrayLike, counts: Sequence[int] | Array) -> Means:
    """Average the ranks' local means, losses (world,) or gradients (world, size), plainly and by ``counts``."""
    values = np.asarray(local_means)
    weights = rank_weights(counts)
    if values.ndim == 0 or len(values) != len(weights) or values.dtype.kind not in "fiu":
        raise InvalidArgument("local_means", f"{values.dtype} array of shape {values.shape}", "one per count, numbers")
    weighted = np.tensordot(weights, values, axes=1) / len(values)
    return Means(values.mean(axis=0), weighted)


def tokens_per_rank(lengths: Sequence[int] | Array, world: int) -> Array:
    """Return how many tokens each rank has, as int64 (world,), if sequences are dealt out evenly and in order.

    Every rank has the same number of sequences (to within one) and still not the same number of tokens. As the
    ``sizes`` of `shard`, over the tokens of all sequences one after another, the result cuts between sequences.

    Args:
        lengths: tokens of each sequence.
    """
    numbers = np.array([check_int("lengths", n, 0) for n in lengths], np.int64)
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(numbers)])
    tokens: Array = np.diff(ends[chunk_bounds(len(numbers), check_int("world", world, 1))])
    return tokens
