"""Rounding: pictures of additions one by one, of errors against a bound, of distances of replicas; sums in bfloat16."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, log10
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpbook.core import InvalidArgument, palette
from dpbook.figures import Picture, Viewer, magnitude
from dpbook.figures.card import (
    MARGIN,
    Card,
    Mark,
    aside,
    box,
    circle,
    draw_lines,
    element,
    finish,
    in_style,
    line,
    new_figure,
    text,
    text_width,
)
from dpbook.replicas import Array
from dpbook.replicas.inexact import bf16

COLUMN, ROW, GAP, EDGE = 420, 104, 14, 48
NEIGHBOURS = 2  # floats drawn on each side of the rounded sum


@dataclass(frozen=True)
class Addition:
    """One addition: its terms, the exact sum, and the floats nearby, of which the middle one is the rounded sum."""

    first: Fraction
    second: Fraction
    exact: Fraction
    floats: tuple[Fraction, ...]

    @property
    def rounded(self) -> Fraction:
        return self.floats[NEIGHBOURS]

    @property
    def sum(self) -> str:
        sign = "−" if self.second < 0 else "+"
        return f"{in_digits(self.first)} {sign} {in_digits(abs(self.second))} = {in_digits(self.exact)}"

    def __str__(self) -> str:
        lost = self.exact - self.rounded
        return f"{self.sum}, " + (
            f"rounded to {in_digits(self.rounded)}, off by {in_digits(abs(lost))}" if lost else "kept exactly"
        )


def play_additions(terms: ArrayLike, orders: Sequence[Sequence[int]]) -> Viewer:
    """Step through the sum of 2 to 5 numbers in one order or two, addition by addition.

    Every addition is drawn on a ruler of the floats around its result: the exact sum falls between two marks, and the
    rounded one is a mark. The arithmetic is that of the dtype of ``terms``, float16, float32 or float64. The order
    ``(1, 2, 0)`` adds (x1 + x2) + x0. Raises `InvalidArgument` for other input, and if a sum overflows.
    """
    values = np.asarray(terms)
    if values.ndim != 1 or not 2 <= len(values) <= 5 or values.dtype not in (np.float16, np.float32, np.float64):
        raise InvalidArgument("terms", f"{values.dtype} array of shape {values.shape}", "2 to 5 floats")
    places = [list(order) for order in orders]
    if not 1 <= len(places) <= 2 or any(sorted(order) != list(range(len(values))) for order in places):
        raise InvalidArgument("orders", orders, f"one or two permutations of 0 to {len(values) - 1}")
    lanes = [(order, _add_up(values[order])) for order in places]
    return Viewer(lambda after: _draw(values, lanes, after), len(values) - 1, "addition")


def draw_additions(terms: ArrayLike, orders: Sequence[Sequence[int]]) -> Picture:
    """Draw the last picture of `play_additions`, with all additions done."""
    viewer = play_additions(terms, orders)
    viewer.after = len(np.asarray(terms)) - 1
    return viewer.picture


Lane = tuple[list[int], list[Addition]]
"""One order of the terms, and its additions."""


def _formula(order: list[int]) -> str:
    first, second, *others = order
    formula = f"x{first} + x{second}"
    for place in others:
        formula = f"({formula}) + x{place}"
    return formula


def _add_up(values: NDArray[Any]) -> list[Addition]:
    total, additions = values[0], []
    with np.errstate(over="ignore", invalid="ignore"):
        for value in values[1:]:
            before, total = total, total + value
            around = [total]
            for _ in range(NEIGHBOURS):
                around = [np.nextafter(around[0], -np.inf), *around, np.nextafter(around[-1], np.inf)]
            if not np.isfinite([value, *around]).all():
                raise InvalidArgument("terms", values, "finite numbers with finite sums")
            first, second = _exactly(before), _exactly(value)
            additions.append(Addition(first, second, first + second, tuple(map(_exactly, around))))
    return additions


def _exactly(value: Any) -> Fraction:
    return Fraction(float(value))  # a float is a fraction, and float64 holds the smaller kinds exactly


def in_digits(number: Fraction, digits: int = 9) -> str:
    """Write a whole number in full, any other with significant ``digits``: nine distinguish float32 neighbours."""
    if number.denominator == 1 and abs(number) < 10**15:
        return f"{int(number):,}".replace("-", "−")
    return f"{float(number):.{digits}g}".replace("-", "−")


def _draw(values: NDArray[Any], lanes: list[Lane], after: int) -> Picture:
    steps = len(values) - 1
    title = _title(lanes, after, steps)
    given = ", ".join(f"x{place} = {in_digits(_exactly(value))}" for place, value in enumerate(values))
    width = 2 * MARGIN + len(lanes) * (COLUMN + GAP) - GAP
    card = Card(width, title, f"{given}; {values.dtype}")
    card.legend(MARKS)
    top, alts = card.y, []
    for column, (order, additions) in enumerate(lanes):
        x = MARGIN + column * (COLUMN + GAP)
        card.add(text(x, top + 16, _formula(order), 15, bold=True, mono=True, room=COLUMN))
        for row, addition in enumerate(additions):
            y = top + 28 + row * (ROW + GAP)
            if row < after:
                card.add(*_row(x, y, addition, last=row == steps - 1, now=row == after - 1))
            else:
                pending = f"x{order[0]} + x{order[1]}" if row == 0 else f"+ x{order[row + 1]}"
                card.add(box(x, y, COLUMN, ROW, None, 0), aside(x + 12, y + 24, pending, 14, mono=True))
        alts.append(f"{_formula(order)}: " + ("; ".join(map(str, additions[:after])) or "nothing added yet"))
    height = top + 28 + steps * (ROW + GAP) - GAP + MARGIN
    return card.picture(height, f"{given}. " + ". ".join(alts) + ".")


def _title(lanes: list[Lane], after: int, steps: int) -> str:
    if after == 0:
        return "The same numbers, in " + ("two orders" if len(lanes) == 2 else "one order")
    if after < steps:
        return f"Addition {after} of {steps}: only a mark on the ruler can be kept"
    ends = " and ".join(in_digits(additions[-1].rounded) for _, additions in lanes)
    _, first = lanes[0]
    exact = sum((addition.second for addition in first), first[0].first)
    return f"The sum ends at {ends}; exactly it is {in_digits(exact)}"


def _row(x: float, y: float, addition: Addition, *, last: bool, now: bool) -> list[str]:
    colour = palette.COMPLETE if last else palette.PARTIAL
    ruler, low, high = y + 62, addition.floats[0], addition.floats[-1]
    lost = abs(addition.exact - addition.rounded)

    def at(value: Fraction) -> float:
        return x + EDGE + float((value - low) / (high - low)) * (COLUMN - 2 * EDGE)

    error = f"off by {in_digits(lost, 2)}" if lost else "exact"
    parts = [
        box(x, y, COLUMN, ROW, colour, 0.12, now),
        text(x + 12, y + 24, addition.sum, 14, mono=True, room=COLUMN - 134),
        text(x + COLUMN - 12, y + 24, error, 13, anchor="end", bold=bool(lost),
             fill=palette.EXPOSED if lost else palette.MUTED, room=114),
        line(x + 16, ruler, x + COLUMN - 16, ruler, palette.MUTED, 1.2),
    ]  # fmt: skip
    marks = [at(value) for value in addition.floats]
    parts += [line(mark, ruler - 8, mark, ruler + 8, palette.INK, 1.6) for mark in marks]
    labels = [in_digits(value) for value in addition.floats]
    for place in _labelled(marks, max(text_width(label, 12, mono=True) for label in labels)):
        parts.append(text(marks[place], ruler + 25, labels[place], anchor="middle", mono=True))
    exact, rounded = at(addition.exact), at(addition.rounded)
    if lost:
        parts.append(line(exact, ruler, rounded, ruler, palette.EXPOSED, 4))
    parts += [_dot(rounded, ruler, colour), _diamond(exact, ruler)]
    return parts


def _labelled(marks: list[float], width: float) -> list[int]:
    """Return the places of the rounded sum's mark, and outwards from it of marks whose labels do not overlap."""
    chosen = [NEIGHBOURS]
    for side in (range(NEIGHBOURS - 1, -1, -1), range(NEIGHBOURS + 1, len(marks))):
        last = NEIGHBOURS
        for place in side:
            if abs(marks[place] - marks[last]) >= width:
                chosen.append(place)
                last = place
    return chosen


def _dot(x: float, y: float, colour: str) -> str:
    return circle(x, y, 7, fill=colour, stroke=palette.INK, stroke_width=1)


def _diamond(x: float, y: float) -> str:
    points = f"{x:.2f},{y - 5:.2f} {x + 5:.2f},{y:.2f} {x:.2f},{y + 5:.2f} {x - 5:.2f},{y:.2f}"
    return element("polygon", points=points, fill=palette.IDLE, stroke=palette.INK, stroke_width=1.4)


MARKS = (
    Mark("exact sum", _diamond(7, 7)),
    Mark("kept: a partial sum", _dot(7, 7, palette.PARTIAL)),
    Mark("kept: the result", _dot(7, 7, palette.COMPLETE)),
)


def sum_in_bf16(buffers: Array) -> Array:
    """Return for every rank the sum of float32 ``buffers`` (world, size), rounded to bfloat16 before and after each +.

    An all-reduce that sends bfloat16 from rank to rank gives this result, whatever precision a rank adds in.
    """
    if not isinstance(buffers, np.ndarray) or buffers.ndim != 2 or buffers.dtype != np.float32:
        raise InvalidArgument("buffers", buffers, "a float32 array (world, size)")
    total, *others = bf16(buffers)
    for buffer in others:
        total = bf16(total + buffer)
    return np.tile(total, (len(buffers), 1))


@in_style
def error_ladder(errors: Mapping[str, float], bound: float, title: str, unit: str = "largest error") -> Picture:
    """Place positive errors by name on a logarithmic axis, from top to bottom; those up to ``bound`` are rounding."""
    figure, axes = new_figure(title, height=90 + 36 * len(errors))
    left, right = _limits(bound, list(errors.values()))
    axes.axvspan(left, bound, color=palette.PANEL, zorder=0)
    axes.axvline(bound, color=palette.INK, linewidth=1.6)
    for row, error in enumerate(errors.values()):
        marker, colour = ("o", palette.COMPLETE) if error <= bound else ("D", palette.EXPOSED)
        axes.plot([error], [row], marker, color=colour, markersize=8)
    axes.set(xscale="log", xlim=(left, right), xlabel=unit, ylim=(len(errors) - 0.4, -0.9))
    axes.set_yticks(range(len(errors)), labels=list(errors))
    for x, align, words in ((bound / 1.5, "right", "rounding explains it"), (bound * 1.5, "left", "different")):
        axes.text(x, -0.55, words, ha=align, va="center", color=palette.MUTED)
    values = [f"{name}: " + (f"{error:.2g}" if error > bound else "within it") for name, error in errors.items()]
    alt = f"The bound on rounding is {magnitude(bound)}. {'; '.join(values)}."
    return finish(figure, alt, varies=min(errors.values()) <= bound)


@in_style
def distances(series: Mapping[str, ArrayLike], title: str, unit: str) -> Picture:
    """Plot up to four named series of distances, one value per step from step 1, on a linear axis from 0."""
    named: dict[str, NDArray[Any]] = {name: np.asarray(values, float) for name, values in series.items()}
    figure, axes = new_figure(title)
    draw_lines(axes, named)
    axes.set(xlabel="step", ylabel=unit, ylim=(0, 1.05 * max(values.max() for values in named.values())))
    ends = "; ".join(f"{name}: {values[0]:.3g} → {values[-1]:.3g}" for name, values in named.items())
    return finish(figure, f"{unit.capitalize()}, first to last step: {ends}.")


def _limits(bound: float, errors: list[float]) -> tuple[float, float]:
    """Return the ends of a logarithmic axis with a decade to spare, and with room for words beside the bound."""
    low, middle, high = log10(min(errors)), log10(bound), log10(max(errors))
    left, right = floor(min(low, middle)) - 1, ceil(max(high, middle)) + 1
    left = min(left, floor(middle - 0.5 * (right - middle)))
    right = max(right, ceil(middle + 0.3 * (middle - left)))
    return 10.0 ** max(left, -307), 10.0 ** min(right, 308)  # the ends of float64
