"""Rounds: what they hold, what they refuse, and that they are made only when asked for."""

import copy
import pickle
import tracemalloc
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbook.collectives import (
    LazyRounds,
    Message,
    Round,
    Schedule,
    beside,
    count,
    embed,
    find_fault,
    frames,
    from_json,
    record,
    ring,
    simulate,
    to_json,
    tree,
    verify,
)
from dpbook.collectives.schedule.rounds import JoinedRounds
from dpbook.core.errors import InvalidArgument, ScheduleError
from tests.cases import each
from tests.collectives.oracles import rounds

# What a round holds


def test_a_round_yields_its_messages_in_order():
    messages = [Message(0, 1, 2, True), Message(3, 0, 1, False)]
    assert list(Round.from_messages(messages)) == messages


def test_scalars_are_broadcast():
    assert list(Round.of([1, 2], 0, [5, 6], True)) == [(1, 0, 5, True), (2, 0, 6, True)]


def test_fields_are_contiguous_int64():
    round_ = Round.of(np.arange(6, dtype=np.int32)[::2], np.uint8(1), [0, 1, 2], True)
    assert [(f.dtype, f.flags.c_contiguous) for f in (round_.source, round_.dest, round_.chunk)] == [
        ("int64", True)
    ] * 3


@pytest.mark.parametrize("empty", [Round.from_messages([]), Round.of([], [], [], []), Round.of([], [], [], True)])
def test_an_empty_round_is_legal(empty):
    empty.check(0, 1, 1)
    assert len(empty) == 0
    assert list(empty) == []


@given(rounds(4, 3))
def test_parts_hold_the_same_messages_one_operation_each(round_):
    parts = round_.parts()
    assert sorted(m for part in parts for m in part) == sorted(round_)
    assert all(isinstance(part.reduce, bool) for part in parts)


@given(rounds(4, 3))
def test_a_round_knows_whether_it_reads_what_it_writes(round_):
    read, written = {(m.source, m.chunk) for m in round_}, {(m.dest, m.chunk) for m in round_}
    assert round_.reads_what_it_writes() == bool(read & written)


def test_repr_shows_arrows_and_cuts_long_rounds():
    assert repr(Round.from_messages([(0, 1, 2, True), (1, 0, 2, False)])) == "Round(0→1 +2, 1→0 =2)"
    assert repr(Round.of(np.arange(100), 100, np.arange(100), True)).endswith("… 100 messages)")


@each(
    ("fields", "named"),
    [
        (([0, 1], [1, 2, 3], 0, True), "source, dest, chunk and reduce"),
        (([0, 1], 2, 0, [True]), None),  # one operation for all: legal
        (([0, 1], 2, 0, [True, False, True]), "source, dest, chunk and reduce"),
        (([0.5], [1], [0], True), "source"),
        ((["0"], [1], [0], True), "source"),
        (([[0, 1]], [1], [0], True), "source"),
        (([0], [[1], [2, 3]], [0], True), "dest"),
        (([0], [1], [None], True), "chunk"),
        (([0], [1], [0], 1), "reduce"),
        (([0], [1], [0], None), "reduce"),
        (([0], [1], [0], ["copy"]), "reduce"),
    ],
)
def test_what_makes_no_round_is_refused_by_name(fields, named):
    if named is None:
        assert len(Round.of(*fields)) == 2
    else:
        with pytest.raises(InvalidArgument, match=f"^{named} must be"):
            Round.of(*fields)


# What was checked once stays as it is


def arrays():
    """The arguments of a round of two messages, all arrays that are writable."""
    return np.array([0, 1]), np.array([1, 0]), np.zeros(2, np.int64), np.array([True, False])


MADE = {
    "from arrays": lambda: Round(*arrays()),
    "from views": lambda: Round(*(a[::2] for a in map(np.tile, arrays(), [2] * 4))),
    "from anything": lambda: Round.of([0, 1], [1, 0], 0, [True, False]),
    "from messages": lambda: Round.from_messages([(0, 1, 0, True), (1, 0, 0, False)]),
    "lazily": lambda: ring(2).rounds[0],
    "from JSON": lambda: from_json(to_json(ring(2))).rounds[0],
    "by recording": lambda: record(lambda comm, x: comm.sendrecv(x, 1 - comm.rank, x, 1 - comm.rank), 2, 4).rounds[0],
    "by composition": lambda: beside(embed(tree(2), 4, [0, 1]), embed(tree(2), 4, [2, 3])).rounds[0],
    "of some messages": lambda: Round(*arrays()).select(np.array([True, False])),
    "as a copy": lambda: copy.deepcopy(Round(*arrays())),
    "from a pickle": lambda: pickle.loads(pickle.dumps(Round(*arrays()))),
}


@each("way", MADE)
def test_no_array_of_a_round_can_be_written(way):
    made = MADE[way]()
    for field in filter(lambda f: isinstance(f, np.ndarray), (made.source, made.dest, made.chunk, made.reduce)):
        with pytest.raises(ValueError, match="read-only"):
            field[0] = 0


@pytest.mark.parametrize("stored", range(4))
def test_a_round_does_not_change_with_the_arrays_it_was_made_of(stored):
    given = arrays()
    shown = given[stored][:]
    shown.setflags(write=False)  # no copy, but the array behind it can still be written
    made = Round(*given[:stored], shown, *given[stored + 1 :])
    for array in given:
        array[:] = 1
    assert list(made) == [(0, 1, 0, True), (1, 0, 0, False)]


def test_an_array_that_cannot_change_is_shared():
    array = Round(*arrays()).source
    assert Round(array, *arrays()[1:]).source is array


@pytest.mark.parametrize("named", ["source", "dest", "chunk", "reduce"])
def test_a_round_is_made_of_arrays(named):
    fields = dict(zip(("source", "dest", "chunk", "reduce"), arrays(), strict=True)) | {named: [0, 1]}
    with pytest.raises(InvalidArgument, match=f"^{named} must be an array"):
        Round(**fields)


# What a schedule refuses

GOOD = (0, 1, 0, True)
ILLEGAL = {
    "two reduces into one cell": ([(0, 2, 1, True), (1, 2, 1, True)], r"round 2: ranks \[0, 1\].* chunk 1 of rank 2"),
    "reduce and copy": ([(0, 2, 1, True), (3, 2, 1, False)], r"round 2: ranks \[0, 3\].* chunk 1 of rank 2"),
    "a message twice": ([(0, 2, 1, True), (0, 2, 1, True)], r"round 2: ranks \[0, 0\].* chunk 1 of rank 2"),
    "source too large": ([(4, 1, 0, True)], r"round 2: source 4 is not in 0\.\.3"),
    "source negative": ([(-1, 1, 0, True)], r"round 2: source -1 is not in 0\.\.3"),
    "dest too large": ([GOOD, (1, 9, 0, False)], r"round 2: dest 9 is not in 0\.\.3"),
    "dest negative": ([(1, -2, 0, False)], r"round 2: dest -2 is not in 0\.\.3"),
    "chunk too large": ([(1, 0, 2, True)], r"round 2: chunk 2 is not in 0\.\.1"),
    "chunk negative": ([(1, 0, -1, True)], r"round 2: chunk -1 is not in 0\.\.1"),
    "to itself": ([GOOD, (3, 3, 0, True)], r"round 2: rank 3 sends a message to itself"),
}
READERS = {
    "simulate, small": lambda s: simulate(s, np.ones((4, 6))),
    "simulate, large": lambda s: simulate(s, np.ones((4, 10_000))),
    "simulate in place": lambda s: simulate(s, np.ones((4, 10_000)), in_place=True),
    "frames": lambda s: list(frames(s, np.ones((4, 6)))),
    "verify": verify,
    "find_fault": find_fault,
    "count": lambda s: count(s, 10),
}


@each("reader", READERS)
@each("case", ILLEGAL)
def test_every_reader_refuses_an_illegal_round(case, reader):
    messages, error = ILLEGAL[case]
    schedule = Schedule(4, 2, [Round.from_messages([GOOD]), Round.from_messages(messages)])
    with pytest.raises(ScheduleError, match=error):
        READERS[reader](schedule)


def test_a_refused_schedule_is_refused_again():
    schedule = Schedule(2, 1, [Round.of(0, 0, 0, True)])
    for _ in range(2):
        with pytest.raises(ScheduleError):
            count(schedule, 1)


def test_a_legal_schedule_is_checked_once(monkeypatch):
    checked = []
    monkeypatch.setattr(Round, "check", lambda round_, index, world, n_chunks: checked.append(index))
    schedule = ring(3)
    simulate(schedule, np.zeros((3, 4)))
    verify(schedule)
    assert checked == [0, 1, 2, 3]


def test_a_walk_that_stops_early_vouches_for_nothing():
    schedule = Schedule(2, 1, [Round.of(0, 1, 0, True), Round.of(0, 0, 0, True)])
    next(schedule.walk())
    with pytest.raises(ScheduleError, match="round 2"):
        count(schedule, 1)


# Laziness


@given(st.integers(0, 20), st.integers(-25, 25))
def test_lazy_rounds_index_like_a_list(length, index):
    lazy, eager = LazyRounds(length, lambda i: i), list(range(length))
    try:
        expected = eager[index]
    except IndexError:
        with pytest.raises(IndexError, match=f"round {index} "):
            lazy[index]
    else:
        assert lazy[index] == expected


@given(st.integers(0, 20), st.slices(20))
def test_lazy_rounds_slice_like_a_list(length, cut):
    assert LazyRounds(length, lambda i: i)[cut] == list(range(length))[cut]


def test_lazy_rounds_are_a_sequence():
    lazy = LazyRounds(3, lambda i: i)
    assert (list(lazy), len(lazy), list(reversed(lazy)), 2 in lazy, lazy.index(1)) == ([0, 1, 2], 3, [2, 1, 0], True, 1)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.randoms(), st.integers(-20, 20), st.slices(18))
def test_joined_rounds_are_the_list_of_all_however_they_were_joined(lengths, random, index, cut):
    parts = [LazyRounds(length, lambda i, part=part: (part, i)) for part, length in enumerate(lengths)]
    everything = [item for part in parts for item in part]
    while len(parts) > 1:
        place = random.randrange(len(parts) - 1)
        parts[place : place + 2] = [JoinedRounds(*parts[place : place + 2])]
    assert (len(parts[0]), list(parts[0])) == (len(everything), everything)
    assert parts[0][cut] == everything[cut]
    if -len(everything) <= index < len(everything):
        assert parts[0][index] == everything[index]
    else:
        with pytest.raises(IndexError):
            parts[0][index]


def test_no_round_is_kept():
    seen = [weakref.ref(round_) for round_ in ring(64).walk()]
    assert len(seen) == 126
    assert sum(ref() is not None for ref in seen) <= 1  # the loop variable


@pytest.mark.proof
def test_counting_a_long_ring_needs_little_memory():
    one_round = 3 * 8 * 8192  # bytes of its three int64 arrays; there are 16,382 rounds, 3 GiB in all
    tracemalloc.start()
    schedule = ring(8192)
    traffic = count(schedule, 8192)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert traffic.rounds == 16_382
    assert peak < 100 * one_round
