"""Markdown as HTML that needs no network: formulas become paths, links to other notebooks their words."""

import re
from html import escape
from typing import Any

import mistune

EM = 10
"""Units of a formula's own coordinates that are as high as the text around it."""
PLAINER = (
    (r"\\([td]?frac)(\d)(\d)", r"\\frac{\2}{\3}"),
    (r"\\[td]frac", r"\\frac"),
    (r"\\[bB]ig+[lr]?\s*", ""),
    (r"\\[lr]Vert", r"\\|"),
    (r"\\bmod", r"\\ \\mathrm{mod}\\ "),
    (r"\\(text|operatorname)\b", r"\\mathrm"),
    (r"\\([gl]e)(?![a-zA-Z])", r"\\\1q"),
)
"""What matplotlib's formulas do not know of TeX, and how they say it."""


def html(markdown: str) -> str:
    """The words of a cell, or a part of them."""
    return str(_READER(markdown))


def sentences(paragraph: str, most: int) -> str:
    """The first sentences of a paragraph."""
    return " ".join(re.split(r"(?<=[.!?])\s+(?=[A-Z`*$(])", " ".join(paragraph.split()))[:most])


def formula(tex: str, *, alone: bool = False) -> str:
    """A formula as an image, drawn by matplotlib; TeX that it does not know stays as it is.

    One that stands ``alone``, not in a line, has fractions of full size.
    """
    from matplotlib.textpath import TextPath

    plain = " ".join(tex.split())
    for pattern, replacement in PLAINER:
        plain = re.sub(pattern, replacement, plain)
    plain = plain.replace(r"\frac", r"\dfrac") if alone else plain
    try:
        path = TextPath((0, 0), f"${plain}$", size=EM)
    except ValueError:
        return f"<code>{escape(tex)}</code>"
    box = path.get_extents()
    x, y, width, height = box.x0 - 0.5, -box.y1 - 0.5, box.width + 1, box.height + 1
    style = f"height:{height / EM:.2f}em;vertical-align:{(box.y0 - 0.5) / EM:.2f}em"
    seen = f"{x:.1f} {y:.1f} {width:.1f} {height:.1f}"
    words = f'role="img" aria-label="{escape(tex)}"'
    return f'<svg {words} viewBox="{seen}" style="{style}"><path d="{_strokes(path)}"/></svg>'


def _strokes(path: Any) -> str:
    letters = {1: "M", 2: "L", 3: "Q", 4: "C", 79: "Z"}
    parts = []
    for points, code in path.iter_segments(curves=True, simplify=False):
        flipped = [] if letters[code] == "Z" else [f"{p * (-1 if n % 2 else 1):.2f}" for n, p in enumerate(points)]
        parts.append(letters[code] + " ".join(flipped))
    return "".join(parts)


class _Renderer(mistune.HTMLRenderer):
    def link(self, text: str, url: str, title: str | None = None) -> str:
        return text

    def inline_math(self, text: str) -> str:
        return formula(text)

    def block_math(self, text: str) -> str:
        return f'<p class="formula">{formula(text, alone=True)}</p>\n'


_READER = mistune.create_markdown(renderer=_Renderer(), plugins=["table", "math"])
