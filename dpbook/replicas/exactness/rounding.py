"""How much the order of a sum may matter: bounds from the number of terms and their sizes, before any is added.

A floating-point addition returns the exact sum times 1 + δ with |δ| ≤ u, the unit roundoff. After n roundings the
factor is 1 + θ with |θ| ≤ γ_n = n u / (1 − n u), so a sum of n terms is within γ_{n−1} Σ|x| of the exact one *in any
order* (Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, 2002, sections 3.1 and 4.2), and two orders
are within twice that of each other. What is further apart is no matter of rounding.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from dpbook.core import InvalidArgument, check_int
from dpbook.replicas.array import Array

SAFETY = 1.001  # a bound is computed in float64 and rounded itself: up to 10¹² terms this covers it

_MOST_PRODUCTS = 2.0**60  # the products of n factors that a failure probability is shared among: more than any run has


def unit_roundoff(dtype: DTypeLike) -> float:
    """Return u, the largest relative error of one rounding to nearest: 2⁻⁵³ for float64, 2⁻²⁴ for float32."""
    return float(np.finfo(dtype).eps) / 2


def gamma(n_ops: int, unit: float, failure: float | None = None) -> float:
    """Return γ_n, the largest relative change that ``n_ops`` roundings of unit roundoff ``unit`` can make.

    With ``failure`` it is the smaller of that and γ̃_n(λ) = exp(λ √n u + n u² / (1 − u)) − 1, which grows with √n only
    (Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, 2019, theorem 2.4). If rounding errors
    are independent and 0 on average, the theorem bounds one product of n factors 1 + δ, such as a term of a sum picks
    up; λ is chosen so that for 2⁶⁰ such products together it fails with probability ``failure`` at most.

    Raises:
        InvalidArgument: n u is 1 or more: then γ_n bounds nothing (n = 256 in bfloat16).
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
        raise InvalidArgument("n_ops", n, f"below 1/u = {1 / unit:g}: after so many roundings nothing is certain")
    return certain


def rounding_bound(
    terms: ArrayLike, n_ops: int | None = None, *, unit: float | None = None, failure: float | None = None
) -> Array:
    """Return how far two ways of adding up ``terms`` along axis 0 can be apart: 2 γ Σ|terms|, element by element.

    Args:
        terms: (n, …) floats, such as the ranks' gradients (world, size).
        n_ops: roundings that a term goes through on its way into either result. The default, n − 1, holds for a sum in
            any order; the height of the tree is enough for a tree. Count 1 for each product or quotient on the way:
            the mean of n is ``rounding_bound(terms, n_ops=n) / n``.
        unit: unit roundoff of the arithmetic, 2⁻⁸ for bfloat16; by default that of the dtype of ``terms``.
        failure: if given, the sharper bound of `gamma`, with this probability of being wrong.

    Returns:
        float64 of the shape of one term. It holds barring overflow and quotients that underflow.
    """
    terms = np.asarray(terms)
    if terms.ndim == 0 or len(terms) == 0 or terms.dtype.kind != "f":
        raise InvalidArgument("terms", f"{terms.dtype} array of shape {terms.shape}", "floats, one or more terms")
    n_ops = len(terms) - 1 if n_ops is None else n_ops
    growth = gamma(n_ops, unit_roundoff(terms.dtype) if unit is None else unit, failure)
    bound: Array = 2 * SAFETY * growth * np.abs(terms, dtype=np.float64).sum(axis=0)
    return bound
