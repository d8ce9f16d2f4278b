"""Does the state of every cell agree with an independent count of contributions?"""

from collections import Counter

import numpy as np
import pytest

from dpbook.collectives import ALGORITHMS, Round, Schedule, all_gather, broadcast, count, parameter_server, ring, tree
from dpbook.core.errors import ScheduleError
from dpbook.figures import demonstration
from dpbook.figures.schedules.states import MAX_CHUNKS, MAX_RANKS, replay
from tests.cases import each, refuses
from tests.figures.reading import DOUBLE, EXTRA_ROUND

WORLDS = [*range(1, 10), 16]


def by_hand(schedule):
    """Return the multiset of contributors of every cell after every round, message by message."""
    cells = {(r, c): Counter([r]) for r in range(schedule.world) for c in range(schedule.n_chunks)}
    yield dict(cells)
    for round_ in schedule.rounds:
        before = dict(cells)
        for source, dest, chunk, reduce in round_:
            cells[dest, chunk] = (before[dest, chunk] if reduce else Counter()) + before[source, chunk]
        yield dict(cells)


def kind_of(counts, world):
    if max(counts.values()) > 1:
        return "fault"
    return "complete" if len(counts) == world else "own" if len(counts) == 1 else "partial"


@each("world", WORLDS)
@each("build", ALGORITHMS.values())
def test_kinds_are_those_of_a_count_by_hand(build, world):
    schedule = build(world)
    states = replay(schedule)
    assert len(states) == len(schedule.rounds) + 1
    for state, cells in zip(states, by_hand(schedule), strict=True):
        assert {(r, c): kind for r, row in enumerate(state.kinds) for c, kind in enumerate(row)} == {
            cell: kind_of(counts, world) for cell, counts in cells.items()
        }


@pytest.mark.parametrize("schedule", [DOUBLE, EXTRA_ROUND], ids=["parameter server", "ring"])
def test_a_contribution_counted_twice_is_a_fault(schedule):
    states = replay(schedule)
    for state, cells in zip(states, by_hand(schedule), strict=True):
        faults = sum(max(counts.values()) > 1 for counts in cells.values())
        assert state.number_of("fault") == faults
    assert states[-1].number_of("fault") > 0


@each("world", range(1, 10))
def test_the_numbers_of_a_ring_end_as_ones(world):
    last = replay(ring(world))[-1]
    assert last.values == [["1" * world] * world] * world


def test_a_double_count_reads_1211():
    assert replay(DOUBLE)[-1].values == [["1211"]] * 4


@each("world", WORLDS)
@each("size", [0, 2, 10, 33])
def test_traffic_so_far_ends_at_what_count_says(world, size):
    schedule = ring(world)
    last, counted = replay(schedule, size=size)[-1].traffic, count(schedule, size, 4)
    assert (last.rounds, last.messages) == (counted.rounds, counted.messages)
    assert last.sent_bytes.tolist() == counted.sent_bytes.tolist()
    assert last.received_bytes.tolist() == counted.received_bytes.tolist()


def test_messages_of_empty_chunks_are_none():
    states = replay(ring(3), size=2)
    assert [len(s.messages) for s in states] == [0, 2, 2, 2, 2]
    assert all(row[2] == "empty" for s in states for row in s.kinds)


def test_ranks_of_which_nothing_is_promised_are_unknown_until_they_are_written():
    states = replay(broadcast(4))
    assert [s.number_of("unknown") for s in states] == [3, 2, 0]
    assert states[0].values == [["1111"], ["0"], ["0"], ["0"]]


def test_what_is_added_to_nothing_promised_stays_unknown():
    placed = all_gather(2)
    schedule = Schedule(2, 2, [Round.of([0, 1], [1, 0], [1, 0], True)], before=placed.before, after=placed.after)
    assert replay(schedule)[1].number_of("unknown") == 2


def test_buffers_are_shown_as_they_are():
    buffers = np.array([[1.5, 1.5, 2.0], [1e10, 1.0, -3.0]])
    assert replay(parameter_server(2), buffers)[0].values == [["1.5 …"], ["1e+10 …"]]
    assert replay(ring(2), buffers)[0].values == [["1.5", "2"], ["1e+10 …", "-3"]]


@pytest.mark.parametrize("value", [np.nan, np.inf, True, 1 + 2j])
def test_unusual_numbers_have_a_text(value):
    assert replay(tree(2), np.full((2, 1), value))[0].values[0][0]


def test_the_input_is_not_changed():
    buffers = demonstration(ring(4))
    replay(ring(4), buffers)
    assert buffers[:, 0].tolist() == [1, 10, 100, 1000]


def test_counting_up_saturates_and_stays_a_fault():
    doubling = Schedule(2, 1, [Round.of([0, 1], [1, 0], 0, True)] * 40)
    assert replay(doubling, np.zeros((2, 1)))[-1].number_of("fault") == 2


test_bad_input_is_named = refuses(
    (lambda: replay("ring"), "schedule"),
    (lambda: replay(ring(MAX_RANKS + 1)), "world"),
    (lambda: replay(Schedule(2, MAX_CHUNKS + 1, [])), "n_chunks"),
    (lambda: replay(Schedule(2, 1, [Round.of(0, 1, 0, True)] * 1001)), "number of rounds"),
    (lambda: replay(ring(4), size=-1), "size"),
    (lambda: replay(ring(4), np.zeros((4, 4)), size=4), "size"),
    (lambda: replay(ring(4), np.zeros((3, 4))), "buffers"),
    (lambda: demonstration(ring(10)), "world"),
)


def test_a_schedule_that_breaks_its_rules_says_so():
    with pytest.raises(ScheduleError, match="round 1"):
        replay(Schedule(2, 1, [Round.of(0, 5, 0, True)]))
