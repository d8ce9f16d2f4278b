"""Floating-point additions one by one: the exact sum, the floats around it, and the one that is kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpbook.core import InvalidArgument, palette
from dpbook.figures import Picture, Viewer
from dpbook.figures.card import MARGIN, Card, Mark, aside, box, circle, element, line, text

COLUMN, ROW, GAP = 400, 104, 14
NEIGHBOURS = 2  # floats drawn on each side of the one that is kept


@dataclass(frozen=True)
class Addition:
    """One addition: what was added, the exact sum, and the floats nearby, the middle one of which is kept."""

    left: Fraction
    right: Fraction
    exact: Fraction
    floats: tuple[Fraction, ...]

    @property
    def kept(self) -> Fraction:
        return self.floats[NEIGHBOURS]

    @property
    def sum(self) -> str:
        return f"{tell(self.left)} {'−' if self.right < 0 else '+'} {tell(abs(self.right))} = {tell(self.exact)}"

    def __str__(self) -> str:
        lost = self.exact - self.kept
        return f"{self.sum}, " + (f"rounded to {tell(self.kept)}, off by {tell(abs(lost))}" if lost else "kept exactly")


def play_additions(terms: ArrayLike, orders: Sequence[Sequence[int]]) -> Viewer:
    """Step through the sum of the same numbers in one order or two, one after another, addition by addition.

    Every addition is drawn on a ruler of the floats around its result: the exact sum falls between two marks, and only
    a mark can be kept. The arithmetic is that of the dtype of ``terms``: 2 to 5 finite numbers, float16, float32 or
    float64. ``orders`` are one or two permutations of their places; ``(1, 2, 0)`` adds (x1 + x2) + x0. Raises
    `InvalidArgument` for other input, and where a sum overflows.
    """
    values = np.asarray(terms)
    if values.ndim != 1 or not 2 <= len(values) <= 5 or values.dtype not in (np.float16, np.float32, np.float64):
        raise InvalidArgument("terms", f"{values.dtype} array of shape {values.shape}", "2 to 5 floats")
    places = [list(order) for order in orders]
    if not 1 <= len(places) <= 2 or any(sorted(order) != list(range(len(values))) for order in places):
        raise InvalidArgument("orders", orders, f"one or two permutations of 0 to {len(values) - 1}")
    lanes = [Lane(order, _add_up(values[order])) for order in places]
    return Viewer(lambda after: _draw(values, lanes, after), len(values) - 1, "addition")


def draw_additions(terms: ArrayLike, orders: Sequence[Sequence[int]]) -> Picture:
    """Draw what `play_additions` steps through, with all additions done."""
    viewer = play_additions(terms, orders)
    viewer.after = len(np.asarray(terms)) - 1
    return viewer.picture


@dataclass(frozen=True)
class Lane:
    """One order of the terms, and its additions."""

    order: list[int]
    additions: list[Addition]

    def __str__(self) -> str:
        first, second, *others = self.order
        written = f"x{first} + x{second}"
        for place in others:
            written = f"({written}) + x{place}"
        return written


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
            left, right = _exactly(before), _exactly(value)
            additions.append(Addition(left, right, left + right, tuple(map(_exactly, around))))
    return additions


def _exactly(value: Any) -> Fraction:
    return Fraction(float(value))  # a float is a fraction, and float64 holds the smaller kinds exactly


def tell(number: Fraction) -> str:
    """A whole number in full, any other with nine significant digits: enough to tell float32 neighbours apart."""
    if number.denominator == 1 and abs(number) < 10**15:
        return f"{int(number):,}".replace("-", "−")
    return f"{float(number):.9g}".replace("-", "−")


def _draw(values: NDArray[Any], lanes: list[Lane], after: int) -> Picture:
    steps = len(values) - 1
    title = _title(lanes, after, steps)
    given = ", ".join(f"x{place} = {tell(_exactly(value))}" for place, value in enumerate(values))
    width = 2 * MARGIN + len(lanes) * (COLUMN + GAP) - GAP
    card = Card(width, title, f"{given}; {values.dtype}")
    card.legend(MARKS)
    top, told = card.y, []
    for column, lane in enumerate(lanes):
        x = MARGIN + column * (COLUMN + GAP)
        card.add(text(x, top + 16, str(lane), 15, bold=True, mono=True, room=COLUMN))
        for row, addition in enumerate(lane.additions):
            y = top + 28 + row * (ROW + GAP)
            if row < after:
                card.add(*_row(x, y, addition, last=row == steps - 1, now=row == after - 1))
            else:
                pending = f"x{lane.order[0]} + x{lane.order[1]}" if row == 0 else f"+ x{lane.order[row + 1]}"
                card.add(box(x, y, COLUMN, ROW, None, 0), aside(x + 12, y + 24, pending, 14, mono=True))
        told.append(f"{lane}: " + ("; ".join(map(str, lane.additions[:after])) or "nothing added yet"))
    height = top + 28 + steps * (ROW + GAP) - GAP + MARGIN
    return card.picture(height, f"{given}. " + ". ".join(told) + ".")


def _title(lanes: list[Lane], after: int, steps: int) -> str:
    if after == 0:
        return "The same numbers, in " + ("two orders" if len(lanes) == 2 else "one order")
    if after < steps:
        return f"Addition {after} of {steps}: only a mark on the ruler can be kept"
    ends = " and ".join(tell(lane.additions[-1].kept) for lane in lanes)
    first = lanes[0].additions
    exact = sum((addition.right for addition in first), first[0].left)
    return f"The sum ends at {ends}; exactly it is {tell(exact)}"


def _row(x: float, y: float, addition: Addition, *, last: bool, now: bool) -> list[str]:
    colour = palette.COMPLETE if last else palette.PARTIAL
    ruler, low, high = y + 62, addition.floats[0], addition.floats[-1]
    lost = abs(addition.exact - addition.kept)

    def at(value: Fraction) -> float:
        return x + 40 + float((value - low) / (high - low)) * (COLUMN - 80)

    parts = [
        box(x, y, COLUMN, ROW, colour, 0.12, now),
        text(x + 12, y + 24, addition.sum, 14, mono=True, room=COLUMN - 120),
        text(x + COLUMN - 12, y + 24, f"off by {tell(lost)}" if lost else "exact", 13, anchor="end", bold=bool(lost),
             fill=palette.EXPOSED if lost else palette.MUTED, room=100),
        line(x + 16, ruler, x + COLUMN - 16, ruler, palette.MUTED, 1.2),
    ]  # fmt: skip
    marks = [at(value) for value in addition.floats]
    parts += [line(mark, ruler - 8, mark, ruler + 8, palette.INK, 1.6) for mark in marks]
    for place in _labelled(marks):
        label = tell(addition.floats[place])
        parts.append(text(marks[place], ruler + 25, label, 11, anchor="middle", mono=True, room=78))
    exact, kept = at(addition.exact), at(addition.kept)
    if lost:
        parts.append(line(exact, ruler, kept, ruler, palette.EXPOSED, 4))
    parts += [_dot(kept, ruler, colour), _diamond(exact, ruler)]
    return parts


def _labelled(marks: list[float]) -> list[int]:
    """The mark that is kept, and outwards from it those whose labels do not run into each other."""
    chosen = [NEIGHBOURS]
    for side in (range(NEIGHBOURS - 1, -1, -1), range(NEIGHBOURS + 1, len(marks))):
        last = NEIGHBOURS
        for place in side:
            if abs(marks[place] - marks[last]) >= 78:
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
