"""Values and errors in words: short, the same on every run, and harmless to show."""

import re
from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np

from dpbook.collectives import Schedule

MAX_TEXT = 500
MAX_SHOWN = 16
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_ndarray = np.ndarray


def clean(text: str, limit: int = MAX_TEXT) -> str:
    """``text`` without memory addresses, with control characters escaped, cut to ``limit`` characters. Lines stay."""
    text = _ADDRESS.sub("", text[: 2 * limit])
    if not text.isprintable():
        text = "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def as_lines(text: str, limit: int = 2 * MAX_TEXT) -> str:
    """``text`` as `clean` leaves it, without blank lines."""
    return "\n".join(line.rstrip() for line in clean(text, limit).splitlines() if line.strip())


def one_line(text: str, limit: int = MAX_TEXT) -> str:
    """``text`` as `clean` leaves it, its lines joined by semicolons."""
    lines = (" ".join(line.split()) for line in clean(text, limit).splitlines())
    return "; ".join(filter(None, lines))


def a(noun: str) -> str:
    """``noun`` with its article, judged by its first letter."""
    return f"{'an' if noun[:1].lower() in tuple('aeiou') else 'a'} {noun}"


def describe(value: Any) -> str:
    """Plain data in one line: its value, cut short where it is long, and an array's dtype and shape."""
    kind = type(value)
    if kind is _ndarray:
        return f"{_items(value.flat, value.size, '[]')} ({value.dtype}, shape {value.shape})"
    if kind in (list, tuple, set, frozenset):
        items = value if kind in (list, tuple) else sorted(value, key=repr)
        brackets = "[]" if kind is list else "()" if kind is tuple else "{}"
        return _items(items, len(value), brackets)
    if kind is dict:
        pairs = (f"{describe(key)}: {describe(item)}" for key, item in value.items())
        return f"{{{_join(pairs, len(value))}}}"
    if kind is Schedule:
        return one_line(repr(value))
    if kind is int and value.bit_length() > 4 * MAX_TEXT:
        return f"an int of {value.bit_length():,} bits"  # Python refuses to print very long ones
    return one_line(repr(value[:MAX_TEXT] if kind in (str, bytes) else value))


def describe_kind(value: Any) -> str:
    """What kind of plain data this is: ``an array of shape (2, 3), float64``; ``a list of 4``; ``an int, 7``."""
    kind = type(value)
    if kind is _ndarray:
        return f"an array of shape {value.shape}, {value.dtype}"
    if kind in (list, tuple, set, frozenset, dict):
        return f"{a(kind.__name__)} of {len(value)}: {describe(value)}"
    if kind is Schedule:
        return f"a schedule: {describe(value)}"
    return "None" if value is None else f"{a(kind.__name__)}, {describe(value)}"


def _items(items: Iterable[Any], length: int, brackets: str) -> str:
    shown = (describe(item.item() if isinstance(item, np.generic) else item) for item in items)
    return brackets[0] + _join(shown, length) + brackets[1]


def _join(parts: Iterable[str], length: int) -> str:
    joined = ", ".join(islice(parts, MAX_SHOWN))
    return clean(joined if length <= MAX_SHOWN else f"{joined}, …")
