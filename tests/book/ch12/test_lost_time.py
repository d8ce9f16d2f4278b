"""Do the losses of a step add up, does each fall to its cause, and does the player show them one after another?"""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbook.book import ch12
from dpbook.book.ch12 import judge, time_lost
from dpbook.overlap import (
    Span,
    Timeline,
    equal_layers,
    hook,
    read_profiles,
    recorded_traces,
    simulate_step,
    split_waits,
)
from tests.cases import each, refuses
from tests.figures.reading import misplaced, parse, texts

MS = 1e-3


def step(*rows, window=None):
    """Spans from (rank, kind, start, end) in milliseconds, each on a lane of its own."""
    spans = [Span(kind, rank, f"{kind} {k}", kind, a * MS, b * MS) for k, (rank, kind, a, b) in enumerate(rows)]
    return Timeline(tuple(spans), window and (window[0] * MS, window[1] * MS))


def in_ms(timeline):
    return {rank: tuple(round(1e3 * seconds, 9) for seconds in loss) for rank, loss in time_lost(timeline).items()}


def test_who_comes_early_waits_and_who_comes_late_was_idle():
    late = step(
        (0, "computation", 0, 4), (0, "communication", 4, 10),
        (1, "computation", 3, 7), (1, "communication", 7, 10),
    )  # fmt: skip
    assert in_ms(late) == {0: (3, 3, 0), 1: (3, 0, 3)}


def test_what_computation_hides_is_no_loss():
    hidden = step(
        (0, "computation", 0, 10), (0, "communication", 4, 9),
        (1, "computation", 0, 8), (1, "communication", 6, 9),
        window=(0, 10),
    )  # fmt: skip
    assert in_ms(hidden) == {0: (0, 0, 0), 1: (1, 0, 1)}


def test_waiting_in_one_collective_while_another_moves_bytes_is_transfer():
    both = step(
        (0, "communication", 0, 6), (0, "communication", 1, 9),
        (1, "communication", 0, 6), (1, "communication", 7, 9),
    )  # fmt: skip
    assert in_ms(both)[0] == (8, 1, 0)


@given(st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_computation_and_losses_are_the_step(world, seed):
    rng = np.random.default_rng(seed)
    layers = equal_layers(int(rng.integers(1, 6)), 0.01, 0.02, 60)
    timeline = simulate_step(layers, hook(layers), lambda n: n * 1e-3, factors=rng.uniform(1, 2, world).tolist())
    for rank, loss in time_lost(timeline).items():
        assert min(loss) > -1e-12
        assert sum(loss) + timeline.busy("computation", rank) == pytest.approx(timeline.duration)


def counted(timeline):
    """The losses, summed over the shortest intervals that no span divides."""
    cuts = sorted({*timeline.window, *(t for s in timeline.spans for t in (s.start, s.end))})

    def of(rank, kind):
        return sorted((s for s in timeline.spans if (s.rank, s.kind) == (rank, kind)), key=lambda span: span.start)

    begun = [max(s.start for s in same) for same in zip(*(of(r, "communication") for r in timeline.ranks), strict=True)]
    losses = {}
    for rank in timeline.ranks:
        losses[rank] = [0.0, 0.0, 0.0]
        calls = of(rank, "communication")
        for a, b in pairwise(cuts):
            moving = any(first <= a and b <= call.end for call, first in zip(calls, begun, strict=True))
            inside = any(call.start <= a and b <= call.end for call in calls)
            if not any(work.start <= a and b <= work.end for work in of(rank, "computation")):
                losses[rank][0 if moving else 1 if inside else 2] += b - a
    return losses


@given(st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_losses_are_those_of_a_count_of_intervals(world, seed):
    step = judge.random(np.random.default_rng(seed), world)
    for rank, losses in counted(step).items():
        assert time_lost(step)[rank] == pytest.approx(losses)


def test_waiting_that_is_apart_already_stays_what_it_is():
    real = read_profiles(recorded_traces(), step=10)
    assert time_lost(split_waits(real)) == time_lost(real)


def played_step(late, work=60):
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
    viewer = ch12.play_diagnosis(played_step([0, 0, 40]))
    assert [ranks_shown(look(viewer, after)) for after in range(3)] == [
        ["rank 0"],
        ["rank 0", "rank 1", "rank 2"],
        ["rank 0", "rank 1", "rank 2"],
    ]


def test_waiting_is_distinguished_from_transfer_at_the_end_alone():
    viewer = ch12.play_diagnosis(played_step([0, 0, 40]))
    assert "48 ms of 108 ms are exposed" in look(viewer, 0).alt
    assert "rank 0 spends 48 ms, rank 2 8 ms" in look(viewer, 1).alt
    assert "waiting" not in look(viewer, 1).alt
    assert "transfer + waiting + idle: rank 0 8 + 40 + 0 ms" in look(viewer, 2).alt
    assert "rank 2 8 + 0 + 40 ms" in look(viewer, 2).alt


def test_a_rank_without_work_and_a_slow_one_are_distinguished():
    assert "rank 1: it is without work for 40 ms" in look(ch12.play_diagnosis(played_step([0, 40])), 2).alt
    assert "rank 1: it computes for 100 ms" in look(ch12.play_diagnosis(played_step([0, 0], [60, 100])), 2).alt


@each("after", range(3))
@each("ranks", [2, 8])
def test_nothing_lies_outside_or_on_something_else(ranks, after):
    root = parse(look(ch12.play_diagnosis(played_step([7 * rank for rank in range(ranks)])), after))
    assert misplaced(root) == []


def test_in_a_recorded_step_nobody_waits_long():
    alt = look(ch12.play_diagnosis(read_profiles(recorded_traces(), step=10)), 2).alt
    assert "no rank waits for more than 0.701 ms" in alt
    assert "rank 1 6.51 + 0.127 + 1.42 ms" in alt


SILENT = Timeline(tuple(Span("work", rank, "compute", "computation", 0, 1) for rank in range(2)))


test_what_cannot_be_diagnosed_is_named = refuses(
    (lambda: ch12.play_diagnosis(None), "timeline must be"),
    (lambda: ch12.play_diagnosis(played_step([0])), "timeline must be"),
    (lambda: ch12.play_diagnosis(SILENT), "timeline must be"),
    (lambda: ch12.play_diagnosis(played_step([0] * 9)), "timeline must be"),
    (lambda: time_lost(step((0, "communication", 0, 1), (1, "computation", 0, 1))), "timeline"),
)
