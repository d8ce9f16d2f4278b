"""The α–β model, and its fit to measurements: a call takes α seconds for any size, and β seconds for each byte.

The model is Hockney's; n½ is his too ("The communication challenge for MPP: Intel Paragon and Meiko CS-2", 1994).
"""

import math
from dataclasses import dataclass, field
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
        """Return the seconds for ``nbytes``; an array gives an array. For 0 bytes they are ``alpha``."""
        amounts = check_nbytes(nbytes)
        seconds = self.alpha + self.beta * amounts
        return seconds if isinstance(nbytes, np.ndarray) else float(seconds)

    def __add__(self, other: "AlphaBeta") -> "AlphaBeta":
        """Return the time of two calls, one after the other, on the same bytes."""
        if not isinstance(other, AlphaBeta):
            return NotImplemented
        return AlphaBeta(self.alpha + other.alpha, self.beta + other.beta)

    @property
    def bandwidth(self) -> float:
        """Bytes per second that very large calls approach: 1 / β."""
        return 1 / self.beta if self.beta else math.inf

    @property
    def half_bandwidth_bytes(self) -> float:
        """Size n½ = α / β at which a call reaches half of ``bandwidth``, and α and β take the same time."""
        return self.alpha / self.beta if self.beta else math.inf

    def __repr__(self) -> str:
        if not self.beta:
            return f"{in_words(self.alpha, 's')}, whatever the size"
        return (
            f"{in_words(self.alpha, 's')} + {in_words(self.beta, 's')}/B · n: "
            f"at most {in_words(self.bandwidth, 'B')}/s, half of it at n½ = {in_words(self.half_bandwidth_bytes, 'B')}"
        )


def crossover(a: AlphaBeta, b: AlphaBeta) -> float | None:
    """Return the bytes at which ``a`` and ``b`` take equally long; None if one is never slower than the other.

    Below it the one with the smaller α is faster, above it the one with the smaller β. Raises `InvalidArgument`.
    """
    for name, value in (("a", a), ("b", b)):
        check_type(name, value, AlphaBeta, "an AlphaBeta")
    if (a.alpha - b.alpha) * (b.beta - a.beta) <= 0:
        return None
    return (a.alpha - b.alpha) / (b.beta - a.beta)


@dataclass(frozen=True)
class Slowest:
    """The largest of several times at each size, of transfers at once on different links.

    A ring over two kinds of link has such a time if one has the larger latency and the other the smaller bandwidth.
    """

    times: tuple[AlphaBeta, ...]

    @overload
    def __call__(self, nbytes: float) -> float: ...
    @overload
    def __call__(self, nbytes: NDArray[Any]) -> FloatArray: ...
    def __call__(self, nbytes: float | NDArray[Any]) -> float | FloatArray:
        """Return the seconds for ``nbytes``; an array gives an array."""
        seconds = np.max([time(np.asarray(nbytes)) for time in self.times], axis=0)
        return seconds if isinstance(nbytes, np.ndarray) else float(seconds)

    def __repr__(self) -> str:
        return "the slowest of " + "; ".join(map(repr, self.times))


def slowest(*times: AlphaBeta) -> AlphaBeta | Slowest:
    """Return the largest of ``times`` at each size; one of them if it is the largest at all sizes."""
    for time in times:
        if all(time.alpha >= other.alpha and time.beta >= other.beta for other in times):
            return time
    return Slowest(times)


def check_nbytes(nbytes: ArrayLike) -> FloatArray:
    """Return ``nbytes`` as float64. Raises `InvalidArgument` unless all are finite and at least 0."""
    try:
        amounts = np.asarray(nbytes, dtype=np.float64)
    except (TypeError, ValueError):
        amounts = np.array(np.nan)
    if not (np.isfinite(amounts) & (amounts >= 0)).all():
        raise InvalidArgument("nbytes", nbytes, "finite numbers of at least 0")
    return amounts


USELESS_FACTOR = 2.0
"""Factor beyond which a prediction counts as useless."""


@dataclass(frozen=True, eq=False)
class Fit:
    """A ``model`` fitted to measurements, with the residual of each.

    ``nbytes``, ``seconds`` and ``residuals`` have shape (points,), in order of size. A residual is relative, model /
    measured − 1: 0.1 if the model predicts 10 % too long. Residuals up to ``tolerance`` count as good.
    """

    model: AlphaBeta
    nbytes: FloatArray = field(repr=False)
    seconds: FloatArray = field(repr=False)
    residuals: FloatArray = field(repr=False)
    tolerance: float

    @property
    def good(self) -> tuple[float, float] | None:
        """Smallest and largest bytes of the longest run of sizes at which all points are within ``tolerance``.

        Of two equally long runs it is the one of larger messages; None if there is no such size.
        """
        best: tuple[int, tuple[float, float]] | None = None
        run: list[float] = []
        for size in np.unique(self.nbytes):
            within = (np.abs(self.residuals[self.nbytes == size]) <= self.tolerance).all()
            run = [*run, float(size)] if within else []
            if run and (best is None or len(run) >= best[0]):
                best = len(run), (run[0], run[-1])
        return best[1] if best else None

    @property
    def useless(self) -> tuple[float, ...]:
        """Sizes in bytes at which some point is off by `USELESS_FACTOR` or more."""
        factor = np.maximum(self.residuals + 1, 1 / np.maximum(self.residuals + 1, 1e-300))
        return tuple(np.unique(self.nbytes[factor >= USELESS_FACTOR]).tolist())

    def __repr__(self) -> str:
        span = self.good
        where = f"from {in_words(span[0], 'B')} to {in_words(span[1], 'B')}" if span else "nowhere"
        lost = f"; useless at {', '.join(in_words(size, 'B') for size in self.useless)}" if self.useless else ""
        return f"{self.model!r}; within {self.tolerance:.0%} {where}{lost}"


def fit(nbytes: ArrayLike, seconds: ArrayLike, tolerance: float = 0.1) -> Fit:
    """Fit α + β · bytes to measurements by least squares of the *relative* errors.

    With plain least squares the largest messages would decide alone, because their errors in seconds are the largest. A
    call that takes far longer than predicted has an error of at most 1, so that a single slow one has little weight.
    Neither α nor β may be negative: if the best line has one below 0, the result is the best line with 0 instead.

    ``nbytes`` and ``seconds`` of the calls have shape (points,), with at least two distinct sizes, and times above 0.
    ``tolerance`` is the relative error up to which the model counts as good. Raises `InvalidArgument`.
    """
    sizes, times = _points("nbytes", nbytes, 0, strict=False), _points("seconds", seconds, 0, strict=True)
    if len(sizes) != len(times):
        raise InvalidArgument("seconds", f"{len(times)} times", f"one time per size, {len(sizes)}")
    if len(np.unique(sizes)) < 2:
        raise InvalidArgument("nbytes", nbytes, "at least two different sizes")
    tolerance = check_float("tolerance", tolerance, above=0)
    order = np.argsort(sizes, kind="stable")
    sizes, times = sizes[order], times[order]
    model = _relative_least_squares(sizes, times)
    return Fit(model, sizes, times, model(sizes) / times - 1, tolerance)


def _relative_least_squares(sizes: FloatArray, times: FloatArray) -> AlphaBeta:
    """Return the α, β ≥ 0 that minimise Σ ((α + β · size) / time − 1)²."""
    unit = sizes.max()  # sizes in units of the largest, so that both columns are of like magnitude
    columns = np.stack([1 / times, sizes / unit / times], axis=1)
    scale = np.abs(columns).max(axis=0)
    best = np.linalg.lstsq(columns / scale, np.ones(len(times)))[0] / scale
    if (best < 0).any():  # then the constrained minimum lies on an edge
        edges = [np.array([_one(columns[:, 0]), 0.0]), np.array([0.0, _one(columns[:, 1])])]
        best = min(edges, key=lambda edge: float(((columns @ edge - 1) ** 2).sum()))
    return AlphaBeta(float(best[0]), float(best[1]) / unit)


def _one(column: FloatArray) -> float:
    """Return the factor that brings ``column`` closest to ones."""
    return float(column.sum() / (column @ column))


def _points(name: str, values: ArrayLike, least: float, strict: bool) -> FloatArray:
    try:
        points = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        points = np.empty((0, 0))
    in_range = points > least if strict else points >= least
    if points.ndim != 1 or not (np.isfinite(points) & in_range).all():
        raise InvalidArgument(name, values, f"finite numbers {'above' if strict else 'of at least'} {least:g}, 1-D")
    return points
