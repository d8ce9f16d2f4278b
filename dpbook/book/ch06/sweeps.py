"""Sweeps drawn at random, as exercise 06.2 sees them: with scatter, and of a library that switches its protocol."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpbook.collectives import Link, closed_forms
from dpbook.core import check_int

SIZES = 2 ** np.arange(10, 27)
"""1 KiB to 64 MiB, in bytes."""
SCATTER = 0.01
"""A measured time is off by at most this share."""


class Drawn(NamedTuple):
    """A sweep of calls between two ranks, and what it was drawn from.

    Attributes:
        nbytes: int64, shape (sizes,).
        seconds: of a call, shape (sizes,).
        link: of one message, in the protocol for large buffers.
        first: the smallest of ``nbytes`` at which that protocol was used.
    """

    nbytes: NDArray[np.int64]
    seconds: NDArray[np.float64]
    link: Link
    first: int


def draw(rng: np.random.Generator) -> Drawn:
    """Draw a sweep of a ring of two, below ``first`` over a link of less latency and much less bandwidth.

    The library switches at about three times the size at which the two protocols take equally long.
    """
    position = int(rng.integers(5, 11))
    first, latency = int(SIZES[position]), float(rng.uniform(1e-5, 5e-5))
    large = Link(latency, float(first / rng.uniform(0.8, 0.9) / latency))
    small = Link(latency * float(rng.uniform(0.1, 0.2)), large.bandwidth / float(rng.uniform(6, 8)))
    below, above = (closed_forms.ring(2, link)(SIZES) for link in (small, large))
    seconds = np.where(first > SIZES, below, above) * rng.uniform(1 - SCATTER, 1 + SCATTER, len(SIZES))
    return Drawn(SIZES, seconds, large, first)


def sample(seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The bytes and the seconds of one sweep; equal seeds are one sweep."""
    drawn = draw(np.random.default_rng(check_int("seed", seed, 0)))
    return drawn.nbytes, drawn.seconds
