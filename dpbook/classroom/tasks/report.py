"""Results of an answer: a `Case` per check, and the `Report` of all, as text and as HTML without scripts.

Values, errors and calls in words are short, the same on every run, and harmless to show.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from html import escape
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpbook.collectives import Schedule, to_json
from dpbook.core import InvalidArgument, palette, plural, render_page

MAX_TEXT = 500
MAX_SHOWN = 16
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_ndarray = np.ndarray


def clean(text: str, limit: int = MAX_TEXT) -> str:
    """Return ``text`` without memory addresses, control characters escaped, cut to ``limit`` characters. Lines stay."""
    text = _ADDRESS.sub("", text[: 2 * limit])
    if not text.isprintable():
        text = "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def as_lines(text: str, limit: int = 2 * MAX_TEXT) -> str:
    """Return ``text`` as `clean` leaves it, without blank lines."""
    return "\n".join(line.rstrip() for line in clean(text, limit).splitlines() if line.strip())


def one_line(text: str, limit: int = MAX_TEXT) -> str:
    """Return ``text`` as `clean` leaves it, its lines joined by semicolons."""
    lines = (" ".join(line.split()) for line in clean(text, limit).splitlines())
    return "; ".join(filter(None, lines))


def a(noun: str) -> str:
    """Return ``noun`` with its article, judged by its first letter."""
    return f"{'an' if noun[:1].lower() in tuple('aeiou') else 'a'} {noun}"


def describe(value: Any) -> str:
    """Return a one-line description of plain data: its value, shortened if long, and an array's dtype and shape."""
    value = value.item() if isinstance(value, np.generic) else value
    kind = type(value)
    if kind is _ndarray:
        return f"[{_listed(map(describe, value.flat), value.size)}] ({value.dtype}, shape {value.shape})"
    if kind in (list, tuple, set, frozenset):
        items = value if kind in (list, tuple) else sorted(value, key=repr)
        opening, closing = "[]" if kind is list else "()" if kind is tuple else "{}"
        return opening + _listed(map(describe, items), len(value)) + closing
    if kind is dict:
        pairs = (f"{describe(key)}: {describe(item)}" for key, item in value.items())
        return f"{{{_listed(pairs, len(value))}}}"
    if kind is int and value.bit_length() > 4 * MAX_TEXT:
        return f"an int of {value.bit_length():,} bits"  # Python refuses to print very long ones
    return one_line(repr(value[:MAX_TEXT] if kind in (str, bytes) else value))


def describe_kind(value: Any) -> str:
    """Return the kind of plain data in words: ``an array of shape (2, 3), float64``; ``a list of 4``; ``an int, 7``."""
    kind = type(value)
    if kind is _ndarray:
        return f"an array of shape {value.shape}, {value.dtype}"
    if kind in (list, tuple, set, frozenset, dict):
        return f"{a(kind.__name__)} of {len(value)}: {describe(value)}"
    if kind is Schedule:
        return f"a schedule: {describe(value)}"
    return "None" if value is None else f"{a(kind.__name__)}, {describe(value)}"


def _listed(parts: Iterable[str], length: int) -> str:
    joined = ", ".join(islice(parts, MAX_SHOWN))
    return clean(joined if length <= MAX_SHOWN else f"{joined}, …")


MAX_CALL = 1000
MAX_ROWS = MAX_COLUMNS = 8
WIDTH = 100
_KEPT = {"int64", "float64", "bool"}
"""Dtypes that ``np.array`` finds in the numbers themselves."""


class _Unwritten(Exception):
    """A value cannot be written as short Python code."""


def written(name: str, args: Sequence[Any]) -> str:
    """Return ``name(…)`` as Python; "" if that is longer than `MAX_CALL`, or an argument has no short form.

    Numbers, strings, None, lists, tuples, dicts, arrays, named tuples and dataclasses of such have one.
    """
    try:
        text = _group(f"{name}(", [_python(arg) for arg in args], ")", most=MAX_CALL)
    except _Unwritten:
        return ""
    return text if len(text) <= MAX_CALL else ""


class LastCall(NamedTuple):
    """Last call of the learner's function: its arguments, or the call in Python, or None if it has no such form.

    ``where`` says in words which instance it is.
    """

    by_hand: tuple[Any, ...] | str | None
    where: str = ""

    def in_python(self, name: str) -> str:
        """Return the call of the function ``name`` as Python; "" where it has no short form."""
        by_hand = self.by_hand
        return by_hand if isinstance(by_hand, str) else "" if by_hand is None else written(name, by_hand)


def _python(value: Any) -> str:
    kind = type(value)
    if value is None or kind in (bool, int, str, bytes):
        return repr(value)
    if kind is float:
        short = f"{value:.12g}"
        exact = short if "e" in short and float(short) == value else repr(value)
        return exact if np.isfinite(value) else f"float({exact!r})"
    if isinstance(value, np.generic):
        return _python(value.item())
    if kind is np.ndarray:
        return _array(value)
    if kind is dict:
        return _group("{", [f"{_python(key)}: {_python(item)}" for key, item in value.items()], "}")
    if kind is list:
        arrays = any(isinstance(item, np.ndarray) for item in value)
        return _group("[", [_python(item) for item in value], "]", most=0 if arrays else WIDTH)
    if kind is tuple:
        return _group("(", [_python(item) for item in value], ",)" if len(value) == 1 else ")")
    if is_dataclass(value):
        defaults = {field.name: field.default for field in fields(value)}
        names = list(defaults)
    elif isinstance(value, tuple) and hasattr(value, "_fields") and hasattr(value, "_field_defaults"):  # a named one
        defaults, names = value._field_defaults, list(value._fields)
    else:
        raise _Unwritten
    while names and names[-1] in defaults and getattr(value, names[-1]) == defaults[names[-1]]:
        names.pop()
    return _group(f"{kind.__name__}(", [_python(getattr(value, name)) for name in names], ")")


def _array(value: NDArray[Any]) -> str:
    if value.size > MAX_CALL:
        raise _Unwritten
    if not value.size and value.ndim > 1:
        return f"np.zeros({value.shape})"
    dtype = "" if value.dtype.name in _KEPT and value.size else f", np.{value.dtype}"
    rows = [_python(row) for row in value.tolist()]
    return _group("np.array([", rows, f"]{dtype})", most=0 if value.ndim > 1 else WIDTH)


def _group(opening: str, items: Sequence[str], closing: str, most: int = WIDTH) -> str:
    """Return the items in lines of up to ``most`` characters; an item that has lines itself has them alone."""
    lines: list[str] = []
    for item in items:
        if lines and "\n" not in lines[-1] + item and len(lines[-1]) + len(item) + 2 <= most:
            lines[-1] += f", {item}"
        else:
            lines.append(item)
    below = "\n" + " " * len(opening)
    return opening + ("," + below).join(line.replace("\n", below) for line in lines) + closing


def rows(array: NDArray[Any], wrong: NDArray[np.bool_], name: str, mark: str = "") -> str:
    """Return a 2-D array in lines, with ``name`` and number before each, and ``mark`` after those that are ``wrong``.

    Cut to `MAX_ROWS` and `MAX_COLUMNS` around the first wrong element.
    """
    row, column = np.argwhere(wrong)[0]
    shown, columns = _window(int(row), len(array), MAX_ROWS), _window(int(column), array.shape[1], MAX_COLUMNS)
    form = "{:.6g}" if array.dtype.kind == "f" else "{}"
    cells = [[form.format(array[r, c].item()) for c in columns] for r in shown]
    width = max(len(cell) for line in cells for cell in line)
    left, right = ("… " if columns.start else ""), (" …" if columns.stop < array.shape[1] else "")
    lines = ["…"] if shown.start else []
    for r, line in zip(shown, cells, strict=True):
        numbers = ", ".join(cell.rjust(width) for cell in line)
        end = mark if wrong[r].any() else ""
        lines.append(f"{name} {r:<{len(str(shown[-1]))}}  [{left}{numbers}{right}]{end}")
    return "\n".join(lines + (["…"] if shown.stop < len(array) else []))


def _window(index: int, length: int, most: int) -> range:
    start = max(0, min(index - most // 2, length - most))
    return range(start, min(start + most, length))


_CODE = re.compile(r"`([^`\n]+)`")


def marked(text: str) -> str:
    """Plain text as HTML, with what stands in backticks as code."""
    return _CODE.sub(r"<code>\1</code>", escape(text))


@dataclass(frozen=True)
class ParResult:
    """The value that an answer reached in a check that has a par; less is better.

    The letters of a plural in ``unit`` stand in brackets: ``"round(s)"``. ``of`` ends the note: ``", on 16 ranks"``.
    ``schedule`` is the answer's schedule as JSON, where it is one.
    """

    value: float
    par: float
    unit: str
    of: str = ""
    schedule: str = ""

    @property
    def counted(self) -> str:
        """The value with its unit, such as ``"6 rounds"``."""
        return f"{number_in_words(self.value)} {self.unit.replace('(s)', '' if self.value == 1 else 's')}"

    def with_schedule(self, schedule: Schedule) -> "ParResult":
        """Return this with the answer's schedule, unless it has chunk bounds of its own, which cannot be stored."""
        try:
            return replace(self, schedule=to_json(schedule.named("schedule")))
        except InvalidArgument:
            return self

    def __str__(self) -> str:
        """Return a note for the report: ``"6 rounds, at par"``."""
        than = "at par" if self.value == self.par else f"better than par, {number_in_words(self.par)}"
        return f"{self.counted}, {than}{self.of}"


def number_in_words(number: float) -> str:
    """Return an integer with commas, another number with four digits."""
    return f"{number:,}" if isinstance(number, int) else f"{number:,.4g}"


@dataclass(frozen=True)
class Case:
    """One check and its result. All strings are plain text, ready to show.

    ``reached`` is set where a passed check has a par. ``call`` is the call that failed, as Python. ``cause`` is the
    same text in all cases that ended in the same way, and ``like`` the name of the first of these, where reported.
    """

    name: str
    points: int
    passed: bool
    expected: str = ""
    got: str = ""
    where: str = ""
    why: str = ""
    note: str = ""
    reached: ParResult | None = None
    answered: bool = True
    call: str = ""
    cause: str = ""
    like: str = ""

    @property
    def verdict(self) -> str:
        """Short text that follows the name of the check, or "" if details follow."""
        if not self.answered:
            return self.note or "not answered yet"
        return f"fails for the same reason as “{self.like}”" if self.like else self.note

    def details(self) -> Iterator[tuple[str, str]]:
        """Yield the label and the text of each detail of a case that failed in a way not yet reported."""
        if not self.passed and self.answered and not self.like:
            for label in ("call", "expected", "got", "where", "why"):
                if text := getattr(self, label):
                    yield label, text


@dataclass(frozen=True)
class Report:
    """The cases of one task, in order. Shown as text or, in a notebook, as HTML."""

    task: str
    title: str
    cases: tuple[Case, ...]
    printed: str = ""
    notes: tuple[str, ...] = ()

    @property
    def points(self) -> int:
        """Points earned."""
        return sum(case.points for case in self.cases if case.passed)

    @property
    def possible(self) -> int:
        """Points that could be earned."""
        return sum(case.points for case in self.cases)

    @property
    def passed(self) -> bool:
        """Whether every case passed."""
        return all(case.passed for case in self.cases)

    @property
    def answered(self) -> bool:
        """Whether the answer is more than the stub."""
        return any(case.answered for case in self.cases)

    @property
    def headline(self) -> str:
        """Task, title and result in one line."""
        result = f"{self.points} of {plural(self.possible, 'point')}"
        return f"{self.task} {self.title}: {result if self.answered else f'{self.cases[0].verdict}, {result}'}"

    def __repr__(self) -> str:
        lines = [self.headline]
        for case in self.cases if self.answered else ():
            verdict = f": {case.verdict}" if case.verdict else ""
            lines.append(f"  {'✓' if case.passed else '✗'} {case.name} ({plural(case.points, 'point')}){verdict}")
            for label, text in case.details():
                lines.append(f"      {label + ':':9} " + text.replace("\n", "\n" + " " * 16))
        if self.printed:
            lines += ["  printed by your code:", *(f"      {line}" for line in self.printed.splitlines())]
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        return render_page("task_report.html", report=self, palette=palette, marked=marked, plural=plural)
