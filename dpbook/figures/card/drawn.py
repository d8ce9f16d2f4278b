"""What a data plot draws, as text: validation compares it where pixels differ between versions of matplotlib.

A line of it is words, and behind a tab the places of what they name. Words are compared as they are; places are
thousandths of the axes, from their lower left corner, and may be off by `OFF`. The ends of an axis may be, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
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
    around = [text.get_text() for text in figure.texts if text.get_text() != figure.get_suptitle()]
    return [f"title {figure.get_suptitle()}", *(f"around {text}" for text in around), *lines]


def unlike(stored: Sequence[str], found: Sequence[str]) -> str:
    """The first line in which two figures differ, or nothing."""
    for one, other in zip_longest(stored, found, fillvalue=""):
        if one != other and not _alike(one, other):
            return f"stored: {one or 'nothing'}\nfound:  {other or 'nothing'}"
    return ""


def _alike(one: str, other: str) -> bool:
    (words, _, places), (other_words, _, other_places) = (line.rpartition("\t") for line in (one, other))
    if words != other_words or not words:
        return False
    numbers, other_numbers = (np.array(re.sub("to|,", " ", text).split(), float) for text in (places, other_places))
    if numbers.shape != other_numbers.shape:
        return False
    off = np.array(OFF)
    if " to " in places:  # the ends of an axis
        off = OFF / 1000 * (abs(numbers) if ", log" in words else np.ptp(numbers))
    return np.allclose(numbers, other_numbers, rtol=0, atol=off, equal_nan=True)


def _inside(axes: Any, placed: bool) -> Iterator[str]:
    if hasattr(axes, "get_title"):  # a second axis has none
        yield f"axes {axes.get_title(loc='left')}{axes.get_title()}"
    for name, axis, ends in (("x", axes.xaxis, axes.get_xlim()), ("y", axes.yaxis, axes.get_ylim())):
        words = f"{name} {axis.get_label_text()}, {_scale(axis)}"
        yield f"{words}{_ticks(axis)}\t{ends[0]:.9g} to {ends[1]:.9g}" if placed else words
    for thing, words, points in _things(axes):
        if thing.get_gid() != VARIES and thing.get_visible():
            yield f"{words}\t{_places(points)}" if placed else words
    if legend := axes.get_legend():
        yield f"legend {', '.join(text.get_text() for text in legend.get_texts())}"
    for child in axes.child_axes:  # an inset, a second axis
        yield from _inside(child, placed)


def _scale(axis: Any) -> str:
    base = getattr(axis.get_transform(), "base", 10)
    return str(axis.get_scale()) + (f" {base:g}" if base != 10 else "")


def _ticks(axis: Any) -> str:
    """Ticks that the plot chose, and how it writes them; others follow from the ends of the axis."""
    from matplotlib.ticker import FixedLocator, FormatStrFormatter, FuncFormatter, StrMethodFormatter

    form = axis.get_major_formatter()
    if isinstance(axis.get_major_locator(), FixedLocator):
        places = axis.get_majorticklocs()
        words = form.format_ticks(places)
        return "".join(f", {name} at {place:.3g}" for name, place in zip(words, places, strict=True))
    own = isinstance(form, FormatStrFormatter | FuncFormatter | StrMethodFormatter)
    return f", 1 is {form(1, 0)}" if own else ""


def _things(axes: Any) -> Iterator[tuple[Any, str, NDArray[Any]]]:
    """Each with its words and its points (n, 2) in shares of the axes; an image with shares of its colours."""
    from matplotlib.collections import PathCollection

    def share(points: ArrayLike, transform: Any) -> NDArray[Any]:
        return np.asarray((transform - axes.transAxes).transform(np.reshape(points, (-1, 2))))

    for line in axes.lines:
        mark = line.get_marker() if line.get_marker() == "None" else f"{line.get_marker()} {line.get_markersize():g}"
        look = f"{_colours(line.get_color(), line.get_alpha())} {line.get_linestyle()} {line.get_linewidth():g}"
        words = f"line {look} {line.get_drawstyle()} {mark} {_label(line)}"
        yield line, words, share(line.get_xydata(), line.get_transform())
    for patch in axes.patches:
        look = f"{_colours(patch.get_facecolor())} {patch.get_hatch() or ''}"
        yield patch, f"area {look} {_label(patch)}", share(patch.get_path().vertices, patch.get_transform())
    for shapes in axes.collections:
        valued = shapes.get_array() is not None
        look = "" if valued else f"{_colours(shapes.get_facecolor())} {_colours(shapes.get_edgecolor())}"
        if isinstance(shapes, PathCollection):  # one mark at many points, as of a scatter plot
            sizes = sorted({f"{size:.3g}" for size in shapes.get_sizes()})
            words = (
                f"marks {look} {np.shape(shapes.get_paths()[0].vertices)[0]} corners {' '.join(sizes)} {_label(shapes)}"
            )
            yield shapes, words, share(shapes.get_offsets(), shapes.get_offset_transform())
        else:
            corners = np.concatenate([path.vertices for path in shapes.get_paths()])
            yield shapes, f"shapes {look} {_label(shapes)}", share(corners, shapes.get_transform())
        if valued:
            yield shapes, f"values {shapes.get_cmap().name}", _coloured(shapes)
    for text in axes.texts:
        noted = getattr(text, "xy", None)  # a note's point of the data; its text stands some pixels beside it
        anchor = share(noted, axes.transData) if noted else share(text.get_position(), text.get_transform())
        yield text, f"text {_colours(text.get_color())} {text.get_weight()} {text.get_text()}", anchor
    for image in axes.images:
        yield image, f"image {image.get_cmap().name}", _coloured(image)


def _coloured(mapped: Any) -> NDArray[Any]:
    """Numbers as shares of their colours, in rows; colours as they are."""
    numbers: Any = np.ma.asarray(mapped.get_array())
    if numbers.ndim != 3:
        numbers = mapped.norm(numbers)
    filled = np.atleast_2d(np.ma.filled(numbers.astype(float), np.nan))
    return filled.reshape(filled.shape[0], -1)


def _colours(colours: Any, alpha: float | None = None) -> str:
    from matplotlib.colors import to_hex, to_rgba_array

    return " ".join(dict.fromkeys(to_hex(one, keep_alpha=one[3] < 1) for one in to_rgba_array(colours, alpha)))


def _label(artist: Any) -> str:
    """What the legend calls it; matplotlib's own labels begin with ``_``."""
    label = str(artist.get_label())
    return "" if label.startswith("_") else label


def _places(points: NDArray[Any]) -> str:
    """``100,250 200,300``: a row each, far beyond the axes alike, ``nan`` for what is not drawn."""
    thousandths = np.round(1000 * np.clip(points, -9, 9)) + 0.0  # no -0
    return " ".join(",".join(f"{place:.0f}" for place in row) for row in thousandths)
