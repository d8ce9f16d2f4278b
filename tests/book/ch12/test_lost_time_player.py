"""Does the diagnosis show one rank, then all, then what they lose, and does it name the rank that comes last?"""

import pytest

from dpbook.book import ch12
from dpbook.core.errors import InvalidArgument
from dpbook.overlap import Span, Timeline, read_profiles, recorded_traces
from tests.cases import each
from tests.figures.reading import outside, overlapping, parse, texts


def step(late, work=60):
    """Per rank: so much later, ``work`` ms of computation, one message when it ends; 8 ms after the last has come."""
    comes = [delay + busy for delay, busy in zip(late, work if isinstance(work, list) else [work] * 9, strict=False)]
    spans = []
    for rank, (delay, enters) in enumerate(zip(late, comes, strict=True)):
        spans.append(Span("backward", rank, "compute", "computation", delay / 1e3, enters / 1e3))
        spans.append(Span("all-reduce", rank, "communication", "communication", enters / 1e3, (max(comes) + 8) / 1e3))
    return Timeline(tuple(spans), (0.0, (max(comes) + 8) / 1e3))


def look(viewer, after):
    viewer.after = after
    return viewer.picture


def ranks_shown(picture):
    return [text for text in texts(parse(picture)) if text.startswith("rank ") and len(text) == 6]


def test_one_rank_and_then_all():
    viewer = ch12.play_diagnosis(step([0, 0, 40]))
    assert [ranks_shown(look(viewer, after)) for after in range(3)] == [
        ["rank 0"],
        ["rank 0", "rank 1", "rank 2"],
        ["rank 0", "rank 1", "rank 2"],
    ]


def test_waiting_is_told_from_transfer_at_the_end_alone():
    viewer = ch12.play_diagnosis(step([0, 0, 40]))
    assert "48 ms of 108 ms are exposed" in look(viewer, 0).alt
    assert "rank 0 spends 48 ms, rank 2 8 ms" in look(viewer, 1).alt
    assert "waiting" not in look(viewer, 1).alt
    assert "transfer + waiting + idle: rank 0 8 + 40 + 0 ms" in look(viewer, 2).alt
    assert "rank 2 8 + 0 + 40 ms" in look(viewer, 2).alt


def test_a_rank_without_work_and_a_slow_one_are_told_apart():
    assert "rank 1: it is without work for 40 ms" in look(ch12.play_diagnosis(step([0, 40])), 2).alt
    assert "rank 1: it computes for 100 ms" in look(ch12.play_diagnosis(step([0, 0], [60, 100])), 2).alt


@each("after", range(3))
@each("ranks", [2, 8])
def test_nothing_lies_outside_or_on_something_else(ranks, after):
    root = parse(look(ch12.play_diagnosis(step([7 * rank for rank in range(ranks)])), after))
    assert outside(root) == []
    assert overlapping(root) == []


def test_in_a_recorded_step_nobody_waits_long():
    alt = look(ch12.play_diagnosis(read_profiles(recorded_traces(), step=10)), 2).alt
    assert "no rank waits for more than 0.701 ms" in alt
    assert "rank 1 6.51 + 0.127 + 1.42 ms" in alt


ONE = step([0])
SILENT = Timeline(tuple(Span("work", rank, "compute", "computation", 0, 1) for rank in range(2)))


@pytest.mark.parametrize("timeline", [None, ONE, SILENT, step([0] * 9)], ids=["none", "one", "silent", "nine"])
def test_what_cannot_be_diagnosed_is_named(timeline):
    with pytest.raises(InvalidArgument, match="timeline must be"):
        ch12.play_diagnosis(timeline)
