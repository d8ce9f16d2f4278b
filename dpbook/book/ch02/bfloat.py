"""Sums in bfloat16, which NumPy does not have: float32's range, and 8 significant bits in place of 24."""

import numpy as np

from dpbook.core import InvalidArgument
from dpbook.replicas import Array
from dpbook.replicas.inexact import bf16


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
