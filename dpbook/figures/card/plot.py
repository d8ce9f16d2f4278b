"""A data plot: matplotlib in the book's style, stored as a PNG with its words."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec

from dpbook.core import InvalidArgument
from dpbook.figures.card import palette

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
    """

    png: bytes = field(repr=False)
    alt: str

    def save(self, path: str | Path) -> None:
        """Write the PNG to a file."""
        Path(path).write_bytes(self.png)

    @property
    def inline(self) -> str:
        """The markup that a live viewer shows: an ``<img>`` with the PNG in its address."""
        return (
            f'<img alt="{escape(self.alt)}" width="{self._width}" style="max-width:100%;height:auto" '
            f'src="data:image/png;base64,{b64encode(self.png).decode()}">'
        )

    @property
    def _width(self) -> int:
        return int.from_bytes(self.png[16:20], "big") * PIXELS_PER_INCH // DPI  # from the header of the PNG

    def __repr__(self) -> str:
        return self.alt

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        data = {"image/png": b64encode(self.png).decode(), "text/plain": repr(self)}
        return data, {"image/png": {"alt": self.alt, "width": self._width}}


def new_figure(title: str, layout: Literal["constrained"] | None = "constrained") -> tuple[Figure, Axes]:
    """A figure with one pair of axes and its ``title``.

    ``layout`` None leaves the margins to `Figure.subplots_adjust`; finding them takes a third of the drawing.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.6, 3.5), dpi=DPI, layout=layout)
    axes = figure.subplots()
    axes.set_title(title)
    return figure, axes


def finish(figure: Figure, alt: str) -> Plot:
    """The finished plot; ``alt`` says what it shows."""
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    return Plot(file.getvalue(), alt)


def check_title(title: object) -> None:
    """Raise `InvalidArgument` unless ``title`` says something."""
    if not isinstance(title, str) or not title.strip():
        raise InvalidArgument("title", title, "a sentence that states the finding")
