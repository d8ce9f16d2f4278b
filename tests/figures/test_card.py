"""Is SVG well-formed, escaped and short, and do the parts of a card stay in their room?"""

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbook.collectives import (
    Schedule,
    all_gather,
    halving_doubling,
    hierarchical_ring,
    parameter_server,
    recursive_doubling,
    reduce_scatter,
    ring,
)
from dpbook.core import palette
from dpbook.figures.card import Card, Mark, rect, ticks
from dpbook.figures.card.svg import arrow, document, element, escape, fit, number, text, text_width
from dpbook.figures.schedules import schedule_name
from tests.cases import each
from tests.figures.reading import NS, misplaced, parse, texts


@given(st.text())
def test_any_text_survives_as_xml_characters(content):
    read = ElementTree.fromstring(element("a", escape(content), b=content))
    same = all(c in "\t\n" or "\x20" <= c < "\ud800" or "\ue000" <= c <= "\ufffd" or c > "\uffff" for c in content)
    if same:
        assert (read.text or "") == content
    assert "\x00" not in (read.text or "")


@each(("value", "written"), [(3, "3"), (3.0, "3"), (2.5, "2.5"), (1 / 3, "0.33"), (-0.001, "0"), (1e5, "100000")])
def test_numbers_are_short(value, written):
    assert number(value) == written


def test_attributes_keep_their_order_and_none_is_left_out():
    assert element("rect", x=1, stroke_width=2.5, fill=None, class_="a") == '<rect x="1" stroke-width="2.5" class="a"/>'


@given(st.text(min_size=1), st.integers(10, 20), st.floats(30, 500), st.booleans())
def test_a_fitted_text_fits(content, largest, room, bold):
    shorter, size = fit(content, largest, room, bold=bold)
    assert text_width(shorter, size, bold=bold) <= room + 1e-9 or len(shorter) <= 1
    assert min(largest, 12) <= size <= largest


def test_a_text_that_fits_is_left_alone():
    assert fit("rank 0", 12, 200) == ("rank 0", 12)


def test_a_picture_has_a_name_and_a_description():
    root = ElementTree.fromstring(document(10, 20, 'a "name" & <more>', "words", [text(1, 2, "x")]))
    assert root.get("role") == "img"
    assert root.get("aria-label") == 'a "name" & <more>'
    assert [child.text for child in root[:2]] == ['a "name" & <more>', "words"]


MARKS = [Mark(f"the meaning of sign {n}", rect(0, 0, 14, 14)) for n in range(7)]


def card(width, subtitle=""):
    drawn = Card(width, "What one sees", subtitle)
    drawn.legend(MARKS)
    return drawn.picture(drawn.y, "Seven signs.")


@each("width", [200, 400, 900])
def test_a_legend_breaks_its_lines_and_keeps_its_words(width):
    root = parse(card(width))
    assert misplaced(root) == []
    assert texts(root)[1:] == [mark.words for mark in MARKS]
    rows = {node.get("y") for node in root.iter(f"{NS}text")} - {"34"}
    fit = max(1, int((width - 40 + 14) // (14 + 6 + text_width(MARKS[0].words, 12) + 14)))
    assert len(rows) == -(-len(MARKS) // fit)


def test_a_sign_stands_before_its_words():
    places = [re.findall(r"[\d.]+", node.get("transform")) for node in parse(card(400)).findall(f"{NS}g")]
    words = list(parse(card(400)).iter(f"{NS}text"))[1:]
    assert [(float(x) + 20, float(y) + 12) for x, y in places] == [
        (pytest.approx(float(node.get("x")), abs=0.02), float(node.get("y"))) for node in words
    ]


def test_a_subtitle_moves_what_is_below_and_both_are_reported():
    without, under = Card(400, "Title"), Card(400, "Title", "and more")
    assert under.y > without.y
    assert texts(parse(under.picture(90, "Told.")))[:2] == ["Title", "and more"]
    assert under.picture(90, "Told.").alt == "Title. Told."


@given(st.floats(1e-6, 1e12), st.integers(3, 10))
def test_ticks_are_round_and_as_many_as_have_room(end, most):
    found = ticks(end, most)
    step = found[1]
    assert found[0] == 0
    assert found[-1] <= end * (1 + 1e-9) < found[-1] + step * (1 + 1e-6)
    assert 1 <= len(found) - 1 <= most
    assert f"{step:.0e}"[0] in "125"
    assert float(f"{step:.0e}") == pytest.approx(step)


@each(
    ("end", "most", "expected"),
    [(28.0, 6, [0, 5, 10, 15, 20, 25]), (135, 8, [0, 20, 40, 60, 80, 100, 120]), (1, 4, [0, 0.5, 1])],
)
def test_the_ticks_of_known_axes(end, most, expected):
    assert ticks(end, most) == pytest.approx(expected)


def test_an_arrow_ends_at_its_tip_and_is_dashed_where_it_is_stored():
    shaft, head = re.findall(r"<path [^>]*>", arrow(((0, 5), (40, 5)), 2))
    assert 'd="M40 5L' in head
    assert "dasharray" not in shaft
    assert f'stroke="{palette.COMMUNICATION}"' in shaft
    assert arrow(((0, 5), (40, 5)), 2, stored=True).count("stroke-dasharray") == 1


@each(
    ("schedule", "name"),
    [
        (parameter_server(8), "parameter server, 8 ranks"),
        (ring(1), "ring, 1 rank"),
        (halving_doubling(4), "halving-doubling, 4 ranks"),
        (recursive_doubling(3), "recursive doubling, 3 ranks"),
        (reduce_scatter(4).then(all_gather(4)), "reduce-scatter, all-gather, 4 ranks"),
        (hierarchical_ring(nodes=2, per_node=4), "hierarchical ring (nodes 2, per node 4), 8 ranks"),
        (Schedule(2, 1, [], name="sums (of rows)"), "sums (of rows)"),
    ],
)
def test_a_schedule_is_named_in_words(schedule, name):
    assert schedule_name(schedule) == name
