"""Is what is written well-formed, escaped and short?"""

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from dpbook.figures.card.svg import document, element, escape, fit, number, text, text_width
from tests.cases import each


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


@given(st.text(min_size=1), st.floats(30, 500), st.booleans())
def test_a_fitted_text_fits(content, room, bold):
    shorter, size = fit(content, 14, room, bold=bold)
    assert text_width(shorter, size, bold=bold) <= room + 1e-9 or len(shorter) <= 1
    assert 0.75 * 14 <= size <= 14


def test_a_text_that_fits_is_left_alone():
    assert fit("rank 0", 12, 200) == ("rank 0", 12)


def test_a_picture_has_a_name_and_a_description():
    root = ElementTree.fromstring(document(10, 20, 'a "name" & <more>', "words", [text(1, 2, "x")]))
    assert root.get("role") == "img"
    assert root.get("aria-label") == 'a "name" & <more>'
    assert [child.text for child in root[:2]] == ['a "name" & <more>', "words"]
