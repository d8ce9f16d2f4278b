"""Does a figure with knobs show what its knobs say, and refuse what they cannot be?"""

import pytest

from dpbook.core.errors import DpbookError, InvalidArgument
from dpbook.figures import Explorer, Knob, Picture
from dpbook.figures.card.player import WIDGET_VIEW
from dpbook.figures.card.svg import document, text


def draw(a, b):
    if a == b:
        raise DpbookError("a and b are <equal>")
    return Picture(document(80, 40, f"{a} and {b}", "", [text(5, 20, f"{a}/{b}")]), f"{a} and {b}")


@pytest.fixture
def explorer():
    return Explorer(draw, [Knob("a", "A", {"one": 1, "two": 2}, "two"), Knob("b", "B", {"x": 10, "y": 2})])


def test_it_starts_as_its_knobs_do(explorer):
    assert explorer.chosen == {"a": "two", "b": "x"}
    assert explorer.figure.alt == "2 and 10"
    assert repr(explorer) == "Explorer. 2 and 10"


def test_turning_a_knob_from_code_redraws(explorer):
    explorer.set(a="one")
    assert explorer.figure.alt == "1 and 10"
    assert explorer.controls.knobs["a"].value == "one"
    assert "1 and 10" in explorer.controls.picture.value


def test_turning_a_widget_redraws(explorer):
    explorer.controls.knobs["a"].value = "one"
    explorer.controls.knobs["b"].value = "y"
    assert explorer.chosen == {"a": "one", "b": "y"}
    assert "1 and 2" in explorer.controls.picture.value


def test_choices_that_contradict_each_other_are_said_to(explorer):
    explorer.controls.knobs["b"].value = "y"
    assert "a and b are &lt;equal&gt;" in explorer.controls.picture.value
    explorer.controls.knobs["a"].value = "one"
    assert "1 and 2" in explorer.controls.picture.value


def test_what_is_stored_is_the_first_state(explorer):
    before = {**explorer._repr_mimebundle_()[0]}
    explorer.set(a="one")
    assert explorer._repr_mimebundle_()[0] == before
    assert set(before) == {WIDGET_VIEW, "text/html", "text/plain"}


@pytest.mark.parametrize("choices", [{"a": "three"}, {"c": "x"}, {"a": 1}])
def test_what_no_knob_can_be_is_refused(explorer, choices):
    with pytest.raises(InvalidArgument):
        explorer.set(**choices)
    assert explorer.chosen == {"a": "two", "b": "x"}


def test_a_knob_needs_values_and_a_start_among_them():
    for values, start in (({}, None), ({"x": 1}, "y")):
        with pytest.raises(InvalidArgument):
            Knob("a", "A", values, start)
