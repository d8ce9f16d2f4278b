"""Do the plots of errors and distances show and say what they are given?"""

import re

import numpy as np
import pytest

from dpbook.book.ch02 import distances, error_ladder
from dpbook.book.ch02.rounding import _limits
from dpbook.core import palette
from tests.cases import refuses
from tests.figures.reading import NS, parse, shows

ERRORS = {"rounded": 3e-16, "lost": 4e-4}


def test_an_error_within_the_bound_and_one_beyond_look_different():
    within, both = error_ladder({"rounded": 3e-16}, 1e-12, "Title"), error_ladder(ERRORS, 1e-12, "Title")
    assert shows(within, palette.COMPLETE)
    assert not shows(within, palette.EXPOSED)
    assert shows(both, palette.EXPOSED)


def test_the_words_name_what_lies_beyond_the_bound():
    words = error_ladder(ERRORS, 1.5e-12, "Title").alt
    assert words == "Title. The bound on rounding is at most 1e-11. rounded: within it; lost: 0.0004."


def test_a_further_error_lies_further_right():
    def place(error):
        root = parse(error_ladder({"a": error, "far": 1.0}, 1e-12, "Title"))
        marks = [node.get("d") for node in root.iter(f"{NS}path") if node.get("fill") == palette.EXPOSED]
        return min(float(re.match(r"M([\d.]+)", mark)[1]) for mark in marks)

    assert place(1e-8) < place(1e-4)


@pytest.mark.parametrize("errors", [[1e-3], [1e-16], [1e-11], [1e-306, 1e307]])
def test_the_words_beside_the_bound_have_room(errors):
    left, right = np.log10(_limits(1e-11, errors))
    assert left < np.log10(min(errors)) <= np.log10(max(errors)) < right
    if len(errors) == 1:
        assert 0.3 < (-11 - left) / (right - left) < 0.8


def test_distances_say_their_first_and_last_value():
    words = distances({"kept": [2.0, 2.0], "shrinks": [2.0, 1.0]}, "Title", "largest distance").alt
    assert words == "Title. Largest distance, first to last step: kept: 2 → 2; shrinks: 2 → 1."


def test_series_that_lie_on_each_other_are_both_seen():
    plot = distances({"one": np.ones(50), "other": np.ones(50)}, "Title", "distance")
    assert shows(plot, palette.COMPUTATION)
    assert shows(plot, palette.COMMUNICATION)


test_bad_input_is_named = refuses(
    (lambda: error_ladder(ERRORS, 1.0, ""), "title"),
    (lambda: distances({}, "Title", "distance"), "series"),
    (lambda: distances({"a": [1.0]}, " ", "distance"), "title"),
)
