"""What a data plot draws, as text: validation compares it where pixels differ between versions of matplotlib.

A line of it is words, and behind a tab the places of what they name. Words are compared as they are; places are
thousandths of the axes, from their lower left corner, and may be off by `OFF`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DRAWN = "drawn"
"""In an output's metadata."""
OFF = 2
"""About a pixel: last digits of what is drawn differ between processors."""
VARIES = "varies"
"""The gid of what may differ between processors by more than that, as errors of rounding do."""


def describe(figure: Figure) -> list[str]:
    """A line for each thing in the ``figure``: titles and axes, lines, bars, areas, texts and images.

    A thing that `VARIES` is left out; of axes that vary there are words alone.
    """
    lines = [line for axes in figure.axes for line in _inside(axes, axes.get_gid() != VARIES)]
    return [f"title {figure.get_suptitle()}", *lines]


def unlike(stored: Sequence[str], found: Sequence[str]) -> str:
    """The first line in which two figures differ, or nothing."""
    for one, other in zip_longest(stored, found, fillvalue=""):
        if one != other and not _alike(one, other):
            return f"stored: {one or 'nothing'}\nfound:  {other or 'nothing'}"
    return ""


def _alike(one: str, other: str) -> bool:
    (words, _, places), (other_words, _, other_places) = (line.partition("\t") for line in (one, other))
    numbers, other_numbers = (np.array(text.replace(",", " ").split(), float) for text in (places, other_places))
    if words != other_words or numbers.shape != other_numbers.shape:
        return False
    return np.allclose(numbers, other_numbers, rtol=0, atol=OFF, equal_nan=True)


def _inside(axes: Axes, placed: bool) -> Iterator[str]:
    yield f"axes {axes.get_title(loc='left')}{axes.get_title()}"
    for name, axis, ends in (("x", axes.xaxis, axes.get_xlim()), ("y", axes.yaxis, axes.get_ylim())):
        reach = f", {ends[0]:.3g} to {ends[1]:.3g}{_named_ticks(axis)}" if placed else ""
        yield f"{name} {axis.get_label_text()}, {axis.get_scale()}{reach}"
    for thing, words, points in _things(axes):
        if thing.get_gid() != VARIES:
            yield f"{words}\t{_places(points)}" if placed else words


def _named_ticks(axis: Any) -> str:
    """Ticks that the plot chose; those that matplotlib chooses follow from the ends of the axis."""
    from matplotlib.ticker import FixedLocator

    if not isinstance(axis.get_major_locator(), FixedLocator):
        return ""
    places = axis.get_majorticklocs()
    words = axis.get_major_formatter().format_ticks(places)
    return "".join(f", {name} at {place:.3g}" for name, place in zip(words, places, strict=True))


def _things(axes: Axes) -> Iterator[tuple[Any, str, NDArray[Any]]]:
    """Each with its words and its points (n, 2) in shares of the axes; an image with shares of its colours."""
    from matplotlib.collections import PathCollection
    from matplotlib.colors import to_hex

    def share(points: ArrayLike, transform: Any) -> NDArray[Any]:
        return np.asarray((transform - axes.transAxes).transform(np.reshape(points, (-1, 2))))

    for line in axes.lines:
        words = f"line {to_hex(line.get_color())} {line.get_linestyle()} {line.get_marker()} {_label(line)}"
        yield line, words, share(line.get_xydata(), line.get_transform())
    for patch in axes.patches:
        corners = share(patch.get_path().vertices, patch.get_transform())
        yield patch, f"area {to_hex(patch.get_facecolor())} {_label(patch)}", np.array([corners.min(0), corners.max(0)])
    for shapes in axes.collections:
        if isinstance(shapes, PathCollection):  # one mark at many points, as of a scatter plot
            yield shapes, f"marks {_label(shapes)}", share(shapes.get_offsets(), shapes.get_offset_transform())
        else:
            corners = np.concatenate([path.vertices for path in shapes.get_paths()])
            yield shapes, f"shapes {_label(shapes)}", share(corners, shapes.get_transform())
    for text in axes.texts:
        noted = getattr(text, "xy", None)  # a note's point of the data; its text stands some pixels beside it
        anchor = share(noted, axes.transData) if noted else share(text.get_position(), text.get_transform())
        yield text, f"text {text.get_text()}", anchor
    for image in axes.images:
        yield (
            image,
            f"image {image.get_cmap().name}",
            np.ma.filled(image.norm(np.ma.asarray(image.get_array())), np.nan),
        )


def _label(artist: Any) -> str:
    """What the legend calls it; matplotlib's own labels begin with ``_``."""
    label = str(artist.get_label())
    return "" if label.startswith("_") else label


def _places(points: NDArray[Any]) -> str:
    """``100,250 200,300``: a row each, far beyond the axes alike, ``nan`` for what is not drawn."""
    thousandths = np.round(1000 * np.clip(points, -9, 9)) + 0.0  # no -0
    return " ".join(",".join(f"{place:.0f}" for place in row) for row in thousandths)
