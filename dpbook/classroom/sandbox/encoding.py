"""Plain data as JSON, arrays by reference: what comes back from an answer."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dpbook.classroom.sandbox.arrays import BadReference, SharedArrays
from dpbook.classroom.tasks.plain_data import MAX_DEPTH, MAX_ITEMS, NotPlain, plain
from dpbook.collectives import Schedule, from_json, to_json
from dpbook.core import DpbookError

_PLAIN_JSON = frozenset({bool, float, str, type(None)})
_BIG = 2**63
KEY, PAGE = 50, 4096
"""A key costs as much as so many items, since keys may be chosen to have one hash; an array as its pages."""
_SEQUENCES: dict[str, Callable[[Any], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}


class BadValue(Exception):
    """What came stands for no value."""


def write(value: Any, arrays: SharedArrays, live: Callable[[Any], dict[str, Any]]) -> Any:
    """What `json` can write in place of ``value``. ``live`` names what is no plain data. Raises `NotPlain`."""
    return _written(value, arrays, live, [MAX_ITEMS], MAX_DEPTH)


def _written(
    value: Any, arrays: SharedArrays, live: Callable[[Any], dict[str, Any]], left: list[int], depth: int
) -> Any:
    left[0] -= 1
    if left[0] < 0 or depth < 0:
        raise NotPlain(f"a value of more than {MAX_ITEMS:,} items, or nested more than {MAX_DEPTH} deep")
    kind = type(value)
    if kind in _PLAIN_JSON or (kind is int and -_BIG < value < _BIG):
        return value
    if kind in (list, tuple, set, frozenset):
        items = [_written(item, arrays, live, left, depth - 1) for item in value]
        return items if kind is list else {kind.__name__: items}
    if kind is dict:
        return {"dict": [[_written(each, arrays, live, left, depth - 1) for each in pair] for pair in value.items()]}
    if kind is np.ndarray and value.dtype.kind in "biufc":
        return {"array": arrays.reference(value)}
    try:
        simple = plain(value)
    except NotPlain:
        return live(value)
    return _atom(simple) if type(simple) is kind else _written(simple, arrays, live, left, depth)


def _atom(value: Any) -> Any:
    match value:
        case int():
            return {"int": hex(value)}
        case complex():
            return {"complex": [value.real, value.imag]}
        case bytes():
            return {"bytes": value.hex()}
        case Schedule():
            return {"schedule": to_json(value)}
    return {"...": None}


def read(written: Any, arrays: SharedArrays, live: Callable[[dict[str, Any]], Any]) -> Any:
    """The value of which `write` made this. ``live`` makes what stands for it of a name. Raises `BadValue`."""
    try:
        return _read(written, arrays, live, [MAX_ITEMS], MAX_DEPTH)
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError, BadReference, DpbookError):
        raise BadValue("something that stands for no value") from None


def _read(said: Any, arrays: SharedArrays, live: Callable[[dict[str, Any]], Any], left: list[int], depth: int) -> Any:
    left[0] -= 1
    if left[0] < 0 or depth < 0:
        raise ValueError
    if type(said) is list:
        return [_read(item, arrays, live, left, depth - 1) for item in said]
    if type(said) is not dict:
        return said
    ((kind, what),) = said.items()
    if kind in ("set", "frozenset", "dict"):
        _spend(left, KEY * len(what))
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](_read(item, arrays, live, left, depth - 1) for item in what)
    match kind:
        case "dict":
            return {
                _read(key, arrays, live, left, depth - 1): _read(item, arrays, live, left, depth - 1)
                for key, item in what
            }
        case "array":
            array = arrays.resolve(what)
            _spend(left, array.nbytes // PAGE)
            return array
        case "int":
            return int(what, 16)
        case "complex":
            real, imag = what
            return complex(real, imag)
        case "bytes":
            return bytes.fromhex(what)
        case "schedule":
            return from_json(what)
        case "...":
            return ...
    return live(said)


def _spend(left: list[int], items: int) -> None:
    left[0] -= items
    if left[0] < 0:
        raise ValueError
