"""Numbers that know how wrong they may be: the code that computes a gradient also yields its rounding-error bound.

A `Rounded` array holds the value that this machine computed and a bound on how far *any* evaluation of the same formula
in the same dtype is from the exact result, whatever order it adds in. That freedom is needed: a matrix product blocks
its sums by the shape of its operands, so a row's outputs in a shard differ in their last bits from those of the same
row in the whole batch, long before anything is averaged. The analysis is a running one (Higham, Accuracy and Stability
of Numerical Algorithms, 2nd edition, 2002, section 3.3) that takes γ_n for every sum (see `rounding`).
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from dpbook.core import InvalidArgument
from dpbook.replicas.array import Array
from dpbook.replicas.exactness.rounding import SAFETY, gamma, unit_roundoff

FUNCTION_ULPS = 4  # what NumPy aims at for exp, log and tanh; the worst found on this book's inputs was 2.3
EXTRA = 4  # roundings that averaging over ranks adds to a term's: ÷ local size, weight, × weight, ÷ world


class Rounded(NDArrayOperatorsMixin):
    """An array with a bound on its rounding error.

    Attributes:
        value: floats as computed here.
        error: float64, of the same shape: every evaluation is at most this far from the exact result, so that two
            evaluations are at most ``2 * error`` apart, and any is at most |value| + 2 error in size.

    It knows + − × ÷ @ with itself and plain arrays (which are exact), exp, log, tanh, sqrt, `sum`, `max`, ``T``,
    `swapaxes` and indexing. ``failure`` makes the bounds of sums probable instead of certain, as in `rounding.gamma`.
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
        return self._with(value, error + self._gamma(self.shape[axis] - 1 + EXTRA) * sizes)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **settings: Any) -> Any:
        if method != "__call__" or settings:
            return NotImplemented
        if ufunc in _SLOPES:
            return self._apply(ufunc)
        if ufunc in _PAIRS:
            failure = next(x.failure for x in inputs if isinstance(x, Rounded))
            a, b = (x if isinstance(x, Rounded) else Rounded(x, 0.0, failure) for x in inputs)
            value = ufunc(*(x.value if isinstance(x, Rounded) else x for x in inputs))  # a Python scalar stays weak
            return Rounded(value, _PAIRS[ufunc](a, b, value), failure)
        return NotImplemented

    def _apply(self, ufunc: np.ufunc) -> "Rounded":
        """A smooth function: its argument's error times its steepest slope nearby, and its own error."""
        value = ufunc(self.value)
        ulps = 0.5 if ufunc is np.sqrt else FUNCTION_ULPS
        own = 2 * ulps * unit_roundoff(self.dtype)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            inherited = np.where(self.error > 0, self.error * _SLOPES[ufunc](self), 0.0)
        return self._with(value, inherited + own / (1 - own) * (np.abs(value) + 2 * inherited) + _tiny(value))

    def _with(self, value: Array, error: Array) -> "Rounded":
        return Rounded(value, error, self.failure)

    def _gamma(self, n_ops: int) -> float:
        return gamma(n_ops, unit_roundoff(self.dtype), self.failure)


def _size(x: Rounded) -> Array:
    """How large any evaluation of ``x`` can be."""
    size: Array = np.abs(x.value, dtype=np.float64) + 2 * x.error
    return size


def _tiny(value: Array) -> float:
    """The absolute error of a result that underflows."""
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
    """Return how far two computations of the gradient of the mean loss over (x, y) can be apart by rounding alone.

    The computations may cut the examples into shards of any sizes, weight the shards' gradients by size and average
    them over ranks in any order; each sum in each layer may be taken in any order too.

    Args:
        params: (size,) of float32 or float64, the model's parameters, which are taken to be exact.
        x, y: the whole batch, as for ``model.gradient``.
        failure: if given, bounds of sums hold except with this probability (see `rounding.gamma`); a sum of n terms
            then counts √n. With thousands of examples in float32 only that is sharp enough to miss one of them.

    Returns:
        Bound (size,) of float64 for each parameter's |difference|. It is proportional to the terms that are added, not
        to their sum, so it is honest where a gradient nearly cancels.
    """
    if len(x) == 0:
        raise InvalidArgument("x", x, "one or more examples")
    p = {name: Rounded(tensor, 0.0, failure) for name, tensor in model.views(params).items()}
    sums = model.sum_gradients(p, x, np.asarray(y))
    means = [sums[name].ravel() / len(x) for name in p]
    return 2 * SAFETY * np.concatenate([mean.error for mean in means])
