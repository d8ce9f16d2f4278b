"""Axes of schematic figures and explorers: scales, ticks in words, curves, marks, ghosts and legends."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import floor, log, log10
from typing import Literal, NamedTuple

from dpbook.core import in_words, palette
from dpbook.figures.card.picture import Mark
from dpbook.figures.card.svg import aside, circle, element, number, rect

GHOST = palette.tint(palette.MUTED, 0.7)
"""Colour of the ghost: what an explorer showed before the knob was turned."""


@dataclass(frozen=True)
class Scale:
    """Map from numbers, ``low`` to ``high``, to pixels, ``start`` to ``end``; logarithmic if ``log``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the place of ``value``, also beyond the ends; numbers up to 0 are far below a logarithmic scale."""
        if self.log:
            share = log(max(value, 1e-30) / self.low) / log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def within(self, value: float) -> float:
        """Return the place of ``value``, or of the nearer end."""
        return self(min(max(value, self.low), self.high))


class Key(NamedTuple):
    """Look of a curve or mark, and its label in the legend."""

    label: str
    colour: str
    kind: Literal["bar", "line", "outline", "ring"] = "bar"
    width: float = 2
    dashes: str | None = None
    inside: str = palette.PAPER


def decades(low: float, high: float) -> list[float]:
    """Return the powers of ten from ``low`` to ``high``."""
    first, last = (floor(log10(end) + 1e-9) for end in (low, high))
    return [10.0**power for power in range(first, last + 1) if 10.0**power >= low * (1 - 1e-9)]


def seconds_in_words(value: float) -> str:
    """Return seconds as ``5 µs``, and as ``10,000 s`` rather than 10 ks."""
    return f"{value:,.0f} s" if value >= 1000 else in_words(value, "s")


def axis_across(scale: Scale, y: float, ticks: Mapping[float, str], label: str, top: float) -> Iterator[str]:
    """Yield a horizontal axis at ``y``: its grid lines up to ``top``, ticks in words, and its label below them."""
    for value, words in ticks.items():
        yield rect(scale(value) - 0.5, top, 1, y - top, fill=palette.IDLE)
        yield aside(scale(value), y + 17, words, anchor="middle")
    yield rect(scale.start, y, scale.end - scale.start, 1, fill=palette.MUTED)
    yield aside(scale.end, y + 34, label, anchor="end")


def axis_up(scale: Scale, x: float, ticks: Mapping[float, str], right: float, label: str = "") -> Iterator[str]:
    """Yield a vertical axis at ``x``: its grid lines to ``right``, ticks in words, and its label above it."""
    for value, words in ticks.items():
        yield rect(x, scale(value) - 0.5, right - x, 1, fill=palette.IDLE)
        yield aside(x - 8, scale(value) + 4, words, anchor="end")
    if label:
        yield aside(x, scale.end - 8, label)


def curve(points: Sequence[tuple[float, float]], key: Key) -> str:
    """Return a line through ``points``, in pixels, that looks as ``key`` says."""
    path = "L".join(f"{number(x)} {number(y)}" for x, y in points)
    return element(
        "path", d=f"M{path}", fill="none", stroke=key.colour, stroke_width=key.width, stroke_dasharray=key.dashes,
        stroke_linejoin="round",
    )  # fmt: skip


def ring(x: float, y: float, colour: str, inside: str = palette.PAPER) -> str:
    """Return a round mark: hollow, or filled with ``inside``; a ghost is dashed."""
    dashes = "3 2" if colour == GHOST else None
    return circle(x, y, 5, fill=inside, stroke=colour, stroke_width=2, stroke_dasharray=dashes)


def outline(x: float, y: float, width: float, height: float) -> str:
    """Return the ghost of a bar."""
    return rect(x, y, width, height, fill="none", stroke=GHOST, stroke_width=1.5, stroke_dasharray="4 3")


def window(across: Scale, up: Scale, parts: Sequence[str]) -> str:
    """Return ``parts``, clipped to the rectangle between the axes."""
    x, y, width, height = across.start, up.end, across.end - across.start, up.start - up.end
    view = " ".join(map(number, (x, y, width, height)))
    return element("svg", parts, x=x, y=y, width=width, height=height, viewBox=view)


def mark(key: Key) -> Mark:
    """Return the entry of the legend for ``key``."""
    if key.kind == "line":
        return Mark(key.label, curve([(0, 7), (24, 7)], key), 24)
    if key.kind == "ring":
        return Mark(key.label, ring(7, 7, key.colour, key.inside))
    if key.kind == "outline":
        return Mark(key.label, outline(0, 1, 14, 12))
    return Mark(key.label, rect(0, 0, 14, 14, rx=3, fill=key.colour))
