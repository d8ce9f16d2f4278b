"""bfloat16, which NumPy does not have: float32's range, and 8 significant bits in place of 24."""

import numpy as np
from numpy.typing import ArrayLike

from dpbook.core import InvalidArgument
from dpbook.replicas import Array


def bf16(values: ArrayLike) -> Array:
    """Return finite ``values`` rounded to the nearest bfloat16, ties to even, in an array of float32 that holds them.

    A bfloat16 is the upper half of a float32. Values are rounded to float32 first. Raises `InvalidArgument` for what is
    not finite.
    """
    array = np.asarray(values, np.float32)
    if not np.isfinite(array).all():
        raise InvalidArgument("values", array, "finite numbers")
    bits = array.view(np.uint32)
    half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))  # just below a half, or a half if the last is 1
    rounded: Array = ((bits + half) & np.uint32(0xFFFF0000)).view(np.float32)
    return rounded


def sum_in_bf16(buffers: Array) -> Array:
    """Return for every rank the sum (world, size) in rank order, rounded to bfloat16 after each addition.

    That is what comes of an all-reduce that sends bfloat16 from rank to rank, whatever precision a rank adds in.
    ``buffers`` is a float32 array (world, size); rows are rounded before they are added.
    """
    if not isinstance(buffers, np.ndarray) or buffers.ndim != 2 or buffers.dtype != np.float32:
        raise InvalidArgument("buffers", buffers, "a float32 array (world, size)")
    total, *others = bf16(buffers)
    for own in others:
        total = bf16(total + own)
    return np.tile(total, (len(buffers), 1))
