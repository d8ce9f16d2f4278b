"""Schedules as values: chunk bounds, placements, and one after another."""

import copy
import dataclasses
import functools
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbook import collectives
from dpbook.collectives import (
    EvenSplit,
    FixedBounds,
    Round,
    Schedule,
    all_gather,
    broadcast,
    chunk_bounds,
    complete_everywhere,
    complete_on,
    hierarchical_ring,
    partial,
    reduce,
    reduce_scatter,
    ring,
    to_json,
    tree,
)
from dpbook.core.errors import InvalidArgument, ScheduleError
from tests.cases import each

# Chunk bounds


@given(size=st.integers(0, 300), n_chunks=st.integers(1, 40), itemsize=st.sampled_from([1, 2, 4, 8, 16]))
def test_even_split_has_the_boundaries_of_array_split(size, n_chunks, itemsize):
    pieces = np.array_split(np.arange(size), n_chunks)
    offsets = EvenSplit(n_chunks)(size, itemsize)
    assert offsets.dtype == np.int64
    assert offsets.tolist() == [0, *np.cumsum([len(p) for p in pieces]).tolist()]
    assert offsets.tolist() == chunk_bounds(size, n_chunks).tolist()


def test_fixed_bounds_give_their_offsets_for_their_size():
    assert FixedBounds((0, 4, 7, 7))(7, 4).tolist() == [0, 4, 7, 7]


def test_fixed_bounds_refuse_another_size():
    with pytest.raises(InvalidArgument, match=r"size must be 7, .*got 8"):
        FixedBounds((0, 4, 7))(8, 4)


@each("offsets", [(), (0,), (1, 2), (0, 3, 2), (0, 2.5), (0, None), ("0", "1"), (-1, 3)])
def test_offsets_that_cut_nothing_are_refused(offsets):
    with pytest.raises(InvalidArgument, match="offsets"):
        FixedBounds(offsets)


def test_fixed_bounds_take_an_array_of_offsets():
    assert FixedBounds(chunk_bounds(7, 3)) == FixedBounds((0, 3, 5, 7))


@pytest.mark.parametrize("n_chunks", [0, -1, 2.0, True, None])
def test_a_split_into_no_chunks_is_refused(n_chunks):
    with pytest.raises(InvalidArgument, match="n_chunks"):
        EvenSplit(n_chunks)
    with pytest.raises(InvalidArgument, match="n_chunks"):
        chunk_bounds(3, n_chunks)


def test_a_schedule_follows_its_own_bounds():
    schedule = Schedule(2, 2, [Round.of(0, 1, 0, False)], FixedBounds((0, 1, 5)))
    result = collectives.simulate(schedule, np.array([[1] * 5, [2] * 5])).buffers
    assert result.tolist() == [[1] * 5, [1, 2, 2, 2, 2]]


# What a schedule refuses


@each(
    ("change", "named"),
    [
        ({"world": 0}, "world"),
        ({"world": 2.5}, "world"),
        ({"world": True}, "world"),
        ({"n_chunks": 0}, "n_chunks"),
        ({"rounds": (r for r in ())}, "rounds"),
        ({"bounds": EvenSplit(3)}, "bounds"),
        ({"before": (partial(3),)}, "before"),
        ({"after": (complete_on([5], 6),) * 2}, "after"),
        ({"after": ({0: frozenset({3})}, {})}, "after"),
    ],
)
def test_a_wrong_field_is_refused_by_name(change, named):
    with pytest.raises(InvalidArgument, match=f"^{named} must be"):
        Schedule(**({"world": 3, "n_chunks": 2, "rounds": []} | change))


@each("make", [*collectives.ALGORITHMS.values(), reduce_scatter, all_gather, reduce, broadcast])
@each("world", [0, -1, 2.0, "4", None, True])
def test_every_algorithm_refuses_what_is_no_world(make, world):
    with pytest.raises(InvalidArgument, match=r"^world must be an integer of at least 1"):
        make(world)


@each("make", [*collectives.ALGORITHMS.values(), reduce_scatter, all_gather, reduce, broadcast])
def test_a_world_may_be_an_integer_of_numpy(make):
    assert to_json(make(np.int64(5))) == to_json(make(5))


@each("make", [reduce, broadcast])
@each("root", [-1, 4, 1.0])
def test_a_root_outside_the_world_is_refused(make, root):
    with pytest.raises(InvalidArgument, match=r"^root must be an integer from 0 to 3"):
        make(4, root)


# What was checked once stays as it is


def everything(schedule):
    """All that a schedule holds, as plain values."""
    rounds = [list(r) for r in schedule.rounds]
    placements = [[dict(holding) for holding in placement] for placement in (schedule.before, schedule.after)]
    return (schedule.world, schedule.n_chunks, rounds, schedule.bounds, *placements, schedule.name)


@each("name", ["world", "n_chunks", "rounds", "bounds", "before", "after", "name"])
def test_a_schedule_cannot_be_changed(name):
    schedule = ring(2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(schedule, name, getattr(ring(3), name))


def test_a_promise_does_not_change_with_the_dict_it_was_made_of():
    given = {0: frozenset({0, 1})}
    schedule = Schedule(2, 1, [Round.of(1, 0, 0, True)], after=[given])
    given[1] = frozenset({0, 1})
    assert [dict(holding) for holding in schedule.after] == [{0: {0, 1}}]
    with pytest.raises(TypeError, match="does not support item assignment"):
        schedule.after[0][1] = frozenset({0, 1})


@each("again", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
@each("schedule", [tree(5), hierarchical_ring(2, 2), Schedule(2, 2, [], FixedBounds((0, 1, 5)))])
def test_a_schedule_can_be_copied_and_pickled(again, schedule):
    assert everything(again(schedule)) == everything(schedule)


def test_what_comes_out_of_a_pickle_is_checked():
    read = pickle.loads(pickle.dumps(Schedule(2, 1, [Round.of(0, 0, 0, True)])))
    with pytest.raises(ScheduleError, match="sends a message to itself"):
        collectives.count(read, 1)


# One after another


def test_then_runs_the_rounds_of_both_in_order():
    first, second = reduce_scatter(4), all_gather(4)
    both = first.then(second)
    assert [list(r) for r in both.rounds] == [list(r) for r in (*first.rounds, *second.rounds)]
    assert (both.before, both.after) == (first.before, second.after)


def test_then_refuses_what_does_not_begin_where_the_first_ends():
    with pytest.raises(ScheduleError, match=r"all_gather.* cannot follow all_gather.*chunk 0.*rank 2.*every rank"):
        all_gather(3).then(all_gather(3))


def test_then_compares_every_chunk():
    other = Schedule(3, 3, [], before=(*reduce_scatter(3).after[:2], complete_on([0], 3)), name="other")
    with pytest.raises(ScheduleError, match=r"at chunk 2 it needs .*complete on rank 0.*finds .*complete on rank 1"):
        reduce_scatter(3).then(other)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (ring(4), "world"),
        (Schedule(3, 1, []), "n_chunks"),
        (Schedule(3, 3, [], FixedBounds((0, 1, 2, 3))), "bounds"),
    ],
)
def test_then_refuses_another_world_chunks_or_bounds(other, named):
    with pytest.raises(InvalidArgument, match=f"^{named} of"):
        reduce_scatter(3).then(other)


def test_placements_compare_by_value_and_not_by_identity():
    rebuilt = collectives.from_json(to_json(all_gather(5)))
    assert collectives.verify(reduce_scatter(5).then(rebuilt))


def test_a_schedule_can_be_followed_by_a_broadcast_from_its_root():
    assert collectives.verify(reduce(6, root=4).then(broadcast(6, root=4)))
    with pytest.raises(ScheduleError):
        reduce(6, root=4).then(broadcast(6, root=3))


# Thousands of parts


def turn(begin, world=3):
    """Every rank sends its buffer to the right; contribution r is on rank r + ``begin`` before, one further after."""
    ranks = np.arange(world)
    before, after = (({(r + shift) % world: frozenset({r}) for r in range(world)},) for shift in (begin, begin + 1))
    return Schedule(world, 1, [Round(ranks, (ranks + 1) % world, ranks * 0, False)], before=before, after=after)


@functools.cache
def turns():
    return [turn(begin % 3) for begin in range(2000)]


@functools.cache
def left_to_right():
    return functools.reduce(Schedule.then, turns())


def right_to_left():
    return functools.reduce(lambda after, before: before.then(after), reversed(turns()))


@each("join", [left_to_right, right_to_left])
def test_two_thousand_schedules_follow_one_another(join):
    many = join()
    buffers = np.array([[1, 2], [3, 4], [5, 6]])
    assert collectives.simulate(many, buffers).buffers.tolist() == np.roll(buffers, 2000, axis=0).tolist()
    assert collectives.verify(many)
    assert collectives.count(many, 2, 8).sent_bytes.tolist() == [2000 * 16] * 3


def test_one_wrong_part_among_two_thousand_is_found():
    *before, last = turns()[:1000]
    idle = Schedule(3, 1, [], before=last.before, after=last.after)
    many = functools.reduce(Schedule.then, [*before, idle, *turns()[1000:]])
    with pytest.raises(ScheduleError, match="lost contribution"):
        collectives.verify(many)


def test_the_name_of_many_is_short():
    assert len(left_to_right().name) <= 80


# What it says of itself


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (ring(4), "ring(world=4): world 4, 6 rounds, 4 chunks, partial on every rank → complete on every rank"),
        (tree(1), "tree(world=1): world 1, 0 rounds, 1 chunk, complete on every rank → complete on every rank"),
        (
            reduce(3, 2),
            "reduce(world=3): world 3, 2 rounds, 1 chunk, partial on every rank → chunk 0: complete on rank 2",
        ),
    ],
)
def test_repr_says_what_it_is(schedule, message):
    assert repr(schedule) == message


def test_named_changes_the_name_alone():
    named = ring(3).named("mine")
    assert (named.name, len(named.rounds), named.before, named.after) == ("mine", 4, ring(3).before, ring(3).after)


def test_complete_everywhere_promises_everyone_to_everyone():
    assert dict(complete_everywhere(3)) == dict.fromkeys(range(3), frozenset(range(3)))
