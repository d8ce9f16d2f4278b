"""Does what a plot says of itself change with what it draws, and with nothing else?"""

import re
from functools import cache

import numpy as np
import pytest

from dpbook.figures import DRAWN, unlike
from dpbook.figures.card import VARIES, finish, in_style, new_figure
from dpbook.figures.card.drawn import describe
from tests.cases import each


@in_style
def plot(change=lambda axes: None, values=(1.0, 2.0, 4.0, 8.0), width=None, finished=finish):
    """One of everything that the book's plots are made of, after a ``change``."""
    figure, axes = new_figure("Title", layout=None)
    if width:
        figure.set_figwidth(width)
    axes.plot([0, 1, 2, 3], values, "--", marker="o", label="line")
    axes.barh([1, 2], [2.0, 3.0], label="bars")
    axes.errorbar([1], [2], xerr=[[0.5], [0.5]], fmt="none")
    axes.axvspan(0.5, 1, label="area")
    axes.scatter([1, 2], [3, 4], label="marks")
    axes.axhline(2)
    axes.text(1, 2, "words")
    axes.annotate("note", (1, 4), (8, -13), textcoords="offset points")
    axes.imshow([[0.0, 0.5], [0.25, 1.0]], aspect="auto", extent=(0, 1, 0, 1), vmin=0, vmax=1)
    axes.set(xlabel="across", ylabel="up", xlim=(0, 4), ylim=(0.5, 10), yscale="log")
    axes.set_xticks([0, 2], labels=["none", "two"])
    axes.legend()
    change(axes)
    return finished(figure, "alt")


def described(*arguments, **options):
    """What `finish` keeps of such a plot, without its pixels, which take five times as long."""
    return plot(*arguments, **options, finished=lambda figure, alt: describe(figure))


CHANGES = {
    "a point": lambda axes: axes.lines[0].set_ydata([1, 2, 4.2, 8]),
    "a point that is not drawn": lambda axes: axes.lines[0].set_ydata([1, 2, np.nan, 8]),
    "a missing point": lambda axes: axes.lines[0].set_data([0, 1, 2], [1, 2, 4]),
    "dashes": lambda axes: axes.lines[0].set_linestyle(":"),
    "a colour": lambda axes: axes.lines[0].set_color("red"),
    "a name in the legend": lambda axes: axes.lines[0].set_label("another"),
    "a missing line": lambda axes: axes.lines[0].remove(),
    "the length of a bar": lambda axes: axes.patches[0].set_width(2.1),
    "a spread": lambda axes: axes.collections[0].set_segments([[(0.4, 2), (1.5, 2)]]),
    "a mark": lambda axes: axes.collections[1].set_offsets([[1, 3], [2, 4.2]]),
    "a word": lambda axes: axes.texts[0].set_text("word"),
    "where a word stands": lambda axes: axes.texts[0].set_position((1.1, 2)),
    "where a note points": lambda axes: setattr(axes.texts[1], "xy", (1, 5)),
    "a pixel of an image": lambda axes: axes.images[0].set_data([[0.0, 0.5], [0.3, 1.0]]),
    "an end of an axis": lambda axes: axes.set_xlim(0, 4.1),
    "a scale": lambda axes: axes.set_yscale("linear"),
    "a unit": lambda axes: axes.set_ylabel("down"),
    "the name of a tick": lambda axes: axes.set_xticks([0, 2], labels=["none", "three"]),
    "how ticks are written": lambda axes: axes.yaxis.set_major_formatter("{x:.0f} s"),
    "the base of a scale": lambda axes: axes.set_yscale("log", base=2),
    "no legend": lambda axes: axes.get_legend().remove(),
    "another name in the legend alone": lambda axes: axes.legend(["a", "b"]),
    "a width": lambda axes: axes.lines[0].set_linewidth(3),
    "what is not seen": lambda axes: axes.lines[0].set_visible(False),
    "steps": lambda axes: axes.lines[0].set_drawstyle("steps-post"),
    "the colour of marks": lambda axes: axes.collections[1].set_color("red"),
    "values that give marks their colours": lambda axes: axes.collections[1].set_array([1, 2]),
    "the colour of a spread": lambda axes: axes.collections[0].set_color("red"),
    "the colour of a word": lambda axes: axes.texts[0].set_color("red"),
    "colours of an image": lambda axes: axes.images[0].set_data(np.eye(6).reshape(3, 4, 3)),
    "the corners of an area": lambda axes: axes.fill([0, 1, 1], [1, 1, 2]),
    "an inset": lambda axes: axes.inset_axes([0, 0, 0.2, 0.2]).plot([1, 2]),
    "a second axis": lambda axes: axes.secondary_xaxis("top").set_xlabel("seconds"),
    "words around the axes": lambda axes: axes.figure.supxlabel("below"),
    "a tab in a name": lambda axes: axes.lines[0].set_label("a\tb"),
    "the title": lambda axes: axes.set_title("Titles"),
    "the figure's title": lambda axes: axes.figure.suptitle("Above"),
}


@cache
def unchanged():
    return plot()


@each(("name", "change"), CHANGES.items())
def test_a_change_is_seen(name, change):
    assert re.match("stored: .*\nfound:  .*", unlike(described(), described(change)))


def test_last_digits_and_the_size_of_the_picture_are_no_change():
    noisy = np.array([1, 2, 4, 8]) * (1 + 1e-4)
    assert unlike(unchanged().drawn, plot(values=noisy, width=9).drawn) == ""
    assert unlike(unchanged().drawn, described()) == ""


@each(
    ("one", "near", "far"),
    [
        ("linear\t0 to 1.23499", "linear\t-1e-17 to 1.23501", "linear\t0 to 1.24"),
        ("linear\t2000 to 2001", "linear\t2000.001 to 2001", "linear\t2000.01 to 2001"),
        ("log\t1e-05 to 1", "log\t1.001e-05 to 1", "log\t1.01e-05 to 1"),
    ],
)
def test_ends_of_an_axis_may_be_off_as_what_is_drawn_may(one, near, far):
    assert unlike([f"x to y, {one}"], [f"x to y, {near}"]) == ""
    assert unlike([f"x to y, {one}"], [f"x to y, {far}"])


def test_of_axes_that_vary_there_are_words_and_no_places():
    def vary(change=lambda axes: None):
        return described(lambda axes: (axes.set_gid(VARIES), change(axes)))

    assert unlike(vary(), vary(CHANGES["a point"])) == ""
    assert not [line for line in vary() if "\t" in line]
    assert unlike(vary(), vary(CHANGES["a word"]))


def test_a_thing_that_varies_is_left_out():
    def vary(word):
        return described(lambda axes: axes.texts[0].set(gid=VARIES, text=word))

    assert unlike(vary("one"), vary("another")) == ""
    assert len(vary("one")) == len(unchanged().drawn) - 1


def test_places_are_thousandths_of_the_axes():
    """(0, 1) to (3, 8) where x goes from 0 to 4 and log y from 0.5 to 10."""
    (line,) = [line for line in unchanged().drawn if " line\t" in line]
    places = [tuple(map(int, place.split(","))) for place in line.partition("\t")[2].split()]
    expected = [(250 * x, 1000 * np.log(2**x / 0.5) / np.log(20)) for x in range(4)]
    np.testing.assert_allclose(places, expected, atol=0.5)


def test_it_travels_in_the_metadata_and_is_no_part_of_what_a_reader_sees():
    data, metadata = unchanged()._repr_mimebundle_()
    assert metadata[DRAWN] == list(unchanged().drawn)
    assert set(data) == {"image/png", "text/plain"}


@pytest.mark.parametrize(("stored", "found"), [([], ["title A"]), (["title A"], [])])
def test_a_picture_that_is_missing_on_one_side_is_a_difference(stored, found):
    assert "nothing" in unlike(stored, found)
