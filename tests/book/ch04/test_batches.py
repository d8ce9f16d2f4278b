"""Do the pictures of chapter 04 show what the library computes, and say it in words?"""

from fractions import Fraction

import numpy as np
import pytest

from dpbook import replicas
from dpbook.book import ch04
from dpbook.book.ch04 import NoiseScale, against_batch, draw_accumulation, noise_scale_estimates, play_accumulation
from dpbook.core import palette
from dpbook.figures.card import LINES
from tests.cases import each, refuses
from tests.figures.reading import check_plot, misplaced, parse, shows, texts

# Accumulation


def updates(micro_batches, accumulation, leftover, epochs):
    """Updates of the library's loop if every gradient is 1."""
    held, done = Fraction(0), []
    for _ in range(epochs):
        for turn in replicas.accumulate(micro_batches, accumulation, leftover):
            held += Fraction(1, turn.divisor)
            if turn.update:
                done.append(held)
                held = Fraction(0)
    return done


def alt_text(picture):
    """The updates below the micro-batches; one of a single micro-batch has no room for the word."""
    lines = [line.removeprefix("update ") for line in texts(parse(picture))]
    return [line.removeprefix("by ") for line in lines if line.startswith("by ")]


@each("leftover", ["step", "drop", "carry"])
@each(("micro_batches", "accumulation"), [(1, 1), (1, 5), (4, 4), (7, 4), (10, 3), (5, 2), (3, 7)])
def test_the_updates_are_those_of_the_library(micro_batches, accumulation, leftover):
    picture = draw_accumulation(micro_batches, accumulation, leftover, epochs=3)
    expected = updates(micro_batches, accumulation, leftover, 3)
    assert alt_text(picture) == [f"{float(update):.4g}" for update in expected]
    assert picture.alt.endswith(f"Updates so far: {', '.join(alt_text(picture)) or 'none'}.")


def test_the_leftover_of_seven_by_four():
    assert alt_text(draw_accumulation(7, 4)) == ["1", "1.75"]
    assert alt_text(draw_accumulation(7, 4, "step")) == ["1"] * 4


def test_a_wrong_update_has_the_alarm_colour_and_a_right_one_has_not():
    assert palette.EXPOSED in draw_accumulation(7, 4, "carry").svg
    for leftover in ("step", "drop"):
        svg = draw_accumulation(7, 4, leftover).svg
        assert palette.COMPLETE in svg
        assert palette.EXPOSED not in svg


def test_the_viewer_shows_one_micro_batch_more_at_a_time():
    viewer = play_accumulation(7, 4)
    for after in range(15):
        viewer.after = after
        assert sum(line.startswith("+ ") for line in texts(parse(viewer.picture))) == after
    assert viewer.picture.svg == draw_accumulation(7, 4).svg


def test_what_becomes_of_the_leftover_is_shown_at_the_end_of_its_epoch_only():
    viewer = play_accumulation(7, 4)
    for after, times in ((6, 0), (7, 1), (13, 1), (14, 2)):
        viewer.after = after
        assert texts(parse(viewer.picture)).count("stays in the buffer") == times
    assert texts(parse(draw_accumulation(7, 4, "drop"))).count("not computed") == 2


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((7, 4, "carry"), "Updates 1 and 1.75; 0.75 stays behind"),
        ((7, 4, "step"), "Every update is 1"),
        ((7, 4, "drop"), "Every update is 1; 6 micro-batches are not computed"),
        ((8, 4, "carry"), "Every update is 1"),
        ((1, 5, "carry"), "No update; 0.4 stays behind"),
    ],
)
def test_the_last_headline_says_what_came_of_it(shape, words):
    assert draw_accumulation(*shape).alt.startswith(f"{words}. Updates so far: ")


def test_the_headline_says_what_the_buffer_holds():
    viewer = play_accumulation(7, 4)
    for after, words in (
        (0, "Before the first micro-batch the buffer is empty"),
        (3, "Epoch 1, micro-batch 3: the buffer holds 0.75"),
        (11, "Epoch 2, micro-batch 4: update by 1.75, then the buffer is cleared"),
    ):
        viewer.after = after
        assert viewer.picture.alt.startswith(words)


@each("leftover", ["step", "drop", "carry"])
@each("shape", [(1, 1, 1), (1, 10, 3), (7, 4, 2), (10, 9, 3)])
def test_nothing_is_cut_and_no_text_lies_on_another(shape, leftover):
    micro_batches, accumulation, epochs = shape
    root = parse(draw_accumulation(micro_batches, accumulation, leftover, epochs))
    assert misplaced(root) == []
    assert not [line for line in texts(root) if line.endswith("…")]


# Plots

BATCHES = [1, 4, 16]


def against(series, **settings):
    return against_batch(BATCHES, series, "Title", "loss", **settings)


def estimates(*scales):
    return [NoiseScale(1.0, float(scale)) for scale in scales]


def of_noise(*scales, direct=10.0):
    single = estimates(*scales)
    return noise_scale_estimates(single, list(ch04.smooth(single)), direct, "Title")


def test_measurements_against_the_batch_are_reported():
    plot = against({"linear": [0.5, 0.25, 1], "root": np.array([1, 2, 3])})
    assert plot.alt == "Title. Loss for batches of 1, 4, 16. linear: 0.5, 0.25, 1; root: 1, 2, 3."
    assert shows(plot, LINES[0][0])
    assert shows(plot, LINES[1][0])
    assert against({"linear": [0.5, 0.25, 1]}, log=True).svg != against({"linear": [0.5, 0.25, 1]}).svg


def test_the_noise_scale_is_reported_with_its_outliers():
    plot = of_noise(9, 12, -400, 31, 1400)
    assert plot.alt.startswith("Title. Directly measured: 10 examples; smoothed over 5 steps: 210. 3 single steps lie")
    assert shows(plot, LINES[0][0])
    assert shows(plot, LINES[1][0])


@each("draw", [lambda: against({"a": [1, 2, 3]}), lambda: of_noise(9, 12)])
def test_a_plot_is_a_small_picture_and_leaves_no_settings(draw):
    check_plot(draw)


test_bad_input_is_named = refuses(
    (lambda: play_accumulation(0, 4), "micro_batches"),
    (lambda: play_accumulation(11, 4), "micro_batches"),
    (lambda: draw_accumulation(7, 0), "accumulation"),
    (lambda: draw_accumulation(7, 4, "keep"), "leftover"),
    (lambda: draw_accumulation(7, 4, epochs=4), "epochs"),
    (lambda: against({}), "series"),
    (lambda: against_batch(BATCHES, {"a": [1, 2, 3]}, " ", "loss"), "title"),
)
