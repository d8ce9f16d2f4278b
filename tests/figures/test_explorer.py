"""Does a figure with knobs show what its knobs say, refuse what they cannot be, and answer the pages of its kernel?"""

from types import SimpleNamespace

import pytest

from dpbook.core.errors import DpbookError, InvalidArgument
from dpbook.figures import Explorer, Knob, Picture
from dpbook.figures.card import explorer as room
from dpbook.figures.card.explorer import MIME
from dpbook.figures.card.svg import text


def draw(a, b):
    if a == b:
        raise DpbookError("a and b are <equal>")
    return Picture(80, 40, [text(5, 20, f"{a}/{b}")], f"{a} and {b}")


KNOBS = [Knob("a", "A", {"one": 1, "two": 2}, "two"), Knob("b", "B", {"x": 10, "y": 2})]


@pytest.fixture
def explorer():
    return Explorer(draw, KNOBS)


def test_it_starts_as_its_knobs_do(explorer):
    assert explorer.chosen == {"a": "two", "b": "x"}
    assert explorer.figure.alt == "2 and 10"
    assert repr(explorer) == "Explorer. 2 and 10"


def test_turning_a_knob_from_code_redraws(explorer):
    explorer.set(a="one")
    assert explorer.figure.alt == "1 and 10"


def test_a_drawing_that_asks_for_it_gets_the_last_position():
    def with_ghost(a, b, before):
        return Picture(80, 40, [], f"{a} and {b} after {before}")

    explorer = Explorer(with_ghost, KNOBS)
    assert explorer.figure.alt == "2 and 10 after None"
    explorer.set(b="y")
    explorer.set(a="one")
    assert explorer.figure.alt == "1 and 2 after {'a': 2, 'b': 2}"


def test_what_is_stored_has_the_knobs_where_they_stand_and_the_picture(explorer):
    explorer.set(b="x", a="one")
    bundle = explorer._repr_mimebundle_()[0]
    assert set(bundle) == {MIME, "text/html", "text/plain"}
    assert bundle[MIME]["knobs"] == [
        {"name": "a", "label": "A", "values": ["one", "two"], "at": 0},
        {"name": "b", "label": "B", "values": ["x", "y"], "at": 0},
    ]
    assert explorer.figure.image in bundle["text/html"]


def test_the_same_figure_has_the_same_name_in_another_kernel_and_another_has_not(explorer):
    others = Explorer(draw, KNOBS), Explorer(draw, KNOBS[::-1])
    names = [one._repr_mimebundle_()[0][MIME]["name"] for one in (explorer, *others)]
    assert names[0] == names[1] != names[2]


def asked(question):
    """What the kernel answers to a page that asks ``question``."""
    answers = []
    page = SimpleNamespace(send=answers.append, on_msg=lambda turn: setattr(page, "turn", turn))
    room._opened(page, {})
    page.turn({"content": {"data": question}})
    return answers


def test_a_page_turns_the_knobs_of_the_figure_that_it_shows(explorer):
    name = explorer._repr_mimebundle_()[0][MIME]["name"]
    assert asked({"name": name, "chosen": {"a": "one", "b": "x"}}) == [{"figure": Explorer(draw, [
        Knob("a", "A", {"one": 1}), KNOBS[1]]).figure.html}]  # fmt: skip
    assert explorer.chosen == {"a": "one", "b": "x"}
    assert asked({"name": name, "chosen": {"a": "two", "b": "y"}}) == [{"error": "a and b are <equal>"}]
    assert explorer.chosen == {"a": "one", "b": "x"}  # as the picture that is seen
    assert [set(answer) for answer in asked({"name": name, "chosen": {"a": "three"}})] == [{"error"}]


def test_a_drawing_that_was_interrupted_leaves_the_figure_where_it_was():
    def interrupted(a):
        if a == 2:
            raise KeyboardInterrupt
        return draw(a, 1)

    explorer = Explorer(interrupted, [Knob("a", "A", {"one": 1, "two": 2})])
    with pytest.raises(KeyboardInterrupt):
        explorer.turned({"a": "two"})
    assert explorer.chosen == {"a": "one"}


def test_a_page_whose_figure_this_kernel_has_not_drawn_is_told_so():
    assert asked({"name": "of another kernel", "chosen": {}}) == [{"gone": True}]


@pytest.mark.parametrize("choices", [{"a": "three"}, {"c": "x"}, {"a": 1}])
def test_what_no_knob_can_be_is_refused(explorer, choices):
    with pytest.raises(InvalidArgument):
        explorer.set(**choices)
    assert explorer.chosen == {"a": "two", "b": "x"}


def test_a_knob_needs_values_and_a_start_among_them():
    for values, start in (({}, None), ({"x": 1}, "y")):
        with pytest.raises(InvalidArgument):
            Knob("a", "A", values, start)
