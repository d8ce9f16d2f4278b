"""Writing SVG: the same input gives the same bytes, every text is escaped, and no scripts.

A picture is always shown as an image of its own, so its ids and its style meet no one else's.
"""

import re
from collections.abc import Iterable
from functools import partial

from dpbook.core import palette

Attributes = dict[str, str | float | None]

SANS = "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', sans-serif"
MONO = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
MARGIN = 20
MONO_ADVANCE = 0.605
"""Width of a character of the widest of the `MONO` fonts, in units of the font size."""

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # in XML 1.0
_COLOUR = re.compile(r'(?:fill|stroke)="(#[0-9a-f]{6})"')
_NARROW, _WIDE = frozenset("ijl.,:;'|!()[]/ ftr-·"), frozenset("mwMW@%→…✓×–∑")


def number(value: float) -> str:
    """At most two decimals, and none that say nothing."""
    if isinstance(value, int):
        return str(value)
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def escape(text: str) -> str:
    """``text`` for use between tags and in attributes; characters that XML forbids become U+FFFD."""
    if not text.isalnum():
        text = _FORBIDDEN.sub("\ufffd", text)
        text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
    return text


def element(tag: str, content: str | Iterable[str] = "", /, **attributes: str | float | None) -> str:
    """An element around markup. ``stroke_width=2`` is written ``stroke-width="2"``; None is left out."""
    body = content if isinstance(content, str) else "".join(content)
    names = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(value) if isinstance(value, str) else number(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    return f"<{tag}{names}>{body}</{tag}>" if body else f"<{tag}{names}/>"


def text(
    x: float, y: float, content: str, size: float = 12, *, anchor: str | None = None, fill: str | None = None,
    bold: bool = False, mono: bool = False, room: float | None = None, halo: str | None = None,
) -> str:  # fmt: skip
    """A line of text with its baseline at ``y``; it shrinks, and is then cut, to fit into ``room``.

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
"""A `text` that is read second: a subtitle, a unit, the name of a row."""


def rect(x: float, y: float, width: float, height: float, **attributes: str | float | None) -> str:
    """A rectangle."""
    return element("rect", x=x, y=y, width=width, height=height, **attributes)


def circle(x: float, y: float, radius: float, **attributes: str | float | None) -> str:
    """A circle around a point."""
    return element("circle", cx=x, cy=y, r=radius, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1, dashes: str | None = None) -> str:
    """A straight line."""
    stroke: Attributes = {"stroke": colour, "stroke_width": width, "stroke_dasharray": dashes}
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, **stroke)


def text_width(content: str, size: float, *, bold: bool = False, mono: bool = False) -> float:
    """The width of a line of text in pixels, rather too large than too small for the fonts in `SANS` and `MONO`."""
    if mono:
        return MONO_ADVANCE * size * len(content)
    units = sum(0.42 if c in _NARROW else 1.0 if c in _WIDE else 0.66 for c in content)
    return units * size * (1.1 if bold else 1.0)


def fit(content: str, size: float, room: float, *, bold: bool = False, mono: bool = False) -> tuple[str, float]:
    """``content`` and a font size with which it is at most ``room`` wide: down to 3/4 of ``size``, then cut."""
    width = text_width(content, size, bold=bold, mono=mono)
    if width <= room:
        return content, size
    smaller = max(size * room / width, 0.75 * size)
    while len(content) > 1 and text_width(content, smaller, bold=bold, mono=mono) > room:
        content = content.rstrip("…")[:-1].rstrip() + "…"
    return content, smaller


def document(width: float, height: float, alt: str, description: str, body: Iterable[str], style: str = "") -> str:
    """A whole picture on a card of paper, which turns dark on a dark page.

    ``alt`` is its name for a screen reader, ``description`` everything it shows, in words. ``style`` is added to the
    style sheet of the dark.
    """
    card = element("rect", width=width, height=height, rx=10, fill=palette.PAPER) + "".join(body)
    parts = [element("title", escape(alt))]
    parts += [element("desc", escape(description))] if description else []
    parts += [element("style", _in_the_dark(card) + style), card]
    return element(
        "svg", parts, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {number(width)} {number(height)}", width=width,
        height=height, role="img", aria_label=alt, font_family=SANS, fill=palette.INK,
    )  # fmt: skip


def _in_the_dark(markup: str) -> str:
    """A style sheet that gives each colour in ``markup`` its dark twin where the page is dark."""
    rules = [f'svg[fill="{palette.INK}"]{{fill:{palette.dark(palette.INK)}}}']
    for colour in sorted(set(_COLOUR.findall(markup))):
        rules += (f'[{what}="{colour}"]{{{what}:{palette.dark(colour)}}}' for what in ("fill", "stroke"))
    return f"@media (prefers-color-scheme:dark){{{''.join(rules)}}}"
