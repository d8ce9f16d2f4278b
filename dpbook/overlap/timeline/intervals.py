"""Sets of moments, as intervals: union, intersection, difference and length.

A set is a float64 array of shape (n, 2): n intervals [start, end), sorted, disjoint, none of them empty.
`union` makes one from any intervals; the other functions take and return such sets. Times in seconds.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpbook.core import InvalidArgument

Intervals: TypeAlias = NDArray[np.float64]


def union(intervals: ArrayLike) -> Intervals:
    """Return the set of moments covered by any of ``intervals``, of shape (n, 2), in any order, overlapping or not.

    Raises:
        InvalidArgument: the shape is not (n, 2), a time is not finite, or an interval ends before it starts.
    """
    spans = _check(intervals)
    spans = spans[spans[:, 1] > spans[:, 0]]
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    if not len(spans):
        return np.empty((0, 2))
    reach = np.maximum.accumulate(spans[:, 1])
    gap = spans[1:, 0] > reach[:-1]  # intervals that touch are one
    return np.column_stack([spans[np.r_[True, gap], 0], reach[np.r_[gap, True]]])


def intersection(a: Intervals, b: Intervals) -> Intervals:
    """Return the moments that are in both sets."""
    return _where(a, b, lambda in_a, in_b: in_a & in_b)


def difference(a: Intervals, b: Intervals) -> Intervals:
    """Return the moments of ``a`` that are not in ``b``."""
    return _where(a, b, lambda in_a, in_b: in_a & ~in_b)


def length(a: Intervals) -> float:
    """Return the total length of a set, in seconds."""
    return float(np.sum(a[:, 1] - a[:, 0]))


def _where(a: Intervals, b: Intervals, keep: Callable[..., NDArray[np.bool_]]) -> Intervals:
    """Cut the time line at every bound of either set, and return the pieces for which ``keep`` is true."""
    cuts = np.unique(np.concatenate([a.ravel(), b.ravel()]))
    pieces = np.column_stack([cuts[:-1], cuts[1:]])
    return union(pieces[keep(_inside(a, pieces[:, 0]), _inside(b, pieces[:, 0]))])


def _inside(a: Intervals, moments: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return a mask of the moments in the set, which have one more start than ends at or before them."""
    started = np.searchsorted(a[:, 0], moments, side="right")
    ended = np.searchsorted(a[:, 1], moments, side="right")
    inside: NDArray[np.bool_] = started > ended
    return inside


def _check(intervals: ArrayLike) -> Intervals:
    spans = np.asarray(intervals, dtype=np.float64)
    if spans.size == 0:
        return np.empty((0, 2))
    if spans.ndim != 2 or spans.shape[1] != 2:
        raise InvalidArgument("intervals", spans.shape, "of shape (n, 2): a start and an end each")
    if not np.isfinite(spans).all() or (spans[:, 1] < spans[:, 0]).any():
        raise InvalidArgument("intervals", intervals, "finite, none ending before it starts")
    return spans
