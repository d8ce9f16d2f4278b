"""Does the picture of all ranks show each of them, from the start of the common window?"""

import pytest

from dpbook import figures
from dpbook.core.errors import InvalidArgument
from dpbook.overlap import Timeline, equal_layers, hook, read_profiles, recorded_traces, simulate_step
from tests.figures.reading import outside, overlapping, parse, texts

LAYERS = equal_layers(10, 0.1 / 3, 0.2 / 3, 1_000_000)


def step(ranks):
    return simulate_step(LAYERS, hook(LAYERS), lambda n: 30e-9 * n, factors=[1 + rank / 10 for rank in range(ranks)])


@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_every_rank_has_its_lanes(ranks):
    root = parse(figures.draw_ranks(step(ranks), "Title"))
    assert [text for text in texts(root) if text.startswith("rank ")] == [f"rank {rank}" for rank in range(ranks)]
    assert texts(root).count("communication") == ranks + 1  # once in the legend
    assert outside(root) == []
    assert overlapping(root) == []


def test_each_rank_has_its_own_figures():
    alt = figures.draw_ranks(step(3), "Title").alt
    for rank in range(3):
        assert f"rank {rank}: 123 ms, exposed {9 - 3 * rank} ms" in alt


def test_a_window_that_begins_later_has_the_same_figures():
    assert figures.draw_ranks(step(2).shifted(5.0), "Title").alt == figures.draw_ranks(step(2), "Title").alt


def test_a_recorded_step_fits():
    root = parse(figures.draw_ranks(read_profiles(recorded_traces(), step=10), "A real step"))
    assert outside(root) == []
    assert overlapping(root) == []


@pytest.mark.parametrize("timeline", [None, Timeline((), (0, 1)), step(9)], ids=["none", "no spans", "too many"])
def test_what_cannot_be_drawn_is_named(timeline):
    with pytest.raises(InvalidArgument, match="timeline must be a Timeline of 1 to 8 ranks"):
        figures.draw_ranks(timeline, "Title")


def test_a_title_is_needed():
    with pytest.raises(InvalidArgument, match="title"):
        figures.draw_ranks(step(2), " ")
