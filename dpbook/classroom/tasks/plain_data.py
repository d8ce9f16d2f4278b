"""Plain data: the part of a learner's value that cannot act, and the comparison of such data.

An answer may return objects that lie when they are asked (``__eq__``, ``__array__``, ``__bool__``), and a notebook may
replace ``np.allclose``. So values are taken apart by their exact type and compared with ufuncs held since import.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpbook.classroom.tasks.report import a, describe, describe_kind, rows
from dpbook.collectives import Schedule, from_json, to_json
from dpbook.core import DpbookError

MAX_BYTES = 256 * 2**20
MAX_ITEMS = 200_000
MAX_DEPTH = 20
TOO_LARGE = f"a value of more than {MAX_ITEMS:,} items, or nested more than {MAX_DEPTH} deep"

_array, _argwhere, _errstate, _ndarray = np.array, np.argwhere, np.errstate, np.ndarray
_equal, _not_equal, _less_equal, _subtract, _absolute = np.equal, np.not_equal, np.less_equal, np.subtract, np.absolute
_or, _and, _not, _all = np.logical_or, np.logical_and, np.logical_not, np.all
_SCALARS = frozenset(scalar for scalar in np.sctypeDict.values() if np.dtype(scalar).kind in "biufc")
_ATOMS = frozenset({bool, int, float, complex, str, bytes, type(None), type(...)})
_BASES = ((str, str.__str__), (int, int.__int__), (float, float.__float__))


class NotPlain(DpbookError):
    """A value has a type that no task asks for; ``str`` describes it, beginning with an article."""


def plain(value: object) -> Any:
    """Return ``value`` as plain data: numbers, strings, None, lists, tuples, sets, dicts, base arrays, `Schedule`.

    Subclasses become their base class, fractions, NumPy scalars and 0-d arrays Python numbers; a schedule is written
    out and read back. Code of the value may run meanwhile (lazy rounds, for one), so call this behind the guard.
    Raises `NotPlain` for anything else and for what is too large.
    """
    return _plain(value, [MAX_ITEMS], MAX_DEPTH)


def _plain(value: Any, remaining: list[int], depth: int) -> Any:
    remaining[0] -= 1
    if remaining[0] < 0 or depth < 0:
        raise NotPlain(TOO_LARGE)
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind in _SCALARS:
        return value.item()
    if issubclass(kind, _ndarray):
        dtype, size = _ndarray.dtype.__get__(value), _ndarray.size.__get__(value)
        if dtype.kind not in "biufc":
            raise NotPlain(f"an array of dtype {dtype}")
        if size * dtype.itemsize > MAX_BYTES:
            raise NotPlain(f"an array of {size * dtype.itemsize:,} bytes")
        array = _array(value, copy=True, subok=False)
        return array.item() if array.ndim == 0 else array
    if kind is Fraction:
        return float(value)
    if issubclass(kind, Schedule):
        return from_json(to_json(value))
    for base, convert in _BASES:
        if issubclass(kind, base):
            return convert(value)
    for container in (list, tuple, set, frozenset, dict):
        if issubclass(kind, container):
            if container.__len__(value) > remaining[0]:
                raise NotPlain(TOO_LARGE)
            if container is dict:
                return {_plain(k, remaining, depth - 1): _plain(v, remaining, depth - 1) for k, v in dict.items(value)}
            return container(_plain(item, remaining, depth - 1) for item in container.__iter__(value))
    raise NotPlain(a(kind.__name__))


class Difference(NamedTuple):
    """First place in which two values differ, and both values there, in words."""

    where: str
    expected: str
    got: str


def difference(expected: Any, got: Any, bound: Any = None, axes: Sequence[str] = ()) -> Difference | None:
    """Return the first place where ``got`` is not ``expected``, or None. Both are plain data.

    Types, lengths, shapes and dtypes must agree: an array is compared with an array of its dtype, a list or tuple with
    a list, tuple or 1-D array, a number with a number. With ``bound`` (a number, or for arrays an array that
    broadcasts) numbers may differ by so much. NaN equals NaN; with a bound it is near nothing.
    ``axes`` names an array's dimensions in what is reported: ``("rank", "element")``.
    """
    if type(expected) is _ndarray:
        return _array_difference(expected, got, bound, axes)
    if type(expected) in (list, tuple):
        items = got.tolist() if type(got) is _ndarray else got
        if type(items) not in (list, tuple) or len(items) != len(expected):
            return _kind_difference(expected, got)
        describe_place: Callable[[Any], str] = "item {}".format
        pairs = [(index, *pair) for index, pair in enumerate(zip(expected, items, strict=True))]
    elif type(expected) is dict:
        if type(got) is not dict or expected.keys() != got.keys():
            return Difference("", f"a dict with the keys {describe(list(expected))}", describe_kind(got))
        describe_place, pairs = describe, [(key, value, got[key]) for key, value in expected.items()]
    elif type(expected) in (int, float, complex):
        if type(got) not in (int, float, complex):
            return _kind_difference(expected, got)
        return None if _number_agrees(expected, got, bound) else Difference("", describe(expected), describe(got))
    else:
        agrees = type(got) is type(expected) and got == expected
        return None if agrees else Difference("", describe(expected), describe(got))
    for place, e, g in pairs:
        found = difference(e, g, bound, axes)
        if found is not None:
            return found._replace(where=", ".join(filter(None, (describe_place(place), found.where))))
    return None


def _kind_difference(expected: Any, got: Any) -> Difference:
    return Difference("", describe_kind(expected), describe_kind(got))


def _number_agrees(expected: complex, got: complex, bound: Any) -> bool:
    if expected == got:
        return True
    if bound is None:
        return expected != expected and got != got
    try:
        return bool(abs(expected - got) <= bound)
    except OverflowError:  # an int beyond every float
        return False


def _array_difference(expected: NDArray[Any], got: Any, bound: Any, axes: Sequence[str]) -> Difference | None:
    if type(got) is not _ndarray or got.shape != expected.shape or got.dtype != expected.dtype:
        return _kind_difference(expected, got)
    with _errstate(all="ignore"):
        agrees = _equal(expected, got)
        if bound is None:
            agrees = _or(agrees, _and(_not_equal(expected, expected), _not_equal(got, got)))
        else:
            wide = "complex128" if expected.dtype.kind == "c" else "float64"
            error = _absolute(_subtract(expected.astype(wide), got.astype(wide)))
            agrees = _or(agrees, _less_equal(error, bound))
    if _all(agrees):
        return None
    disagrees = _not(agrees)
    wrong = _argwhere(disagrees)
    index = tuple(wrong[0].tolist())
    unnamed = [("element", index[0] if len(index) == 1 else index)]
    named = zip(axes, index, strict=True) if len(axes) == len(index) else unnamed
    place = ", ".join(f"{axis} {position}" for axis, position in named)
    where = f"{place}: {expected[index].item()!r} expected, {got[index].item()!r} got; "
    where += f"{len(wrong)} of {expected.size} elements are wrong"
    if expected.ndim == 2 and len(expected) > 1:
        name = axes[0] if len(axes) == 2 else "row"
        return Difference(where, rows(expected, disagrees, name), rows(got, disagrees, name, "  ←"))
    return Difference(where, describe(expected), describe(got))
