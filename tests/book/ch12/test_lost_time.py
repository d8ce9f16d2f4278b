"""Do the losses of a step add up, and does each fall to its cause?"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbook.book.ch12.timelines import time_lost
from dpbook.core.errors import InvalidArgument
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


def test_waiting_that_is_apart_already_stays_what_it_is():
    real = read_profiles(recorded_traces(), step=10)
    assert time_lost(split_waits(real)) == time_lost(real)


def test_a_missing_collective_is_named():
    with pytest.raises(InvalidArgument, match="equally many collectives"):
        time_lost(step((0, "communication", 0, 1), (1, "computation", 0, 1)))
