"""The α–β model: a call takes α seconds whatever its size, and β seconds for each byte.

The model is Hockney's; n½ is his too ("The communication challenge for MPP: Intel Paragon and Meiko CS-2", 1994).
"""

import math
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpbook.core import InvalidArgument, check_float, check_type, in_words

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class AlphaBeta:
    """Seconds as an affine function of bytes: ``alpha`` (seconds) + ``beta`` (seconds per byte) · bytes.

    Neither may be negative. Call it with a number of bytes, or an array of them. Raises `InvalidArgument`.
    """

    alpha: float
    beta: float

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            object.__setattr__(self, name, check_float(name, getattr(self, name), minimum=0))

    @overload
    def __call__(self, nbytes: float) -> float: ...
    @overload
    def __call__(self, nbytes: NDArray[Any]) -> FloatArray: ...
    def __call__(self, nbytes: float | NDArray[Any]) -> float | FloatArray:
        """Seconds for ``nbytes``; an array gives an array. For 0 bytes that is ``alpha``: the call is still made."""
        amounts = check_nbytes(nbytes)
        seconds = self.alpha + self.beta * amounts
        return seconds if isinstance(nbytes, np.ndarray) else float(seconds)

    def __add__(self, other: "AlphaBeta") -> "AlphaBeta":
        """One call after another on the same bytes."""
        if not isinstance(other, AlphaBeta):
            return NotImplemented
        return AlphaBeta(self.alpha + other.alpha, self.beta + other.beta)

    @property
    def bandwidth(self) -> float:
        """Bytes per second that very large calls approach: 1 / β."""
        return 1 / self.beta if self.beta else math.inf

    @property
    def half_bandwidth_bytes(self) -> float:
        """n½ = α / β: the size at which a call reaches half of ``bandwidth``, and α and β take the same time."""
        return self.alpha / self.beta if self.beta else math.inf

    def __repr__(self) -> str:
        return (
            f"{in_words(self.alpha, 's')} + {in_words(self.beta, 's')}/B · n: "
            f"at most {in_words(self.bandwidth, 'B')}/s, half of it at n½ = {in_words(self.half_bandwidth_bytes, 'B')}"
        )


def crossover(a: AlphaBeta, b: AlphaBeta) -> float | None:
    """The number of bytes at which ``a`` and ``b`` take equally long; None if one is never slower than the other.

    Below it the one with the smaller α is faster, above it the one with the smaller β. Raises `InvalidArgument`.
    """
    for name, value in (("a", a), ("b", b)):
        check_type(name, value, AlphaBeta, "an AlphaBeta")
    if (a.alpha - b.alpha) * (b.beta - a.beta) <= 0:
        return None
    return (a.alpha - b.alpha) / (b.beta - a.beta)


@dataclass(frozen=True)
class Slowest:
    """Several at once, on different links: at each size the time of the one that is slowest there.

    What a ring over two kinds of link takes where the one has the larger latency and the other the smaller bandwidth.
    """

    times: tuple[AlphaBeta, ...]

    @overload
    def __call__(self, nbytes: float) -> float: ...
    @overload
    def __call__(self, nbytes: NDArray[Any]) -> FloatArray: ...
    def __call__(self, nbytes: float | NDArray[Any]) -> float | FloatArray:
        """Seconds for ``nbytes``; an array gives an array."""
        seconds = np.max([time(np.asarray(nbytes)) for time in self.times], axis=0)
        return seconds if isinstance(nbytes, np.ndarray) else float(seconds)

    def __repr__(self) -> str:
        return "the slowest of " + "; ".join(map(repr, self.times))


def slowest(*times: AlphaBeta) -> AlphaBeta | Slowest:
    """The slowest of ``times`` at each size: one of them, if it is the slowest at all sizes."""
    for time in times:
        if all(time.alpha >= other.alpha and time.beta >= other.beta for other in times):
            return time
    return Slowest(times)


def check_nbytes(nbytes: ArrayLike) -> FloatArray:
    """``nbytes`` as float64. Raises `InvalidArgument` unless all are finite and at least 0."""
    try:
        amounts = np.asarray(nbytes, dtype=np.float64)
    except (TypeError, ValueError):
        amounts = np.array(np.nan)
    if not (np.isfinite(amounts) & (amounts >= 0)).all():
        raise InvalidArgument("nbytes", nbytes, "finite numbers of at least 0")
    return amounts
