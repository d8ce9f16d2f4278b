"""Do scales, ticks, curves and legends put things in the right place?"""

import pytest

from dpbook.figures.card.axes import Key, Scale, axis_across, axis_up, curve, decades, mark, seconds_in_words, window
from dpbook.figures.card.picture import Card, Picture
from tests.cases import each
from tests.figures.reading import NS, parse, readable, texts


def drawn(*parts):
    return parse(Picture(400, 200, parts, "Test"))


def test_a_linear_scale_is_proportional_and_a_logarithmic_one_gives_each_decade_the_same():
    linear, decade = Scale(0, 50, 100, 300), Scale(0.1, 1000, 100, 300, log=True)
    assert [linear(value) for value in (0, 10, 50, 75)] == [100, 140, 300, 400]
    assert [decade(value) for value in (0.1, 1, 10, 1000)] == pytest.approx([100, 150, 200, 300])
    assert decade(0) < 0  # far beyond, without an error


def test_what_is_beyond_a_scale_is_at_its_end():
    up = Scale(1, 100, 90, 10, log=True)
    assert [up.within(value) for value in (0, 10, 1e9)] == pytest.approx([90, 50, 10])


@each(
    ("low", "high", "expected"),
    [(0.01, 100, [0.01, 0.1, 1, 10, 100]), (1e9, 2e12, [1e9, 1e10, 1e11, 1e12]), (3, 40, [10])],
)
def test_decades_lie_between_the_ends(low, high, expected):
    assert decades(low, high) == pytest.approx(expected)


def test_seconds_have_no_kilo():
    assert list(map(seconds_in_words, (5e-6, 0.135, 999, 10_000))) == ["5 µs", "135 ms", "999 s", "10,000 s"]


def test_ticks_are_words_where_their_values_are():
    across, up = Scale(0, 4, 60, 380), Scale(0, 1, 160, 20)
    root = drawn(
        *axis_across(across, 160, {1: "one", 3: "three"}, "GPUs", 20), *axis_up(up, 60, {0.5: "half"}, 380, "share")
    )
    assert texts(root) == ["one", "three", "GPUs", "half", "share"]
    places = [(float(node.get("x")), float(node.get("y"))) for node in root.iter(f"{NS}text")]
    assert [x for x, _ in places[:2]] == [140, 300]
    assert places[3][1] - 4 == 90


def test_a_curve_beyond_its_axes_is_cut_and_not_bent():
    across, up = Scale(0, 10, 50, 350), Scale(0, 10, 150, 50)
    line = curve([(across(0), up(0)), (across(10), up(20))], Key("steep", "#1b2430", "line"))
    inner = drawn(window(across, up, [line])).find(f"{NS}svg")
    assert inner.get("viewBox") == "50 50 300 100"
    assert [inner.get(name) for name in ("x", "y", "width", "height")] == inner.get("viewBox").split()
    assert inner.find(f"{NS}path").get("d") == "M50 150L350 -50"


def test_each_kind_of_mark_has_its_sign_in_the_legend():
    card = Card(400, "Test")
    card.legend(mark(Key(f"entry {kind}", "#1b2430", kind)) for kind in ("bar", "line", "outline", "ring"))
    picture = card.picture(200, "Told.")
    assert readable(picture)
    assert [word for word in texts(parse(picture)) if word.startswith("entry")] == [
        *("entry bar", "entry line", "entry outline", "entry ring")
    ]
    signs = [node.tag.removeprefix(NS) for node in parse(picture).iter()]
    assert [signs.count(tag) for tag in ("path", "circle")] == [1, 1]
