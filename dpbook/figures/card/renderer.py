"""Matplotlib's drawing commands as SVG elements of a card.

Unlike matplotlib's own SVG backend it writes no date, no ids and no embedded font, and measures text with
`svg.text_width` instead of a font file. The same figure therefore gives the same text on every machine, and its colours
stay attributes that the card's style sheet turns dark.
"""

import re
from typing import Any

import numpy as np
from matplotlib.backend_bases import FigureCanvasBase, RendererBase
from matplotlib.colors import to_hex
from matplotlib.container import Container
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.path import Path
from matplotlib.transforms import Affine2D, IdentityTransform

from dpbook.core import palette
from dpbook.figures.card.picture import Mark
from dpbook.figures.card.svg import Attributes, element, number, rect, text, text_width

LETTERS = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C", Path.CLOSEPOLY: "Z"}
"""Path commands of SVG by matplotlib's path codes."""
SUPERSCRIPTS = str.maketrans("-−0123456789", "⁻⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class CardCanvas(FigureCanvasBase):
    """Canvas that lets constrained layout measure text as `CardRenderer` does."""

    def get_renderer(self) -> "CardRenderer":
        """Return a renderer of the figure's size."""
        return CardRenderer(*self.figure.bbox.size)


class CardRenderer(RendererBase):
    """Renderer that collects SVG elements in ``parts``; the figure's upper edge is at ``top`` pixels of the card."""

    def __init__(self, width: float, height: float, top: float = 0) -> None:
        super().__init__()
        self.width, self.height = width, height
        self.parts: list[str] = []
        self._to_card = Affine2D().scale(1, -1).translate(0, top + height)
        self._top = top

    def get_canvas_width_height(self) -> tuple[float, float]:
        """Return the size of the figure in pixels."""
        return self.width, self.height

    def get_text_width_height_descent(self, s: str, prop: Any, ismath: object) -> tuple[float, float, float]:
        """Return the size of a line of text; digits are centred on half of their height, not on that of descenders."""
        size = prop.get_size_in_points()
        return text_width(_plain(s), size, bold=_is_bold(prop)), 1.12 * size, 0.2 * size

    def _get_font_height_metrics(self, prop: Any) -> tuple[float, float, float]:
        """Return ascent, descent and gap of a line of text, which matplotlib 3.11 would look up in a font file."""
        size = prop.get_size_in_points()
        return 0.92 * size, 0.2 * size, 0

    def draw_path(self, gc: Any, path: Path, transform: Any, rgbFace: Any = None) -> None:
        """Add a line or an area, cut at the edges of its axes."""
        look = _look(gc, rgbFace)
        clip = gc.get_clip_rectangle()
        if look["fill"] == "none" or clip is None:
            box = None if clip is None else clip.transformed(self._to_card)
            data = _data(path, transform + self._to_card, box and (*box.min, *box.max))
        else:
            shape = transform.transform_path(path)
            data = _data(shape.clip_to_bbox(clip) if _is_straight(path) else shape, self._to_card)
        if data and (look["fill"], look["stroke"]) != ("none", "none"):
            self.parts.append(element("path", d=data, **look))

    def draw_markers(
        self, gc: Any, marker_path: Path, marker_trans: Any, path: Path, trans: Any, rgbFace: Any = None
    ) -> None:  # fmt: skip
        """Add all markers of a line as one element; a full round one is a stroke without length and with round ends."""
        look, clip = _look(gc, rgbFace), gc.get_clip_rectangle()
        points = trans.transform(path.vertices)
        points = points[np.isfinite(points).all(axis=1)]
        if clip is not None:
            points = points[(points >= clip.min - 1).all(axis=1) & (points <= clip.max + 1).all(axis=1)]
        places = self._to_card.transform(points)
        if not _is_straight(marker_path) and look["fill"] == look["stroke"]:
            size = marker_trans.transform_path(marker_path).get_extents().width + gc.get_linewidth()
            data = "".join(f"M{_place(x)} {_place(y)}h0" for x, y in places)
            look |= {"fill": None, "stroke_width": size, "stroke_linecap": "round"}
        else:
            flipped = marker_trans + Affine2D().scale(1, -1)
            data = "".join(_data(marker_path, flipped + Affine2D().translate(x, y)) for x, y in places)
        if data:
            self.parts.append(element("path", d=data, **look))

    def draw_text(
        self, gc: Any, x: float, y: float, s: str, prop: Any, angle: float, ismath: object = False, mtext: Any = None
    ) -> None:
        """Add a line of text, anchored where its alignment says, so that another font moves it least."""
        words, size, bold = _plain(s), prop.get_size_in_points(), _is_bold(prop)
        alignment = mtext.get_horizontalalignment() if mtext and not angle else "left"
        anchor, share = {"left": (None, 0.0), "center": ("middle", 0.5), "right": ("end", 1.0)}[alignment]
        x, y = x + share * text_width(words, size, bold=bold), y + self._top
        colour = to_hex(gc.get_rgb())
        line = text(
            round(x, 1), round(y, 1), words, size, anchor=anchor, bold=bold,
            fill=None if colour == palette.INK else colour,
        )  # fmt: skip
        turn = f"rotate({number(-angle)} {_place(x)} {_place(y)})"
        self.parts.append(element("g", line, transform=turn) if angle else line)


def render(figure: Figure, top: float) -> list[str]:
    """Return the elements of a figure whose upper edge is at ``top`` pixels of the card."""
    CardCanvas(figure)
    renderer = CardRenderer(*figure.bbox.size, top)
    figure.draw(renderer)
    return renderer.parts


def legend_marks(figure: Figure) -> list[Mark]:
    """Return the entry of each labelled line and area of a figure for the card's legend."""
    return [
        _mark(handle, label)
        for axes in figure.axes
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    ]


def _mark(handle: Any, label: str) -> Mark:
    artist: Any = next(iter(handle)) if isinstance(handle, Container) else handle
    if not isinstance(artist, Line2D):
        return Mark(label, rect(0, 0, 14, 14, rx=3, fill=to_hex(artist.get_facecolor()[:3])))
    width = 14 if artist.get_linestyle() == "None" else 30
    renderer, sign = CardRenderer(width, 14), Line2D([0, width / 2, width], [7, 7, 7], markevery=[1])
    sign.update_from(artist)
    sign.set_transform(IdentityTransform())
    sign.set_clip_box(None)
    sign.draw(renderer)
    return Mark(label, "".join(renderer.parts), width)


def _look(gc: Any, face: Any) -> Attributes:
    """Return the attributes of an element that is filled with ``face`` and drawn with the pen of ``gc``."""
    look: Attributes = {"fill": "none", "stroke": "none"}
    if face is not None and (len(face) < 4 or face[3] > 0):
        opacity = gc.get_alpha() if gc.get_forced_alpha() else (*face, 1.0)[3]
        look |= {"fill": to_hex(face[:3]), "fill_opacity": None if opacity == 1 else opacity}
    red, green, blue, opacity = gc.get_rgb()
    if gc.get_linewidth() > 0 and opacity > 0:
        _, dashes = gc.get_dashes()
        look |= {
            "stroke": to_hex((red, green, blue)),
            "stroke_opacity": None if opacity == 1 else opacity,
            "stroke_width": gc.get_linewidth(),
            "stroke_dasharray": None if dashes is None else " ".join(map(number, dashes)),
            "stroke_linejoin": "round" if look["fill"] == "none" else None,
        }
    return look


def _data(path: Path, transform: Any, clip: Any = None) -> str:
    """Return path data of matplotlib's ``path``, which drops what is not seen at this size."""
    segments = path.iter_segments(transform, clip=clip)
    return "".join(
        LETTERS[code] + ("" if code == Path.CLOSEPOLY else " ".join(map(_place, points))) for points, code in segments
    )


def _place(value: float) -> str:
    """Return a coordinate to a tenth of a pixel; a tie is no matter of the last bit, which may differ by processor."""
    return number(round(value + 1e-6, 1))


def _plain(words: str) -> str:
    """Return text without matplotlib's mathematical markup, which the book uses for powers of ten alone."""
    words = re.sub(r"\^\{([^}]*)\}", lambda match: match[1].translate(SUPERSCRIPTS), words)
    return re.sub(r"\\mathdefault|[${}]", "", words).replace(r"\times", "×")


def _is_bold(prop: Any) -> bool:
    return prop.get_weight() in ("bold", 700)


def _is_straight(path: Path) -> bool:
    """Return True if a path has no curves."""
    codes = set() if path.codes is None else set(np.asarray(path.codes).tolist())
    return codes <= {Path.MOVETO, Path.LINETO, Path.CLOSEPOLY}
