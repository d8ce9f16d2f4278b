"""Bounds on rounding errors: of sums in any order, and of gradients, from the code that computes them.

A floating-point addition returns the exact sum times 1 + δ with |δ| ≤ u, the unit roundoff. After n roundings the
factor is 1 + θ with |θ| ≤ γ_n = n u / (1 − n u), so a sum of n terms is within γ_{n−1} Σ|x| of the exact one *in any
order* (Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, 2002, sections 3.1 and 4.2), and two orders
are within twice that of each other. Rounding does not explain a larger difference.

A `Rounded` array has the value that this machine computed, and a bound on the distance of *any* evaluation of the same
formula in the same dtype from the exact result, in any order of addition. The order matters: a matrix product blocks
its sums by the shape of its operands, so a row's outputs in a shard differ in their last bits from those of the same
row in the whole batch, long before any averaging. The analysis is a running one (Higham, section 3.3) that takes γ_n
for every sum.
"""

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import ArrayLike, DTypeLike

from dpbook.core import InvalidArgument, check_int
from dpbook.replicas.networks import Array

SAFETY = 1.001  # covers the rounding of the bound itself, in float64, up to 10¹² terms

_MOST_PRODUCTS = 2.0**60  # number of products that share a failure probability; more than in any run


def unit_roundoff(dtype: DTypeLike) -> float:
    """Return u, the largest relative error of one rounding to nearest: 2⁻⁵³ for float64, 2⁻²⁴ for float32."""
    return float(np.finfo(dtype).eps) / 2


def gamma(n_ops: int, unit: float, failure: float | None = None) -> float:
    """Return γ_n, the largest relative change by ``n_ops`` roundings of unit roundoff ``unit``.

    With ``failure`` it is the smaller of γ_n and γ̃_n(λ) = exp(λ √n u + n u² / (1 − u)) − 1, which grows with √n only
    (Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, 2019, theorem 2.4). If rounding errors
    are independent and 0 on average, the theorem bounds a product of n factors 1 + δ, which a term of a sum acquires.
    λ is chosen so that the bound fails for any of 2⁶⁰ such products with probability ``failure`` at most. Raises
    `InvalidArgument` if n u is 1 or more, so that γ_n is no bound (n = 256 in bfloat16).
    """
    n = check_int("n_ops", n_ops, 0)
    if not 0 < unit < 1:
        raise InvalidArgument("unit", unit, "a unit roundoff between 0 and 1")
    certain = n * unit / (1 - n * unit) if n * unit < 1 else math.inf
    if failure is not None:
        if not 0 < failure < 1:
            raise InvalidArgument("failure", failure, "a probability between 0 and 1")
        spread = math.sqrt(2 * math.log(2 * _MOST_PRODUCTS / failure)) / (1 - unit)  # λ of 2 exp(−λ²(1 − u)²/2)
        exponent = spread * math.sqrt(n) * unit + n * unit**2 / (1 - unit)
        certain = min(certain, math.expm1(exponent) if exponent < 700 else math.inf)
    if math.isinf(certain):
        raise InvalidArgument("n_ops", n, f"below 1/u = {1 / unit:g}: no bound holds after so many roundings")
    return certain


def rounding_bound(
    terms: ArrayLike, n_ops: int | None = None, *, unit: float | None = None, failure: float | None = None
) -> Array:
    """Return the largest difference between two sums of ``terms`` along axis 0, 2 γ Σ|terms|, element by element.

    Args:
        terms: (n, …) floats, such as the ranks' gradients (world, size).
        n_ops: number of roundings of a term in either result. The default, n − 1, holds for a sum in any order; for a
            tree its height is enough. Count 1 for each product or quotient too: the bound of a mean of n terms is
            ``rounding_bound(terms, n_ops=n) / n``.
        unit: unit roundoff of the arithmetic, 2⁻⁸ for bfloat16; by default that of the dtype of ``terms``.
        failure: probability with which the sharper bound of `gamma` may fail; None gives a certain bound.

    The bound is float64 with the shape of one term. It holds unless sums overflow or quotients underflow.
    """
    terms = np.asarray(terms)
    if terms.ndim == 0 or len(terms) == 0 or terms.dtype.kind != "f":
        raise InvalidArgument("terms", f"{terms.dtype} array of shape {terms.shape}", "floats, one or more terms")
    n_ops = len(terms) - 1 if n_ops is None else n_ops
    growth = gamma(n_ops, unit_roundoff(terms.dtype) if unit is None else unit, failure)
    bound: Array = 2 * SAFETY * growth * np.abs(terms, dtype=np.float64).sum(axis=0)
    return bound


FUNCTION_ULPS = 4  # NumPy's goal for exp, log and tanh; the largest error on this book's inputs was 2.3
EXTRA = 4  # further roundings by averaging over ranks: ÷ local size, weight, × weight, ÷ world


class Rounded(NDArrayOperatorsMixin):
    """An array with a bound on its rounding error.

    Attributes:
        value: floats as computed on this machine.
        error: float64 of the same shape. Every evaluation is at most this far from the exact result, so two
            evaluations differ by at most ``2 * error``, and the size of any is at most |value| + 2 error.

    It supports + − × ÷ @ with other `Rounded` and plain arrays (which are exact), exp, log, tanh, sqrt, `sum`, `max`,
    ``T``, `swapaxes` and indexing. ``failure`` makes the bounds of sums probable instead of certain, as in `gamma`.
    """

    def __init__(self, value: Array, error: Array | float = 0.0, failure: float | None = None) -> None:
        self.value = np.asarray(value)
        self.error = np.broadcast_to(np.asarray(error, np.float64), self.value.shape)
        self.failure = failure

    shape = property(lambda self: self.value.shape)
    dtype = property(lambda self: self.value.dtype)

    def __len__(self) -> int:
        return len(self.value)

    def __repr__(self) -> str:
        return f"Rounded({self.value!r} ± {self.error!r})"

    def __getitem__(self, key: Any) -> "Rounded":
        return self._with(self.value[key], self.error[key])

    @property
    def T(self) -> "Rounded":
        return self._with(self.value.T, self.error.T)

    def swapaxes(self, first: int, second: int) -> "Rounded":
        return self._with(self.value.swapaxes(first, second), self.error.swapaxes(first, second))

    def ravel(self) -> "Rounded":
        return self._with(self.value.ravel(), self.error.ravel())

    def max(self, axis: int | None = None, keepdims: bool = False) -> "Rounded":
        return self._with(self.value.max(axis=axis, keepdims=keepdims), self.error.max(axis=axis, keepdims=keepdims))

    def sum(self, axis: int, keepdims: bool = False) -> "Rounded":
        value, error = (part.sum(axis=axis, keepdims=keepdims) for part in (self.value, self.error))
        sizes = _size(self).sum(axis=axis, keepdims=keepdims)
        growth = gamma(self.shape[axis] - 1 + EXTRA, unit_roundoff(self.dtype), self.failure)
        return self._with(value, error + growth * sizes)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **settings: Any) -> Any:
        if method != "__call__" or settings:
            return NotImplemented
        if ufunc in _SLOPES:
            return self._apply(ufunc)
        if ufunc in _PAIRS:
            failure = next(x.failure for x in inputs if isinstance(x, Rounded))
            a, b = (x if isinstance(x, Rounded) else Rounded(x, 0.0, failure) for x in inputs)
            # A Python scalar does not change the dtype.
            value = ufunc(*(x.value if isinstance(x, Rounded) else x for x in inputs))
            return Rounded(value, _PAIRS[ufunc](a, b, value), failure)
        return NotImplemented

    def _apply(self, ufunc: np.ufunc) -> "Rounded":
        """Apply a smooth function; the argument's error is multiplied by the steepest slope nearby."""
        value = ufunc(self.value)
        ulps = 0.5 if ufunc is np.sqrt else FUNCTION_ULPS
        relative = 2 * ulps * unit_roundoff(self.dtype)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            inherited = np.where(self.error > 0, self.error * _SLOPES[ufunc](self), 0.0)
        return self._with(value, inherited + relative / (1 - relative) * (np.abs(value) + 2 * inherited) + _tiny(value))

    def _with(self, value: Array, error: Array) -> "Rounded":
        return Rounded(value, error, self.failure)


def _size(x: Rounded) -> Array:
    """Return the largest size of any evaluation of ``x``."""
    size: Array = np.abs(x.value, dtype=np.float64) + 2 * x.error
    return size


def _tiny(value: Array) -> float:
    """Return the absolute error of a result that underflows."""
    return float(np.finfo(value.dtype).smallest_subnormal)


def _one_rounding(value: Array) -> float:
    return gamma(1, unit_roundoff(value.dtype))


def _sum_error(a: Rounded, b: Rounded, value: Array) -> Array:
    inherited = a.error + b.error
    error: Array = inherited + _one_rounding(value) * (np.abs(value) + 2 * inherited)
    return error


def _product_error(a: Rounded, b: Rounded, value: Array) -> Array:
    inherited = a.error * _size(b) + _size(a) * b.error
    error: Array = inherited + _one_rounding(value) * _size(a) * _size(b) + _tiny(value)
    return error


def _quotient_error(a: Rounded, b: Rounded, value: Array) -> Array:
    smallest = _nearest_zero(b)
    with np.errstate(divide="ignore", invalid="ignore"):
        inherited = a.error / smallest + _size(a) * b.error / smallest**2
        error: Array = inherited + _one_rounding(value) * _size(a) / smallest + _tiny(value)
    return np.where(smallest > 0, error, np.inf)


def _matmul_error(a: Rounded, b: Rounded, value: Array) -> Array:
    terms = a.shape[-1]
    inherited = a.error @ _size(b) + _size(a) @ b.error
    growth = gamma(terms + EXTRA, unit_roundoff(value.dtype), a.failure)
    error: Array = inherited + growth * (_size(a) @ _size(b)) + terms * _tiny(value)
    return error


_PAIRS: dict[np.ufunc, Callable[[Rounded, Rounded, Array], Array]] = {
    np.add: _sum_error,
    np.subtract: _sum_error,
    np.multiply: _product_error,
    np.divide: _quotient_error,
    np.matmul: _matmul_error,
}


def _nearest_zero(x: Rounded) -> Array:
    nearest: Array = np.maximum(np.abs(x.value, dtype=np.float64) - 2 * x.error, 0)
    return nearest


_SLOPES: dict[np.ufunc, Callable[[Rounded], Array]] = {
    np.exp: lambda x: np.exp(x.value + 2 * x.error),
    np.tanh: lambda x: 1 - np.tanh(_nearest_zero(x)) ** 2,
    np.log: lambda x: 1 / _nearest_zero(x),
    np.sqrt: lambda x: 0.5 / np.sqrt(_nearest_zero(x)),
}


class Differentiable(Protocol):
    """A model whose gradient is written with operators alone, so that it also runs on `Rounded` parameters."""

    def views(self, params: Array) -> dict[str, Array]: ...

    def sum_gradients(self, p: dict[str, Any], x: Array, y: Array) -> dict[str, Any]: ...


def gradient_bound(model: Differentiable, params: Array, x: Array, y: Array, *, failure: float | None = None) -> Array:
    """Return the largest difference between two computations of the gradient of the mean loss over (x, y), by rounding.

    The computations may cut the examples into shards of any sizes, weight the shards' gradients by size, and average
    them over ranks in any order. Each sum in each layer may have any order too. The parameters, (size,) of float32 or
    float64, are taken to be exact. ``failure`` is the probability with which the bounds of sums may fail (see `gamma`);
    a sum of n terms then counts √n. With thousands of examples in float32, only this bound is sharp enough to reveal a
    missing example.

    The bound (size,) of each parameter's |difference| is float64. It is proportional to the terms, not to their sum, so
    it also holds if a gradient nearly cancels.
    """
    if len(x) == 0:
        raise InvalidArgument("x", x, "one or more examples")
    p = {name: Rounded(tensor, 0.0, failure) for name, tensor in model.views(params).items()}
    sums = model.sum_gradients(p, x, np.asarray(y))
    means = [sums[name].ravel() / len(x) for name in p]
    return 2 * SAFETY * np.concatenate([mean.error for mean in means])
