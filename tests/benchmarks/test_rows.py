"""Does a benchmark's table say which goals are met, and which were missed because the machine was busy?"""

import pytest

from tests.benchmarks import rows
from tests.benchmarks.rows import Load, Row
from tests.cases import each


@each(
    ("values", "goals", "under_load", "message"),
    [
        ([1.0, 2.0, 9.0], {"at_least": 2}, False, "≥ 2: met"),
        ([1.0, 2.0, 9.0], {"at_most": 1.5}, False, "≤ 1.5: MISSED"),
        ([1.0, 2.0, 9.0], {"at_most": 1.5}, True, "≤ 1.5: under load"),
        ([1.0, 2.0, 9.0], {"at_least": -1, "at_most": 1.5}, True, "≥ -1: met, ≤ 1.5: under load"),
        ([1.0], {}, True, "under load"),
        ([1.0], {}, False, "–"),
    ],
)
def test_a_goal_that_is_missed_on_a_busy_machine_says_so(values, goals, under_load, message):
    assert str(Row("what", values, "×", **goals, under_load=under_load)).endswith(f"   {message}")


def test_load_before_a_row_or_after_it_counts(monkeypatch):
    """Three looks each time, of which the one in the middle counts."""
    looks = iter([1.0, 1.0, 3.0, 1.0, 2.0, 2.0, 1.0, 1.1, 1.0, 1.0, 1.0, 1.0])
    monkeypatch.setattr(rows, "slowdown", lambda: next(looks))
    load = Load()
    assert [load.since() for _ in range(4)] == [False, True, True, False]


@pytest.mark.parametrize(
    ("clock", "computing", "slow"), [([0, 2, 5, 9], [0, 2, 7, 8], 4), ([0, 1, 1, 2], [0, 1, 1, 2], 1)]
)
def test_a_core_that_was_anothers_is_seen_by_its_clock(clock, computing, slow, monkeypatch):
    monkeypatch.setattr(rows.machine, "cores", lambda: 1)
    ticks, own = iter(clock), iter(computing)
    monkeypatch.setattr(rows.time, "perf_counter", lambda: next(ticks))
    monkeypatch.setattr(rows.time, "thread_time", lambda: next(own))
    monkeypatch.setattr(rows, "SUM", b"")
    assert [rows._spin(), rows._spin()] == [1, slow]
