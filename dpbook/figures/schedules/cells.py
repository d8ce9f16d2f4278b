"""How a cell looks: a colour for its kind, and always a second sign, a mark, a pattern or the bars in it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from dpbook.figures.card import palette
from dpbook.figures.card.svg import element, number, text
from dpbook.figures.schedules.frames import Kind

FILL: dict[Kind, str] = {
    "own": palette.PAPER,
    "partial": palette.tint(palette.PARTIAL, 0.6),
    "complete": palette.tint(palette.COMPLETE, 0.5),
    "fault": palette.FAULT,
    "unknown": palette.tint(palette.IDLE, 0.6),
    "empty": palette.PANEL,
}
EDGE: dict[Kind, str] = {
    "own": palette.MUTED,
    "partial": "#8a6a00",
    "complete": "#00705a",
    "fault": "#6d0a25",
    "unknown": palette.MUTED,
    "empty": palette.MUTED,
}
DASHED: frozenset[Kind] = frozenset(("unknown", "empty"))


def box(kind: Kind, x: float, y: float, width: float, height: float, rx: float) -> str:
    shape = element(
        "rect", x=x, y=y, width=width, height=height, rx=rx, fill=FILL[kind], stroke=EDGE[kind],
        stroke_width=1.5, stroke_dasharray="4 3" if kind in DASHED else None,
    )  # fmt: skip
    if kind != "fault":
        return shape
    hatch = element("path", d=_hatch(width, height), transform=f"translate({number(x)} {number(y)})")
    return shape + element("g", hatch, stroke=EDGE[kind], stroke_width=2.5)


@lru_cache(maxsize=32)
def _hatch(width: float, height: float) -> str:
    """Diagonal lines inside a box, as path data."""
    lines = []
    for d in range(8, round(width + height), 10):
        (x1, y1), (x2, y2) = (min(d, width), max(0, d - width)), (max(0, d - height), min(d, height))
        inset = 1.5
        lines.append(f"M{number(x1 - inset)} {number(y1 + inset)}L{number(x2 + inset)} {number(y2 - inset)}")
    return "".join(lines[1:-1])


def badge(kind: Kind, x: float, y: float, radius: float) -> str:
    """The mark at the corner of a cell: a tick if it is complete, an exclamation mark if something counts twice."""
    if kind not in ("complete", "fault"):
        return ""
    r = radius
    circle = element("circle", cx=x, cy=y, r=r, fill=EDGE[kind], stroke=palette.PAPER, stroke_width=1.5)
    shape = (
        f"M{number(x - 0.45 * r)} {number(y + 0.05 * r)}l{number(0.3 * r)} {number(0.35 * r)}l{number(0.6 * r)} "
        f"{number(-0.75 * r)}"
        if kind == "complete"
        else f"M{number(x)} {number(y - 0.55 * r)}v{number(0.65 * r)}m0 {number(0.35 * r)}v{number(0.1 * r)}"
    )
    return circle + element(
        "path", d=shape, stroke=palette.PAPER, stroke_width=max(1.5, r / 4.5), fill="none", stroke_linecap="round"
    )


def pips(held: Sequence[int], x: float, y: float, width: float, colour: str) -> str:
    """One pip per rank: filled if its contribution is in the cell, with a number if it is there more than once."""
    pitch = min(14.0, (width - 12) / len(held))
    start = x + (width - pitch * len(held)) / 2
    size = pitch - 2
    filled: list[str] = []
    hollow: list[str] = []
    often: list[str] = []
    for i, times in enumerate(held):
        px = start + i * pitch + 1
        if times > 1:
            often.append(text(px + size / 2, y + 9, str(times), 11, anchor="middle", bold=True, fill=colour))
        else:
            (filled if times else hollow).append(f"M{number(px)} {number(y + 2)}h{number(size)}v6h{number(-size)}z")
    solid = element("path", d="".join(filled), fill=colour) if filled else ""
    outline = element("path", d="".join(hollow), fill="none", stroke=colour, stroke_opacity=0.45) if hollow else ""
    return solid + outline + "".join(often)
