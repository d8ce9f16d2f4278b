"""Data plots: matplotlib's axes in the style of the book's pictures, on a card with a title and a legend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np
from numpy.typing import NDArray

from dpbook.core import InvalidArgument, palette
from dpbook.figures.card.picture import Card, Picture
from dpbook.figures.card.svg import MARGIN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 740, 320
"""Pixels of the axes with their labels; the title and the legend stand above them."""
DPI = 72
"""Matplotlib's points are then pixels."""
STYLE: dict[str, Any] = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "axes.edgecolor": palette.MUTED,
    "axes.labelcolor": palette.MUTED,
    "axes.labelsize": 12,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "axes.titlecolor": palette.MUTED,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.constrained_layout.h_pad": 8 / DPI,
    "figure.constrained_layout.w_pad": MARGIN / DPI,
    "font.family": "DejaVu Sans",
    "font.size": 12,
    "grid.color": palette.IDLE,
    "grid.linewidth": 1,
    "text.color": palette.INK,
    "xtick.color": palette.MUTED,
    "xtick.labelsize": 12,
    "ytick.color": palette.MUTED,
    "ytick.labelsize": 12,
}
LINES = (
    (palette.COMPUTATION, "-", 4.5),
    (palette.COMMUNICATION, "--", 2.2),
    (palette.INK, ":", 1.8),
    (palette.EXPOSED, "-.", 1.5),
)
"""Colour, dashes and width of the first to the fourth line. Later ones are thinner, so that a line shows on another."""

P = ParamSpec("P")


def in_style(draw: Callable[P, Picture]) -> Callable[P, Picture]:
    """Draw in the book's style, and leave matplotlib's settings as they were."""

    @wraps(draw)
    def styled(*args: P.args, **kwargs: P.kwargs) -> Picture:
        from matplotlib import rc_context  # here, so that pictures of schedules need no matplotlib

        with rc_context(STYLE):
            return draw(*args, **kwargs)

    return styled


def blank_figure(title: str, height: float = HEIGHT) -> Figure:
    """Return a figure without axes, ``height`` pixels high. Raises `InvalidArgument` unless ``title`` is a text."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH / DPI, height / DPI), dpi=DPI, layout="constrained")
    figure.set_label(Card(WIDTH, title).title)  # a card checks it, and `finish` draws it on one
    return figure


def new_figure(title: str, height: float = HEIGHT) -> tuple[Figure, Axes]:
    """Return a `blank_figure` and one pair of axes in it."""
    figure = blank_figure(title, height)
    return figure, figure.subplots()


def draw_lines(axes: Axes, series: Mapping[str, NDArray[Any]], x: NDArray[Any] | None = None, **settings: Any) -> None:
    """Draw each named series in one of `LINES` over ``x`` (default: steps from 1).

    Raises `InvalidArgument` unless there are 1 to 4 of them.
    """
    if not 1 <= len(series) <= len(LINES):
        raise InvalidArgument("series", series, f"1 to {len(LINES)} series by name")
    for (name, values), (colour, dashes, width) in zip(series.items(), LINES, strict=False):
        steps = np.arange(1, len(values) + 1) if x is None else x
        axes.plot(steps, values, dashes, color=colour, linewidth=width, label=name, **settings)


def finish(figure: Figure, alt: str, *, varies: bool = False) -> Picture:
    """Return the finished plot. Its alternative text is the title followed by ``alt``, which says what it shows.

    The label of a vertical axis stands above it. Two or more labelled things make a legend under the title. Set
    ``varies`` for errors of rounding, which differ between processors: validation then compares ``alt`` alone.
    """
    from dpbook.figures.card.renderer import legend_marks, render

    for axes in figure.axes:
        axes.set_title(axes.get_ylabel())
        axes.set_ylabel("")
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_scale() == "log":
                _set_ticks(axis)
    card = Card(WIDTH, str(figure.get_label()))
    if len(marks := legend_marks(figure)) > 1:
        card.legend(marks)
    card.add(*render(figure, card.y))
    return Picture(WIDTH, card.y + figure.bbox.height, card.body, f"{card.title}. {alt}", varies=varies)


def _set_ticks(axis: Axis) -> None:
    """Choose the ticks of a logarithmic axis as matplotlib 3.11 does, so that pictures are the same with earlier ones.

    Ticks that are several decades apart stand at multiples of this distance. Between powers of ten, 2, 3, 4 and 6 times
    a power are labelled only if the axis shows at most one power: ``minor_thresholds[0]`` of `LogFormatter` is a number
    of powers, and before 3.11 a number of decades.
    """
    from matplotlib.ticker import LogLocator

    low, high = np.log10(np.sort(axis.get_view_interval()))
    powers = np.arange(np.ceil(low), np.floor(high) + 1)
    distance = np.diff(np.log10(axis.get_majorticklocs()[:2])).round()  # empty where there is one tick
    if (distance > 1).any() and isinstance(axis.get_major_locator(), LogLocator):  # and not ticks that a plot has set
        axis.set_ticks(10.0 ** powers[powers % distance == 0])
    formatter: Any = axis.get_minor_formatter()
    formatter.minor_thresholds = (2 if len(powers) < 2 else 0.9, 0.4)
