"""The viewer of additions shows what floating-point arithmetic does, checked against exact fractions."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbook.book.ch02 import draw_additions, play_additions
from dpbook.book.ch02.rounding import _add_up, in_digits
from tests.cases import refuses
from tests.figures.reading import parse, texts

FOUR = np.array([2**24, 1, 1, 1], np.float32)
ORDERS = [(0, 1, 2, 3), (1, 2, 3, 0)]


@given(
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=2, max_size=5),
    st.sampled_from([np.float32, np.float64]),
)
def test_what_is_kept_is_the_float_nearest_to_the_exact_sum(numbers, dtype):
    for addition in _add_up(np.array(numbers, dtype)):
        assert addition.exact == addition.first + addition.second
        assert all(abs(addition.rounded - addition.exact) <= abs(f - addition.exact) for f in addition.floats)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_marks_are_neighbouring_floats(dtype):
    (addition,) = _add_up(np.array([1, 1], dtype))
    below, above = float(np.finfo(dtype).eps), 2 * float(np.finfo(dtype).eps)  # 2 is where the spacing doubles
    gaps = [float(b - a) for a, b in itertools.pairwise(addition.floats)]
    assert gaps == [below, below, above, above]


def test_the_title_says_both_ends_and_the_exact_sum():
    picture = draw_additions(FOUR, ORDERS)
    shown = texts(parse(picture))
    assert shown[0] == "The sum ends at 16,777,216 and 16,777,220; exactly it is 16,777,219"
    assert shown.count("off by 1") == 4
    assert shown.count("exact") == 2


def test_nothing_is_shown_before_its_addition():
    viewer = play_additions(FOUR, ORDERS)
    viewer.after = 1
    shown = texts(parse(viewer.picture))
    assert "1 + 1 = 2" in shown
    assert "2 + 1 = 3" not in shown
    assert "+ x3" in shown


def test_the_words_say_what_the_picture_shows():
    viewer = play_additions(FOUR, ORDERS[1:])
    assert "((x1 + x2) + x3) + x0: nothing added yet" in viewer.picture.alt
    viewer.after = 3
    assert "3 + 16,777,216 = 16,777,219, rounded to 16,777,220, off by 1" in viewer.picture.alt


def test_a_negative_term_is_written_as_a_subtraction():
    assert str(_add_up(np.array([3.0, -5.0]))[0]) == "3 − 5 = −2, kept exactly"


def test_float32_neighbours_are_distinguished():
    one = np.float32(1)
    assert in_digits(Fraction(float(np.nextafter(one, np.float32(2))))) != in_digits(Fraction(1)) == "1"


def test_labels_do_not_run_into_each_other():
    root = parse(draw_additions(FOUR, ORDERS))
    labels = [(float(n.get("y")), float(n.get("x"))) for n in root.iter() if n.get("text-anchor") == "middle"]
    for (y, x), (other_y, other_x) in itertools.pairwise(sorted(labels)):
        assert y != other_y or other_x - x >= 78


test_bad_input_is_named = refuses(
    (lambda: play_additions([1, 2], [(0, 1)]), "terms"),
    (lambda: play_additions([1.0], [(0,)]), "terms"),
    (lambda: play_additions(np.ones(6), [range(6)]), "terms"),
    (lambda: play_additions([1.0, np.nan], [(0, 1)]), "terms"),
    (lambda: play_additions(np.full(2, np.finfo(np.float32).max, np.float32), [(0, 1)]), "terms"),
    (lambda: play_additions(FOUR, []), "orders"),
    (lambda: play_additions(FOUR, [(0, 1, 2)]), "orders"),
    (lambda: play_additions(FOUR, [(0, 1, 2, 3)] * 3), "orders"),
)
