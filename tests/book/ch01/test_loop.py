"""The loop viewer shows the numbers that gradient descent on the whole batch has, computed here by hand."""

import numpy as np
import pytest

from dpbook.book import ch01
from tests.cases import refuses
from tests.figures import reading

X = np.arange(1.0, 5.0)


def texts(viewer, phase):
    viewer.after = phase
    return reading.texts(reading.parse(viewer.picture))


@pytest.mark.parametrize("world", [1, 2, 4])
def test_weights_are_those_of_one_worker(world):
    viewer, w = ch01.play_loop(X, 2 * X, world, lr=0.01, steps=3), 0.0
    for step in range(3):
        assert texts(viewer, 4 * step + 1).count(f"w = {w:.4g}") == world
        w -= 0.01 * np.mean(2 * (w * X - 2 * X) * X)
        assert texts(viewer, 4 * step + 4).count(f"w = {w:.4g}") == world


def test_local_gradients_differ_and_their_average_does_not():
    shown = texts(ch01.play_loop(X, 2 * X, 2, lr=0.01, steps=1), 3)
    assert ("-10" in shown, "-50" in shown, shown.count("-30")) == (True, True, 2)


def test_nothing_is_shown_before_its_phase():
    assert "-10" not in texts(ch01.play_loop(X, 2 * X, 2, lr=0.01, steps=1), 1)


def test_the_words_say_what_the_picture_shows():
    viewer = ch01.play_loop(X, 2 * X, 2, lr=0.01, steps=1)
    viewer.after = 3
    assert "rank 1: w = 0, x = 3, 4, -50, -30" in viewer.picture.alt


test_bad_input_is_named = refuses(
    (lambda: ch01.play_loop(X, X[:3], 2, lr=0.01, steps=1), "x and y"),
    (lambda: ch01.play_loop(X, X, 3, lr=0.01, steps=1), "global batch"),
    (lambda: ch01.play_loop(X, X, 5, lr=0.01, steps=1), "world"),
    (lambda: ch01.play_loop(np.ones((2, 2)), X, 2, lr=0.01, steps=1), "x and y"),
)
