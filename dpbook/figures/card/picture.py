"""Pictures as notebooks keep them: seen without a kernel, in untrusted notebooks too, and compared when validated."""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from dpbook.core import InvalidArgument
from dpbook.figures.card.svg import document, number


@dataclass(frozen=True)
class Picture:
    """An SVG and what it shows in words. In a notebook it is an image with ``alt`` as its alternative text.

    An ``<img>`` with a data URI survives where inline ``<svg>`` is taken out: in notebooks that are not trusted.
    """

    svg: str = field(repr=False)
    alt: str

    @property
    def inline(self) -> str:
        """The markup that a live viewer shows: the SVG itself."""
        return self.svg

    @property
    def html(self) -> str:
        """The picture as an ``<img>`` with its SVG in the address."""
        data = b64encode(self.svg.encode()).decode()
        width = number(_size(self.svg)[0])
        style = "max-width:100%;height:auto"
        return f'<img alt="{escape(self.alt)}" width="{width}" style="{style}" src="data:image/svg+xml;base64,{data}">'

    def save(self, path: str | Path) -> None:
        """Write the SVG to a file."""
        Path(path).write_text(self.svg + "\n", encoding="utf-8")

    def __repr__(self) -> str:
        return self.alt

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"text/html": self.html, "text/plain": repr(self)}, {}


def stacked(*pictures: Picture) -> Picture:
    """Several pictures as one, each under the one before."""
    sizes = [_size(picture.svg) for picture in pictures]
    parts, y = [], 0.0
    for picture, (_, height) in zip(pictures, sizes, strict=True):
        parts.append(picture.svg.replace("<svg ", f'<svg y="{number(y)}" ', 1))
        y += height
    alt = " ".join(picture.alt for picture in pictures)
    return Picture(document(max(width for width, _ in sizes), y, alt, "", parts), alt)


def _size(svg: str) -> tuple[float, float]:
    """Width and height of an SVG that `svg.document` made."""
    found = re.match(r'<svg [^>]*?width="([\d.]+)" height="([\d.]+)"', svg)
    if not found:
        raise InvalidArgument("svg", svg, "a document with a width and a height")
    return float(found[1]), float(found[2])
