"""Does every moment of an update get its place, and waiting none?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbook.runs.forecast.measured_step import time_update


def update(*marks, synced=(True,), emulated=False):
    """An update whose sums arrive at the moments "arrived"."""
    spans = [("call", 0.0, at, "all_reduce", 8, None) for kind, at in marks if kind == "arrived"]
    kept = [mark for mark in marks if mark[0] != "arrived"]
    return {
        "marks": [("begun", 0.0), *kept],
        "spans": spans,
        "synced": list(synced),
        "emulated": emulated,
        "own_hook": False,
    }


ONE = [("forward", 1), ("backward", 3), (1, 4), (0, 6), ("returned", 6.5), ("stepped", 9)]


def test_the_parts_of_an_update_on_one_process():
    times = time_update(update(*ONE), 1)
    assert (times.other, times.forwards, times.backwards) == (1, (2,), (3,))
    assert times.gaps == ((1, 1), (0, 2))
    assert (times.after, times.period) == (3, 9)  # from the last gradient on


def test_waiting_for_sums_is_in_no_part():
    marks = [("forward", 1), ("backward", 3), (1, 4), ("arrived", 5), (0, 6), ("arrived", 8), ("returned", 8.5)]
    times = time_update(update(*marks, ("stepped", 10)), 2)
    assert (times.backwards, times.after, times.period - times.alone) == ((3,), 2, 2)


def test_where_nobody_says_when_sums_arrive_all_of_it_may_be_waiting():
    times = time_update(update(*ONE), 2)
    assert times.after == 2.5


def test_micro_batches_are_kept_apart_and_the_last_one_is_recognised_by_gradient():
    marks = [
        ("forward", 1), ("backward", 3), (1, 4), (0, 6), ("returned", 6),
        ("forward", 8), ("backward", 9), (1, 11), (0, 12), ("returned", 12), ("stepped", 13),
    ]  # fmt: skip
    times = time_update(update(*marks, synced=(False, True)), 1)
    assert (times.forwards, times.backwards) == ((2, 1), (3, 3))
    assert (times.other, times.after, times.early) == (1 + 2, 1, False)
    assert times.gaps == ((1, 2), (0, 1))
    assert time_update(update(*marks, synced=(True, True)), 1).early


def test_a_gradient_that_is_added_to_twice_is_ready_the_last_time():
    times = time_update(update(("backward", 0), (0, 1), (1, 2), (0, 4), ("returned", 4), ("stepped", 5)), 1)
    assert times.gaps == ((1, 2), (0, 2))


def test_a_backward_without_gradients_is_something_else():
    assert time_update(update(("backward", 1), ("returned", 2), ("stepped", 4)), 1) is None
    before = [("forward", 0.2), ("backward", 0.4), ("returned", 0.6)]
    assert time_update(update(*before, *ONE, synced=(True, True)), 1).backwards == (3,)


PIECES = st.floats(0, 1)


@given(st.lists(st.tuples(*[PIECES] * 6), min_size=1, max_size=4), st.booleans())
def test_on_one_process_the_parts_are_the_whole(micro_batches, forward_is_seen):
    now, marks = 0.0, []
    for pieces in micro_batches:
        kinds = ["forward", "backward", 1, 0, "returned"][0 if forward_is_seen else 1 :]
        for kind, seconds in zip(kinds, pieces, strict=False):
            now += seconds
            marks.append((kind, now))
    marks += [("stepped", now + 2)]
    times = time_update(update(*marks, synced=[True] * len(micro_batches)), 1)
    assert times.alone == pytest.approx(now + 2)
    assert times.period == now + 2
