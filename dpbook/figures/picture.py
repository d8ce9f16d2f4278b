"""Pictures as notebooks keep them: seen without a kernel, in untrusted notebooks too, and compared when validated."""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Picture:
    """An SVG and what it shows in words. In a notebook it is an image with ``alt`` as its alternative text.

    An ``<img>`` with a data URI survives where inline ``<svg>`` is taken out: in notebooks that are not trusted.
    """

    svg: str = field(repr=False)
    alt: str

    @property
    def html(self) -> str:
        """The picture as an ``<img>`` with its SVG in the address."""
        data = b64encode(self.svg.encode()).decode()
        sizes = re.match(r'<svg [^>]*?width="([\d.]+)" height="([\d.]+)"', self.svg)
        width = f' width="{sizes[1]}"' if sizes else ""
        style = "max-width:100%;height:auto"
        return f'<img alt="{escape(self.alt)}"{width} style="{style}" src="data:image/svg+xml;base64,{data}">'

    def save(self, path: str | Path) -> None:
        """Write the SVG to a file."""
        Path(path).write_text(self.svg + "\n", encoding="utf-8")

    def __repr__(self) -> str:
        return self.alt

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"text/html": self.html, "text/plain": repr(self)}, {}
