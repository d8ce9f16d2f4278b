"""How a cell looks: a colour for its kind, and always a second sign, a mark, a pattern or the bars in it."""

from collections.abc import Sequence

from dpbook.core import palette
from dpbook.figures.card.svg import Attributes, circle, element, number, rect, text
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
    "partial": palette.PARTIAL_EDGE,
    "complete": palette.COMPLETE_EDGE,
    "fault": palette.FAULT_EDGE,
    "unknown": palette.MUTED,
    "empty": palette.MUTED,
}
DASHED: frozenset[Kind] = frozenset(("unknown", "empty"))


def box(kind: Kind, x: float, y: float, width: float, height: float, rx: float) -> str:
    dashes = "4 3" if kind in DASHED else None
    edge: Attributes = {"stroke": EDGE[kind], "stroke_width": 1.5, "stroke_dasharray": dashes}
    shape = rect(x, y, width, height, rx=rx, fill=FILL[kind], **edge)
    if kind != "fault":
        return shape
    hatch = element("path", d=_hatch(width, height), transform=f"translate({number(x)} {number(y)})")
    return shape + element("g", hatch, stroke=EDGE[kind], stroke_width=2.5)


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
    disc = circle(x, y, r, fill=EDGE[kind], stroke=palette.PAPER, stroke_width=1.5)
    shape = f"M{number(x)} {number(y - 0.55 * r)}v{number(0.65 * r)}m0 {number(0.35 * r)}v{number(0.1 * r)}"
    if kind == "complete":
        shape = f"M{number(x - 0.45 * r)} {number(y + 0.05 * r)}l{number(0.3 * r)} {number(0.35 * r)}"
        shape += f"l{number(0.6 * r)} {number(-0.75 * r)}"
    broad = max(1.5, r / 4.5)
    mark = element("path", d=shape, stroke=palette.PAPER, stroke_width=broad, fill="none", stroke_linecap="round")
    return disc + mark


def pips(held: Sequence[int], x: float, y: float, width: float, colour: str) -> str:
    """One pip per rank: filled if its contribution is in the cell, with a number if it is there more than once."""
    pitch = min(14.0, (width - 12) / len(held))
    start = x + (width - pitch * len(held)) / 2
    size = pitch - 2
    filled = hollow = often = ""
    for i, times in enumerate(held):
        px = start + i * pitch + 1
        pip = f"M{number(px)} {number(y + 2)}h{number(size)}v6h{number(-size)}z"
        if times > 1:
            often += text(px + size / 2, y + 9, str(times), 11, anchor="middle", bold=True, fill=colour)
        elif times:
            filled += pip
        else:
            hollow += pip
    solid = element("path", d=filled, fill=colour) if filled else ""
    outline = element("path", d=hollow, fill="none", stroke=colour, stroke_opacity=0.45) if hollow else ""
    return solid + outline + often
