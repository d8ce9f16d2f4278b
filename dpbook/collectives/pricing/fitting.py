"""α and β of a measured sweep over message sizes, and where the two describe it."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from dpbook.collectives.pricing.alpha_beta import AlphaBeta, FloatArray
from dpbook.core import InvalidArgument, check_float, in_words

USELESS = 2.0
"""A prediction is useless where it is wrong by more than this factor."""


@dataclass(frozen=True, eq=False)
class Fit:
    """``model``, fitted to measurements, and how far it is from each.

    ``nbytes``, ``seconds`` and ``residuals`` have shape (points,), in order of size. A residual is relative: model /
    measured − 1, so 0.1 where the model predicts 10 % too long. ``tolerance`` is what counts as good.
    """

    model: AlphaBeta
    nbytes: FloatArray = field(repr=False)
    seconds: FloatArray = field(repr=False)
    residuals: FloatArray = field(repr=False)
    tolerance: float

    @property
    def good(self) -> tuple[float, float] | None:
        """Smallest and largest bytes of the longest run of sizes at which all points are within ``tolerance``.

        Of two runs with as many sizes the one of larger messages. None if there is no such size.
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
        """The sizes, in bytes, at which some point is twice what the model says, or half of it, or worse."""
        factor = np.maximum(self.residuals + 1, 1 / np.maximum(self.residuals + 1, 1e-300))
        return tuple(np.unique(self.nbytes[factor >= USELESS]).tolist())

    def __repr__(self) -> str:
        span = self.good
        where = f"from {in_words(span[0], 'B')} to {in_words(span[1], 'B')}" if span else "nowhere"
        lost = f"; useless at {', '.join(in_words(size, 'B') for size in self.useless)}" if self.useless else ""
        return f"{self.model!r}; within {self.tolerance:.0%} {where}{lost}"


def fit(nbytes: ArrayLike, seconds: ArrayLike, tolerance: float = 0.1) -> Fit:
    """Fit α + β · bytes to measurements by least squares of the *relative* errors.

    Plain least squares would let the largest messages decide alone: their errors are the largest in seconds. A call
    that takes far longer than the model says is an error of at most 1, so that a stray slow one moves little. Neither α
    nor β may come out negative: where the best line has one below 0, the best with 0 in its place is taken.

    Args:
        nbytes: bytes of each call, shape (points,), at least two different ones; a size may come several times.
        seconds: time of each call, shape (points,), above 0.
        tolerance: relative error up to which the model counts as good.

    Raises `InvalidArgument`.
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
    """The α, β ≥ 0 that make Σ ((α + β · size) / time − 1)² least."""
    unit = sizes.max()  # sizes in units of the largest, so that both columns are of like magnitude
    columns = np.stack([1 / times, sizes / unit / times], axis=1)
    scale = np.abs(columns).max(axis=0)
    best = np.linalg.lstsq(columns / scale, np.ones(len(times)))[0] / scale
    if (best < 0).any():  # then the constrained least lies on an edge; only one is an improvement on 0
        edges = [np.array([_one(columns[:, 0]), 0.0]), np.array([0.0, _one(columns[:, 1])])]
        best = min(edges, key=lambda edge: float(((columns @ edge - 1) ** 2).sum()))
    return AlphaBeta(float(best[0]), float(best[1]) / unit)


def _one(column: FloatArray) -> float:
    """The factor that brings ``column`` closest to ones."""
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
