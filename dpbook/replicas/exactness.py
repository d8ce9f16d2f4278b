"""Comparison of two results: differences in value and in representable floats, and whether rounding explains them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from dpbook.core import InvalidArgument
from dpbook.replicas.networks import Array

_BITS: dict[np.dtype[Any], type[np.signedinteger[Any]]] = {
    np.dtype(np.float16): np.int16,
    np.dtype(np.float32): np.int32,
    np.dtype(np.float64): np.int64,
}
NAN_DISTANCE = 2**64 - 1  # larger than the distance between any two numbers


def ulp_distance(a: ArrayLike, b: ArrayLike) -> Array:
    """Return the number of steps from one float to the next between ``a`` and ``b``, element by element, as uint64.

    Both have the same dtype, float16, float32 or float64, and shapes that broadcast. Neighbours have distance 1; equal
    numbers, and +0 and −0, have distance 0; infinity is one step beyond the largest finite float. If either is NaN the
    distance is `NAN_DISTANCE`, so that a NaN is never near anything, not even itself.
    """
    a, b = _pair(a, b)
    x, y = _place(a), _place(b)
    # Unsigned subtraction wraps around, which is exact here, since the true difference always fits into 64 bits.
    steps = np.where(x > y, x.astype(np.uint64) - y.astype(np.uint64), y.astype(np.uint64) - x.astype(np.uint64))
    return np.where(np.isnan(a) | np.isnan(b), np.uint64(NAN_DISTANCE), steps)


def _place(values: Array) -> Array:
    """Number the floats in their order on the real line, with both zeros at 0, as int64."""
    bits = _bits(values).astype(np.int64)
    sign_bit = np.int64(np.iinfo(_BITS[values.dtype]).min)
    return np.where(bits < 0, sign_bit - bits, bits)  # a float is a sign and a magnitude, not a two's complement


def _bits(values: Array) -> Array:
    return values.view(_BITS[values.dtype])


@dataclass(frozen=True)
class Drift:
    """Difference between replicas: the largest absolute one, and whether all have the same bits."""

    largest: float
    identical: bool

    def __repr__(self) -> str:
        return f"Drift({self.largest:.3g}, {'bit-identical' if self.identical else 'not bit-identical'})"


def drift(replicas: Array | Sequence[Array]) -> Drift:
    """Return the largest absolute difference between any two replicas' parameters.

    ``replicas`` is an array (world, size) of floats, or a sequence of ``world`` flat arrays of one dtype and size. The
    difference is NaN if a parameter is NaN. +0 and −0 differ by 0, but in their bits.
    """
    try:
        stacked = np.stack(list(replicas))
        same_dtype = all(np.asarray(replica).dtype == stacked.dtype for replica in replicas)
    except (TypeError, ValueError):
        raise InvalidArgument("replicas", replicas, "one or more arrays of one size") from None
    if stacked.ndim != 2 or stacked.size == 0 or stacked.dtype not in _BITS or not same_dtype:
        raise InvalidArgument("replicas", f"{stacked.dtype} array of shape {stacked.shape}", "floats (world, size)")
    bits = _bits(stacked)
    high, low = stacked.max(axis=0).astype(np.float64), stacked.min(axis=0).astype(np.float64)
    spread = np.subtract(high, low, out=np.zeros_like(high), where=high != low)  # equal infinities differ by 0
    return Drift(float(spread.max()), bool((bits == bits[0]).all()))


Verdict: TypeAlias = Literal["bit-identical", "rounding", "different"]


@dataclass(frozen=True)
class Exactness:
    """Differences of a result from its reference, and whether rounding explains them.

    Attributes:
        max_error: largest absolute difference of an element; NaN if an element is NaN.
        ulps: largest `ulp_distance` of an element. Near zero it is large even for a tiny error.
        differing: number of elements that are not equal.
        size: number of elements compared.
        bound: largest of the elements' bounds, or None if none was given.
        verdict: "bit-identical" if all bits are equal (a NaN never is), "rounding" if every element is within its
            bound, otherwise "different". None if there are differences and no bound.
    """

    max_error: float
    ulps: int
    differing: int
    size: int
    bound: float | None
    verdict: Verdict | None

    def __repr__(self) -> str:
        if not self.differing:
            return f"Exactness({self.verdict or 'signs of zero differ'}: all {self.size:,} elements equal)"
        verdict = f"{self.verdict}: " if self.verdict else ""
        distance = "NaN" if self.ulps == NAN_DISTANCE else f"{self.ulps:,} ulp"
        bound = "" if self.bound is None else f", bound {self.bound:.2g}"
        differing = f"{self.differing:,} of {self.size:,} differ"
        return f"Exactness({verdict}max error {self.max_error:.3g}, at most {distance}, {differing}{bound})"


def compare(averaged: ArrayLike, big_batch: ArrayLike, bound: ArrayLike | None = None) -> Exactness:
    """Compare an averaged gradient, (size,) or (world, size), with the gradient (size,) of the whole batch.

    Both must have one dtype: float16, float32 or float64. ``bound`` is the largest error of an element due to rounding,
    a number or an array (size,), as `gradient_bound` returns it for gradients and `rounding_bound` for sums. An
    overflow to infinity is no rounding.
    """
    a, b = _pair(averaged, big_batch)
    if a.size == 0:
        raise InvalidArgument("averaged", f"array of shape {a.shape}", "an array with elements")
    limits = None if bound is None else _check_bound(bound, a.shape)
    steps = ulp_distance(a, b)
    errors = np.zeros(a.shape)
    np.subtract(a, b, out=errors, where=steps != 0, dtype=np.float64)  # equal infinities differ by 0
    errors = np.abs(errors)
    verdict: Verdict | None = None
    if not steps.any() and (_bits(a) == _bits(b)).all():
        verdict = "bit-identical"
    elif limits is not None:
        verdict = "rounding" if (errors <= limits).all() else "different"  # no NaN is within a bound
    largest = None if limits is None else float(limits.max())
    return Exactness(float(errors.max()), int(steps.max()), int(np.count_nonzero(steps)), a.size, largest, verdict)


def _check_bound(bound: ArrayLike, shape: tuple[int, ...]) -> Array:
    try:
        limits = np.broadcast_to(np.asarray(bound, np.float64), shape)
    except (TypeError, ValueError):
        raise InvalidArgument("bound", bound, f"numbers of a shape that fits {shape}") from None
    if not ((limits >= 0) & np.isfinite(limits)).all():
        raise InvalidArgument("bound", bound, "finite and at least 0 in every element")
    return limits


def _pair(a: ArrayLike, b: ArrayLike) -> tuple[Array, Array]:
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype not in _BITS:
        raise InvalidArgument("the first array", a.dtype, "of dtype float16, float32 or float64")
    if b.dtype != a.dtype:
        raise InvalidArgument("the second array", b.dtype, f"of dtype {a.dtype} like the first")
    try:
        a, b = np.broadcast_arrays(a, b)
    except ValueError:
        raise InvalidArgument("the second array", b.shape, f"of a shape that fits {a.shape}") from None
    return a, b
