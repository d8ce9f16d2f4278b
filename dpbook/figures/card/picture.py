"""Pictures as notebooks keep them: seen without a kernel, in untrusted notebooks too, and compared when validated."""

import re
from base64 import b64encode
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from dpbook.core import InvalidArgument
from dpbook.figures.card.svg import document, number

Bundle = tuple[dict[str, Any], dict[str, Any]]
"""An output by MIME type, and its metadata."""


def image(alt: str, width: str, kind: str, data: bytes) -> str:
    """An ``<img>`` with its data in the address."""
    source = f"data:image/{kind};base64,{b64encode(data).decode()}"
    return f'<img alt="{escape(alt)}" width="{width}" style="max-width:100%;height:auto" src="{source}">'


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
        return image(self.alt, number(_size(self.svg)[0]), "svg+xml", self.svg.encode())

    def save(self, path: str | Path) -> None:
        """Write the SVG to a file."""
        Path(path).write_text(self.svg + "\n", encoding="utf-8")

    def __repr__(self) -> str:
        return self.alt

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
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
