"""Pictures as notebooks keep them, and the card on which they are drawn: title, legend, boxes, round numbers.

A stored picture is seen without a kernel, in untrusted notebooks too, and compared when its notebook is validated.
"""

from base64 import b64encode
from collections.abc import Iterable, Mapping
from functools import cached_property
from html import escape
from math import floor, log10
from pathlib import Path
from typing import Any, NamedTuple

from dpbook.core import InvalidArgument, palette
from dpbook.figures.card.svg import MARGIN, aside, document, element, number, rect, text, text_width

Bundle = tuple[dict[str, Any], dict[str, Any]]
"""An output by MIME type, and its metadata."""


def data_uri(svg: str) -> str:
    """Return the address of an image that holds the image itself."""
    return f"data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}"


def scrolled(markup: str) -> str:
    """Return ``markup`` in a box that scrolls sideways if it is wider than the page."""
    return f'<div style="overflow-x:auto">{markup}</div>'


class Drawing:
    """SVG with its alternative text ``alt``, shown in a notebook as an image.

    An ``<img>`` with a data URI also shows in an untrusted notebook, from which JupyterLab removes inline ``<svg>``.
    If ``varies`` is true the drawing differs between processors, so validation compares its alternative text alone.
    """

    alt: str
    svg: str
    width: float
    varies = False

    @property
    def image(self) -> str:
        """``<img>`` with the SVG in its address. It keeps its width: a narrow window scrolls, so text stays legible."""
        mark = f' class="{VARIES}"' if self.varies else ""
        size = f'width="{number(self.width)}" style="max-width:none"'
        return f'<img{mark} alt="{escape(self.alt)}" {size} src="{data_uri(self.svg)}">'

    @property
    def html(self) -> str:
        """Markup of the picture on a page."""
        return scrolled(self.image)

    def save(self, path: str | Path) -> None:
        """Write the SVG to a file."""
        Path(path).write_text(self.svg + "\n", encoding="utf-8")

    def __repr__(self) -> str:
        return self.alt

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        return {"text/html": self.html, "text/plain": repr(self)}, {}


VARIES = "varies"
"""Class of the ``<img>`` of a drawing that differs between processors."""


class Picture(Drawing):
    """Picture of ``width`` × ``height`` pixels that holds the SVG elements of ``body``.

    ``alt`` is its alternative text; ``description`` describes everything in it, if that is more.
    """

    def __init__(
        self, width: float, height: float, body: Iterable[str], alt: str, description: str = "", *, varies: bool = False
    ) -> None:
        self.width, self.height, self.body = width, height, tuple(body)
        self.alt, self.description, self.varies = alt, description, varies

    @cached_property
    def svg(self) -> str:  # type: ignore[override]
        """SVG document of the picture."""
        return document(self.width, self.height, self.alt, self.description, self.body)


def stacked(*pictures: Picture) -> Picture:
    """Return several pictures as one, from top to bottom."""
    parts, y = [], 0.0
    for picture in pictures:
        parts.append(element("g", picture.body, transform=f"translate(0 {number(y)})"))
        y += picture.height
    return Picture(max(p.width for p in pictures), y, parts, " ".join(p.alt for p in pictures))


class Mark(NamedTuple):
    """Entry of a legend: a sign and its meaning. The sign in ``drawn`` is 14 pixels high and begins at (0, 0)."""

    words: str
    drawn: str
    width: float = 14


class Card:
    """Picture that is drawn from top to bottom: the next part below its title begins at ``y``.

    Raises `InvalidArgument` unless ``title`` is a text that is not blank.
    """

    def __init__(self, width: float, title: str, subtitle: str = "") -> None:
        if not isinstance(title, str) or not title.strip():
            raise InvalidArgument("title", title, "a sentence that states the finding")
        self.width, self.title = width, title
        self.body = [heading(width, title, subtitle)]
        self.y = 70.0 if subtitle else 48.0

    def add(self, *parts: str) -> None:
        """Draw ``parts`` on top of the parts added before."""
        self.body += parts

    def legend(self, marks: Iterable[Mark]) -> None:
        """Draw a `legend` across the card."""
        drawn, self.y = legend(marks, self.width, self.y)
        self.body += drawn

    def picture(self, height: float, alt: str, description: str = "") -> Picture:
        """Return the finished picture. Its alternative text is the title followed by ``alt``."""
        return Picture(self.width, height, self.body, f"{self.title}. {alt}", description)


def heading(width: float, title: str, subtitle: str = "") -> str:
    """Return the title of a picture ``width`` pixels wide, and a line below it."""
    room = width - 2 * MARGIN
    below = aside(MARGIN, 56, subtitle, 13, room=room) if subtitle else ""
    return text(MARGIN, 34, title, 17, bold=True, room=room) + below


def legend(marks: Iterable[Mark], width: float, y: float) -> tuple[list[str], float]:
    """Return a legend from ``y`` on, in as many lines as it needs, and the ``y`` at which the next part may begin."""
    x, drawn = float(MARGIN), []
    for words, sign, sign_width in marks:
        across = sign_width + 6 + text_width(words, 12)
        if x > MARGIN and x + across > width - MARGIN:
            x, y = float(MARGIN), y + 20
        drawn.append(element("g", sign, transform=f"translate({number(x)} {number(y)})"))
        drawn.append(aside(x + sign_width + 6, y + 12, words))
        x += across + 14
    return drawn, y + 26


def box(x: float, y: float, width: float, height: float, colour: str | None, share: float, now: bool = False) -> str:
    """Return a box for text: tinted with a ``share`` of its ``colour``, with a strong edge if ``now`` is true.

    A box without a colour is grey and has no edge.
    """
    if colour is None:
        return rect(x, y, width, height, rx=6, fill=palette.PANEL)
    fill, edge = palette.tint(colour, share), 3 if now else 1.2
    return rect(x, y, width, height, rx=6, fill=fill, stroke=colour, stroke_width=edge)


def ticks(end: float, most: int) -> list[float]:
    """Return round numbers from 0 to ``end`` > 0: at most ``most`` steps of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** floor(log10(end / most))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if end / (power * factor) <= most)
    return [index * step for index in range(int(end / step + 1e-9) + 1)]


def check_named(name: str, value: object, most: int, kind: type, expected: str) -> None:
    """Raise `InvalidArgument` unless ``value`` maps names to 1 to ``most`` objects of one ``kind``."""
    named = value if isinstance(value, Mapping) else {}
    if not 1 <= len(named) <= most or not all(isinstance(one, kind) for one in named.values()):
        raise InvalidArgument(name, value, expected)
