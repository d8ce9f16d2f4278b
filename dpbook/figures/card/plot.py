"""A data plot: matplotlib in the book's style, stored as a PNG with its words."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec

import numpy as np
from numpy.typing import NDArray

from dpbook.core import InvalidArgument, palette
from dpbook.figures.card.drawn import DRAWN, describe
from dpbook.figures.card.picture import Bundle, image, scrolled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 130
PIXELS_PER_INCH = 100  # in the page: the picture is 1.3 times as sharp as it is large there
STYLE: dict[str, Any] = {
    "figure.facecolor": palette.PAPER,
    "axes.facecolor": palette.PAPER,
    "axes.edgecolor": palette.MUTED,
    "axes.labelcolor": palette.INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlepad": 12,
    "figure.constrained_layout.h_pad": 0.08,
    "figure.constrained_layout.w_pad": 0.08,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": palette.IDLE,
    "grid.linewidth": 0.7,
    "text.color": palette.INK,
    "xtick.color": palette.MUTED,
    "ytick.color": palette.MUTED,
    "legend.frameon": False,
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same letters everywhere
    "font.size": 10,
}
LINES = (
    (palette.COMPUTATION, "-", 4.5),
    (palette.COMMUNICATION, "--", 2.2),
    (palette.INK, ":", 1.8),
    (palette.EXPOSED, "-.", 1.5),
)
"""Colour, dashes and width: later lines are thinner, so that one that lies on another is seen."""

P = ParamSpec("P")


def in_style(draw: Callable[P, Plot]) -> Callable[P, Plot]:
    """Draw in the book's style, and leave matplotlib's settings as they were."""

    @wraps(draw)
    def styled(*args: P.args, **kwargs: P.kwargs) -> Plot:
        from matplotlib import rc_context  # here, so that pictures of schedules need no matplotlib

        with rc_context(STYLE):
            return draw(*args, **kwargs)

    return styled


@dataclass(frozen=True)
class Plot:
    """A PNG and what it shows in words.

    The words are the output's text and the alternative text in its metadata. nbconvert's classic template puts them
    into the page; its lab template and JupyterLab 4.6 leave them out, so the text around a plot should say it too.
    The PNG is not put into HTML, where validation would compare its bytes: they differ between versions of matplotlib.
    Validation compares what is ``drawn``, which stands in the metadata.
    """

    png: bytes = field(repr=False)
    alt: str
    drawn: Sequence[str] = field(default=(), repr=False)

    def save(self, path: str | Path) -> None:
        """Write the PNG to a file."""
        Path(path).write_bytes(self.png)

    @property
    def html(self) -> str:
        """The markup of a page: an ``<img>`` with the PNG in its address."""
        return scrolled(image(self.alt, self._width, "png", self.png))

    @property
    def _width(self) -> int:
        return int.from_bytes(self.png[16:20], "big") * PIXELS_PER_INCH // DPI  # from the header of the PNG

    def __repr__(self) -> str:
        return self.alt

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        data = {"image/png": b64encode(self.png).decode(), "text/plain": repr(self)}
        # JupyterLab marks the image by it, and the book's extension turns what is so marked dark on a dark page.
        seen = {"image/png": {"alt": self.alt, "width": self._width}, "needs_background": "light"}
        return data, {**seen, DRAWN: list(self.drawn)}


def new_figure(title: str, layout: Literal["constrained"] | None = "constrained") -> tuple[Figure, Axes]:
    """A figure with one pair of axes and its ``title``. Raises `InvalidArgument` unless that says something.

    ``layout`` None leaves the margins to `Figure.subplots_adjust`; finding them takes a third of the drawing.
    """
    from matplotlib.figure import Figure

    check_title(title)
    figure = Figure(figsize=(6.6, 3.5), dpi=DPI, layout=layout)
    axes = figure.subplots()
    axes.set_title(title)
    return figure, axes


def draw_lines(axes: Axes, series: Mapping[str, NDArray[Any]], x: NDArray[Any] | None = None, **settings: Any) -> None:
    """Draw each named series in one of `LINES` over ``x`` (default: steps from 1)."""
    for (name, values), (colour, dashes, width) in zip(series.items(), LINES, strict=False):
        steps = np.arange(1, len(values) + 1) if x is None else x
        axes.plot(steps, values, dashes, color=colour, linewidth=width, label=name, **settings)


def finish(figure: Figure, alt: str) -> Plot:
    """The finished plot; ``alt`` says what it shows."""
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    return Plot(file.getvalue(), alt, describe(figure))


def check_named(name: str, value: object, most: int, kind: type, expected: str) -> None:
    """Raise `InvalidArgument` unless ``value`` holds 1 to ``most`` things of one ``kind``, by name."""
    named = value if isinstance(value, Mapping) else {}
    if not 1 <= len(named) <= most or not all(isinstance(each, kind) for each in named.values()):
        raise InvalidArgument(name, value, expected)


def check_title(title: object) -> None:
    """Raise `InvalidArgument` unless ``title`` says something."""
    if not isinstance(title, str) or not title.strip():
        raise InvalidArgument("title", title, "a sentence that states the finding")
