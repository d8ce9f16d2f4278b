"""Pictures as notebooks keep them: seen without a kernel, in untrusted notebooks too, and compared when validated."""

from base64 import b64encode
from collections.abc import Iterable
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from dpbook.figures.card.svg import document, element, number

Bundle = tuple[dict[str, Any], dict[str, Any]]
"""An output by MIME type, and its metadata."""


def address(kind: str, data: bytes) -> str:
    """Data as the address of an image."""
    return f"data:image/{kind};base64,{b64encode(data).decode()}"


def image(alt: str, width: float, kind: str, data: bytes) -> str:
    """An ``<img>`` with its data in the address. It keeps its width: in a narrow window one scrolls, and can read."""
    return f'<img alt="{escape(alt)}" width="{number(width)}" style="max-width:none" src="{address(kind, data)}">'


def scrolled(markup: str) -> str:
    """``markup`` in a box that scrolls sideways where it is wider than the page."""
    return f'<div style="overflow-x:auto">{markup}</div>'


class Drawing:
    """What is drawn as SVG: its markup, and its words in ``alt``. In a notebook it is an image.

    An ``<img>`` with a data URI survives where inline ``<svg>`` is taken out: in notebooks that are not trusted.
    """

    alt: str
    svg: str
    width: float

    @property
    def image(self) -> str:
        """An ``<img>`` with the SVG in its address."""
        return image(self.alt, self.width, "svg+xml", self.svg.encode())

    @property
    def html(self) -> str:
        """The picture as a page shows it."""
        return scrolled(self.image)

    def save(self, path: str | Path) -> None:
        """Write the SVG to a file."""
        Path(path).write_text(self.svg + "\n", encoding="utf-8")

    def __repr__(self) -> str:
        return self.alt

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        return {"text/html": self.html, "text/plain": repr(self)}, {}


class Picture(Drawing):
    """A picture of ``width`` × ``height`` pixels: the elements of its ``body``, and what it shows in words.

    ``alt`` is its alternative text; ``description`` tells everything in it, where that is more.
    """

    def __init__(self, width: float, height: float, body: Iterable[str], alt: str, description: str = "") -> None:
        self.width, self.height, self.body = width, height, tuple(body)
        self.alt, self.description = alt, description

    @cached_property
    def svg(self) -> str:  # type: ignore[override]
        """The markup."""
        return document(self.width, self.height, self.alt, self.description, self.body)


def stacked(*pictures: Picture) -> Picture:
    """Several pictures as one, each under the one before."""
    parts, y = [], 0.0
    for picture in pictures:
        parts.append(element("g", picture.body, transform=f"translate(0 {number(y)})"))
        y += picture.height
    return Picture(max(p.width for p in pictures), y, parts, " ".join(p.alt for p in pictures))
