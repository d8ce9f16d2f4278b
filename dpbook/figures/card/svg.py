"""SVG elements, arrows and documents: the same input gives the same bytes, every text is escaped, and no scripts.

A picture is always shown as an image of its own, so its ids and its style sheet cannot collide with another's.
"""

import re
from collections.abc import Iterable
from functools import partial

from dpbook.core import palette

Attributes = dict[str, str | float | None]
Point = tuple[float, float]
Points = tuple[Point, ...]

SANS = "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', sans-serif"
MONO = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
MARGIN, CORNER = 20, 7
"""Pixels: the margin of a card, and the radius of a rounded corner of an arrow."""
SMALLEST = 12
"""Pixels: the smallest font of a figure at its natural size."""
MONO_ADVANCE = 0.605
"""Width of a character of the widest of the `MONO` fonts, in units of the font size."""

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # in XML 1.0
_COLOUR = re.compile(r'(?:fill|stroke)="(#[0-9a-f]{6})"')
_NARROW, _WIDE = frozenset("ijl.,:;'|!()[]/ ftr-·"), frozenset("mwMW@%→…✓×–∑")


def number(value: float) -> str:
    """Return ``value`` with at most two decimals, without trailing zeros."""
    if isinstance(value, int):
        return str(value)
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def escape(text: str) -> str:
    """Return ``text`` for use between tags and in attributes; characters that XML forbids become U+FFFD."""
    if not text.isalnum():
        text = _FORBIDDEN.sub("\ufffd", text)
        text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
    return text


def element(tag: str, content: str | Iterable[str] = "", /, **attributes: str | float | None) -> str:
    """Return an element around markup. ``stroke_width=2`` is written ``stroke-width="2"``; None is left out."""
    body = content if isinstance(content, str) else "".join(content)
    names = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(value) if isinstance(value, str) else number(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    return f"<{tag}{names}>{body}</{tag}>" if body else f"<{tag}{names}/>"


def text(
    x: float, y: float, content: str, size: float = SMALLEST, *, anchor: str | None = None, fill: str | None = None,
    bold: bool = False, mono: bool = False, room: float | None = None, halo: str | None = None,
) -> str:  # fmt: skip
    """Return a line of text with its baseline at ``y``; it shrinks, and is then cut, to fit into ``room``.

    ``anchor`` is "middle" or "end" (default: start); ``halo`` is the colour of an outline that keeps it legible.
    """
    if room is not None:
        content, size = fit(content, size, room, bold=bold, mono=mono)
    outline: Attributes = {"stroke": halo, "stroke_width": 4, "stroke_linejoin": "round", "paint_order": "stroke"}
    return element(
        "text", escape(content), x=x, y=y, font_size=size, text_anchor=anchor, fill=fill,
        font_weight="700" if bold else None, font_family=MONO if mono else None,
        **(outline if halo else {}),
    )  # fmt: skip


aside = partial(text, fill=palette.MUTED)
"""Secondary `text`: a subtitle, a unit, the name of a row."""


def rect(x: float, y: float, width: float, height: float, **attributes: str | float | None) -> str:
    """Return the SVG element of a rectangle whose upper left corner is at (``x``, ``y``), in pixels."""
    return element("rect", x=x, y=y, width=width, height=height, **attributes)


def circle(x: float, y: float, radius: float, **attributes: str | float | None) -> str:
    """Return a circle around (``x``, ``y``)."""
    return element("circle", cx=x, cy=y, r=radius, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1, dashes: str | None = None) -> str:
    """Return a straight line."""
    stroke: Attributes = {"stroke": colour, "stroke_width": width, "stroke_dasharray": dashes}
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, **stroke)


ROUNDING = 1e-6
"""Pixels: a font that `fit` makes smaller fills the room exactly, but for rounding."""


def text_width(content: str, size: float, *, bold: bool = False, mono: bool = False) -> float:
    """Estimate the width of a line of text in pixels, for the widest of the fonts in `SANS` and `MONO`."""
    if mono:
        return MONO_ADVANCE * size * len(content)
    units = sum(0.42 if c in _NARROW else 1.0 if c in _WIDE else 0.66 for c in content)
    return units * size * (1.1 if bold else 1.0)


def fit(content: str, size: float, room: float, *, bold: bool = False, mono: bool = False) -> tuple[str, float]:
    """Return text and a font size that fit into ``room``: a large font shrinks to `SMALLEST`, then the text is cut."""
    width = text_width(content, size, bold=bold, mono=mono)
    if width <= room:
        return content, size
    smaller = max(size * room / width, min(size, SMALLEST))
    return cut(content, room, smaller, bold=bold, mono=mono), smaller


def cut(content: str, room: float, size: float, *, bold: bool = False, mono: bool = False) -> str:
    """Return as much of ``content`` as fits into ``room`` at a font ``size``, with an ellipsis if something is cut."""
    while len(content) > 1 and text_width(content, size, bold=bold, mono=mono) > room + ROUNDING:
        content = content.rstrip("…")[:-1].rstrip() + "…"
    return content


def arrow(points: Points, width: float, *, stored: bool = False) -> str:
    """Return an arrow through ``points``: the path of a message, dashed if it is ``stored`` instead of added."""
    tip, base = points[-1], towards(points[-1], points[-2], 4 + 1.6 * width)
    dx, dy = 0.55 * (tip[0] - base[0]), 0.55 * (tip[1] - base[1])
    head = f"M{_pair(*tip)}L{_pair(base[0] - dy, base[1] + dx)}L{_pair(base[0] + dy, base[1] - dx)}z"
    shaft = element(
        "path", d=path_data((*points[:-1], base)), fill="none", stroke=palette.COMMUNICATION, stroke_width=width,
        stroke_dasharray="6 3" if stored else None,
    )  # fmt: skip
    return shaft + element("path", d=head, fill=palette.COMMUNICATION)


def path_data(points: Points) -> str:
    """Return path data through ``points``, with rounded corners."""
    data = f"M{_pair(*points[0])}"
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        begin, end = towards(corner, before, CORNER), towards(corner, after, CORNER)
        data += f"L{_pair(*begin)}Q{_pair(*corner)} {_pair(*end)}"
    return data + f"L{_pair(*points[-1])}"


def towards(start: Point, end: Point, distance: float) -> Point:
    """Return the point at ``distance`` from ``start`` on the line to ``end``, at most half-way."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    length = (dx * dx + dy * dy) ** 0.5
    share = min(distance / length, 0.5) if length else 0.0
    return start[0] + share * dx, start[1] + share * dy


def _pair(x: float, y: float) -> str:
    return f"{number(x)} {number(y)}"


def document(width: float, height: float, alt: str, description: str, body: Iterable[str], style: str = "") -> str:
    """Return a whole picture on a card of paper, which turns dark on a dark page.

    ``alt`` is its name for a screen reader, ``description`` describes everything in it. ``style`` is appended to its
    style sheet.
    """
    card = element("rect", width=width, height=height, rx=10, fill=palette.PAPER) + "".join(body)
    parts = [element("title", escape(alt))]
    parts += [element("desc", escape(description))] if description else []
    rules = [f'svg[fill="{palette.INK}"]{{fill:{palette.dark(palette.INK)}}}']  # each colour's twin on a dark page
    for colour in sorted(set(_COLOUR.findall(card))):
        rules += (f'[{part}="{colour}"]{{{part}:{palette.dark(colour)}}}' for part in ("fill", "stroke"))
    dark = f"@media (prefers-color-scheme:dark){{{''.join(rules)}}}"
    parts += [element("style", dark + style), card]
    return element(
        "svg", parts, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {number(width)} {number(height)}", width=width,
        height=height, role="img", aria_label=alt, font_family=SANS, fill=palette.INK,
    )  # fmt: skip
