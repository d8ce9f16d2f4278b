"""Does a plot become SVG that shows all that matplotlib draws, the same on every machine?"""

import re

import numpy as np
import pytest

from dpbook.core import palette
from dpbook.figures.card import VARIES, finish, in_style, new_figure
from tests.cases import each
from tests.figures.reading import NS, overlapping, parse, texts


@in_style
def plot(draw, **settings):
    """Return a plot that ``draw`` draws on axes from 0 to 4 and from 0 to 8."""
    figure, axes = new_figure("Title")
    axes.set(xlim=(0, 4), ylim=(0, 8), xticks=[0, 4], yticks=[0, 8], xlabel="across", ylabel="up")
    draw(axes)
    return finish(figure, "Words.", **settings)


def paths(picture, **attributes):
    """Return the points (n, 2) of each path that has these attributes."""
    return [
        np.array(re.findall(r"([-\d.]+) ([-\d.]+)", node.get("d")), float)
        for node in parse(picture).findall(f"{NS}path")
        if attributes.items() <= node.attrib.items()
    ]


def scaled(picture):
    """Return a function from data to pixels, from the places of the labels of the ticks."""
    x, y = {}, {}
    for node in parse(picture).iter(f"{NS}text"):
        if node.text and node.text.isdigit():
            side = x if node.get("text-anchor") == "middle" else y
            side[int(node.text)] = float(node.get("x" if side is x else "y"))
    return lambda a, b: (x[0] + a * (x[4] - x[0]) / 4, y[0] + b * (y[8] - y[0]) / 8)


def test_a_line_is_where_its_points_are():
    picture = plot(lambda axes: axes.plot([1, 2, 3], [1, 4, 2], color=palette.COMMUNICATION))
    (line,) = paths(picture, stroke=palette.COMMUNICATION)
    expected = np.array([scaled(picture)(*point) for point in ((1, 1), (2, 4), (3, 2))])
    np.testing.assert_allclose(np.diff(line, axis=0), np.diff(expected, axis=0), atol=0.2)


@each(
    "draw",
    [
        lambda axes: axes.plot([-9, 9], [-20, 28], color=palette.FAULT),
        lambda axes: axes.axvspan(-9, 9, color=palette.FAULT),
        lambda axes: axes.plot([2, 9, 2], [4, 4, 99], "s", color=palette.FAULT),
    ],
)
def test_nothing_leaves_the_axes(draw):
    picture = plot(draw)
    found = [points for key in ("stroke", "fill") for points in paths(picture, **{key: palette.FAULT})]
    (left, foot), (right, top) = (scaled(picture)(*corner) for corner in ((0, 0), (4, 8)))
    assert found
    assert all((points >= (left - 9, top - 9)).all() and (points <= (right + 9, foot + 9)).all() for points in found)


def test_a_gap_in_a_line_stays_a_gap():
    (line,) = (
        node.get("d")
        for node in parse(plot(lambda axes: axes.plot([0, 1, 2, 3], [1, np.nan, 2, 3], color=palette.FAULT)))
        if node.get("stroke") == palette.FAULT
    )
    assert line.count("M") >= 1
    assert len(re.findall("[ML]", line)) <= 3


def test_round_marks_are_strokes_with_round_ends_and_others_are_shapes():
    picture = plot(lambda axes: (axes.plot([1, 2], [1, 2], "o", color=palette.FAULT, markersize=6),
                                 axes.plot([3], [3], "s", color=palette.COMPLETE)))  # fmt: skip
    (dots,) = (n for n in parse(picture).findall(f"{NS}path") if n.get("stroke") == palette.FAULT)
    assert (dots.get("stroke-linecap"), dots.get("stroke-width"), dots.get("d").count("h0")) == ("round", "7", 2)
    assert len(paths(picture, fill=palette.COMPLETE)) == 1


def test_hollow_marks_are_outlines():
    picture = plot(lambda axes: axes.plot([1, 2], [1, 2], "o", color=palette.FAULT, markerfacecolor="none"))
    (rings,) = (node for node in parse(picture).findall(f"{NS}path") if node.get("stroke") == palette.FAULT)
    assert rings.get("fill") == "none"
    assert rings.get("d").count("Z") == 2


def test_the_title_the_unit_and_the_words_of_the_axes_are_text():
    picture = plot(lambda axes: axes.set_yticks([1], labels=["$10^{-3}$"]))
    assert texts(parse(picture))[0] == "Title"
    assert {"across", "up", "10⁻³"} <= set(texts(parse(picture)))
    assert overlapping(parse(picture)) == []


def test_one_labelled_thing_needs_no_legend_and_several_have_one():
    one, two = (
        plot(lambda axes, names=names: [axes.plot([0, 1], [0, 1], label=name) for name in names])
        for names in (["first"], ["first", "second"])
    )
    assert "first" not in texts(parse(one))
    assert {"first", "second"} <= set(texts(parse(two)))
    assert two.height > one.height


def test_every_kind_of_thing_has_its_sign_in_the_legend():
    def draw(axes):
        axes.plot([0, 1], [0, 1], "--", label="line")
        axes.plot([1], [1], "D", label="mark")
        axes.axvspan(0, 1, label="area")
        axes.barh([1], [2], label="bar")
        axes.errorbar([1], [2], yerr=[1], fmt="o", label="spread")

    picture = plot(draw)
    signs = parse(picture).findall(f"{NS}g[@transform]")
    assert [len(sign) > 0 for sign in signs] == [True] * 5
    assert {"line", "mark", "area", "bar", "spread"} <= set(texts(parse(picture)))


def test_the_same_plot_has_the_same_text_without_ids_dates_or_styles_of_its_own():
    svg = plot(lambda axes: axes.plot([0, 1], [0, 1])).svg
    assert svg == plot(lambda axes: axes.plot([0, 1], [0, 1])).svg
    assert not re.search(r'\bid=|style="|matplotlib|<clipPath|20\d\d-', svg)


def test_last_digits_of_what_is_drawn_change_nothing():
    exact = np.linspace(0.013, 7.9, 100)
    noisy = exact * (1 + 1e-12 * np.random.default_rng(0).normal(size=100))
    one, other = (plot(lambda axes, y=y: axes.plot(np.linspace(0, 4, 100), y)) for y in (exact, noisy))
    assert one.svg == other.svg


def test_each_colour_has_a_dark_twin():
    svg = plot(lambda axes: axes.plot([0, 1], [0, 1], color=palette.COMPUTATION)).svg
    assert f'[stroke="{palette.COMPUTATION}"]{{stroke:{palette.dark(palette.COMPUTATION)}}}' in svg


@pytest.mark.parametrize("varies", [False, True])
def test_an_image_that_varies_is_marked(varies):
    html = plot(lambda axes: None, varies=varies).html
    assert (f'<img class="{VARIES}"' in html) == varies
