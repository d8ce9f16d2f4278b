"""Schedules made of schedules: do embed, beside and relabel put every message where they should?"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbook.collectives import (
    EvenSplit,
    FixedBounds,
    Schedule,
    all_gather,
    beside,
    broadcast,
    complete_on,
    embed,
    find_fault,
    partial,
    reduce,
    reduce_scatter,
    relabel,
    ring,
    simulate,
    tree,
    verify,
)
from dpbook.core.errors import InvalidArgument, ScheduleError
from tests.cases import each
from tests.collectives.oracles import broken_promises, integers, legal_schedules, plain

# embed


def test_embed_renames_ranks_and_chunks_of_every_message():
    small, ranks, chunks = ring(3), [5, 0, 3], [2, 4, 1]
    large = embed(small, 7, ranks, 6, chunks)
    expected = [[(ranks[m.source], ranks[m.dest], chunks[m.chunk], m.reduce) for m in r] for r in small.rounds]
    assert [list(r) for r in large.rounds] == expected
    assert (large.world, large.n_chunks) == (7, 6)


def test_embed_promises_for_the_ranks_and_chunks_it_names_and_no_others():
    large = embed(ring(2), 4, [3, 1], 4, [0, 2])
    pair = frozenset({1, 3})
    assert [dict(h) for h in large.after] == [{3: pair, 1: pair}, {}, {3: pair, 1: pair}, {}]
    assert [dict(h) for h in large.before] == [{3: frozenset({3}), 1: frozenset({1})}, {}] * 2


def test_embed_on_some_ranks_leaves_the_others_alone():
    buffers = integers(5, 6)
    result = simulate(embed(ring(3), 5, [4, 0, 2], 3), buffers).buffers
    np.testing.assert_array_equal(result[[0, 2, 4]], np.broadcast_to(buffers[[0, 2, 4]].sum(axis=0), (3, 6)))
    np.testing.assert_array_equal(result[[1, 3]], buffers[[1, 3]])


def test_a_chunk_may_become_several():
    large = embed(reduce_scatter(2), 2, [0, 1], 5, [[0, 3], [1, 2, 4]])
    assert [sorted(m[2] for m in r) for r in large.rounds] == [[0, 1, 2, 3, 4]]
    assert verify(large)
    assert [next(iter(h)) for h in large.after] == [1, 0, 0, 1, 0]


def test_operations_of_one_round_stay_with_their_messages_when_chunks_multiply():
    small = Schedule(
        2, 2, [beside(embed(reduce(2), 2, [0, 1], 2, [0]), embed(broadcast(2), 2, [0, 1], 2, [1])).rounds[0]]
    )
    large = embed(small, 2, [0, 1], 4, [[0, 1], [2, 3]])
    assert {(m.chunk, m.reduce) for m in large.rounds[0]} == {(0, True), (1, True), (2, False), (3, False)}


def test_speaks_for_brings_the_contributions_of_a_group():
    between = embed(tree(2), 4, [0, 2], speaks_for=[[0, 1], [2, 3]])
    assert dict(between.before[0]) == {0: frozenset({0, 1}), 2: frozenset({2, 3})}
    inside = beside(embed(reduce(2), 4, [0, 1]), embed(reduce(2), 4, [2, 3]))
    assert verify(inside.then(between)).schedule.after[0] == complete_on([0, 2], 4)


def test_groups_that_speak_for_one_rank_twice_count_double():
    assert find_fault(embed(tree(2), 3, [0, 2], speaks_for=[[0, 1], [1, 2]])).kind == "double"


@each(
    ("arguments", "named"),
    [
        ({"world": 2, "ranks": [0, 1, 2]}, "world"),
        ({"world": 4, "ranks": [0, 1]}, "ranks"),
        ({"world": 4, "ranks": [0, 1, 1]}, "ranks"),
        ({"world": 4, "ranks": [0, 1, 4]}, "ranks"),
        ({"world": 4, "ranks": [0, 1, -1]}, "ranks"),
        ({"world": 4, "ranks": [0.5, 1.5, 2.5]}, "ranks"),
        ({"world": 4, "ranks": range(3), "n_chunks": 0}, "n_chunks"),
        ({"world": 4, "ranks": range(3), "n_chunks": 2}, "chunks"),
        ({"world": 4, "ranks": range(3), "chunks": [0, 1]}, "chunks"),
        ({"world": 4, "ranks": range(3), "n_chunks": 5, "chunks": [[0, 1], [1, 2], 3]}, "chunks"),
        ({"world": 4, "ranks": range(3), "chunks": [0, 1, 2.0]}, "chunks"),
        ({"world": 4, "ranks": range(3), "speaks_for": [[0], [1]]}, "speaks_for"),
        ({"world": 4, "ranks": range(3), "speaks_for": [[0], [1], [7]]}, "before"),
        ({"world": 4, "ranks": range(3), "bounds": EvenSplit(4)}, "bounds"),
    ],
)
def test_embed_refuses_what_does_not_fit_by_name(arguments, named):
    with pytest.raises(InvalidArgument, match=f"^{named} must be"):
        embed(ring(3), **arguments)


def test_embed_keeps_the_bounds_of_the_same_chunks_and_takes_others():
    fixed = Schedule(2, 2, [], FixedBounds((0, 3, 4)))
    assert embed(fixed, 4, [0, 1]).bounds == FixedBounds((0, 3, 4))
    assert embed(fixed, 4, [0, 1], 4, [0, 1]).bounds == EvenSplit(4)
    assert embed(fixed, 4, [0, 1], 4, [0, 1], bounds=FixedBounds((0, 1, 2, 3, 9))).bounds(9, 1)[-1] == 9


# relabel


@given(st.data(), legal_schedules())
def test_relabelling_permutes_what_the_schedule_computes(data, schedule):
    ranks = data.draw(st.permutations(range(schedule.world)))
    chunks = data.draw(st.permutations(range(schedule.n_chunks)))
    buffers = integers(schedule.world, schedule.n_chunks)
    moved = np.empty_like(buffers)
    moved[np.ix_(ranks, chunks)] = buffers
    result = plain(relabel(schedule, ranks, chunks), moved)
    np.testing.assert_array_equal(result[np.ix_(ranks, chunks)], plain(schedule, buffers))


@given(st.data(), st.integers(2, 6))
def test_relabelling_keeps_promises_kept(data, world):
    ranks, chunks = (data.draw(st.permutations(range(world))) for _ in range(2))
    relabelled = relabel(ring(world), ranks, chunks)
    assert broken_promises(relabelled) == []
    assert verify(relabelled)


def test_relabelling_back_gives_the_same_messages():
    forth, back = [2, 0, 1], [1, 2, 0]
    again = relabel(relabel(ring(3), forth, forth), back, back)
    assert [list(r) for r in again.rounds] == [list(r) for r in ring(3).rounds]


@each("labels", [[0, 1], [0, 1, 1], [1, 2, 3]])
@each("named", ["ranks", "chunks"])
def test_relabel_refuses_what_is_no_permutation(named, labels):
    with pytest.raises(InvalidArgument, match=f"^{named} must be"):
        relabel(ring(3), **{named: labels})


# beside


def test_beside_puts_the_messages_of_equal_rounds_together():
    both = beside(embed(ring(2), 5, [0, 1]), embed(tree(2), 5, [2, 3], 2, [[0, 1]]))
    singles = [embed(ring(2), 5, [0, 1]), embed(tree(2), 5, [2, 3], 2, [[0, 1]])]
    assert [list(r) for r in both.rounds] == [[m for single in singles for m in single.rounds[i]] for i in range(2)]


@given(
    shift=st.integers(1, 3),
    first=legal_schedules(max_world=3, max_chunks=2),
    second=legal_schedules(max_world=3, max_chunks=2),
)
def test_schedules_beside_each_other_do_not_disturb_each_other(shift, first, second):
    world, n_chunks = first.world + second.world + shift, max(first.n_chunks, second.n_chunks)
    left, right = range(first.world), range(first.world, first.world + second.world)
    placed = [embed(s, world, ranks, n_chunks, range(s.n_chunks)) for s, ranks in ((first, left), (second, right))]
    buffers = integers(world, 2 * n_chunks)
    both, alone = simulate(beside(*placed), buffers).buffers, [plain(s, buffers) for s in placed]
    np.testing.assert_array_equal(both[left], alone[0][left])
    np.testing.assert_array_equal(both[right], alone[1][right])
    np.testing.assert_array_equal(both[first.world + second.world :], buffers[first.world + second.world :])


def test_a_shorter_schedule_rests_when_it_is_done():
    both = beside(embed(tree(2), 6, [0, 1]), embed(tree(4), 6, [2, 3, 4, 5]))
    assert [len(r) for r in both.rounds] == [len(a) + b for a, b in zip(tree(4).rounds, [1, 1, 0, 0], strict=True)]
    assert verify(both)


def test_two_schedules_may_share_ranks_on_different_chunks():
    clockwise = embed(tree(3), 3, [0, 1, 2], 2, [0])
    backwards = embed(tree(3), 3, [2, 1, 0], 2, [1])
    assert verify(beside(clockwise, backwards)).schedule.after == ring(3).after[:2]


def test_one_schedule_beside_nothing_is_itself():
    alone = beside(ring(3))
    assert [list(r) for r in alone.rounds] == [list(r) for r in ring(3).rounds]
    assert (alone.before, alone.after, alone.name) == (ring(3).before, ring(3).after, ring(3).name)


def test_beside_refuses_two_claims_on_one_chunk_of_one_rank():
    with pytest.raises(ScheduleError, match="both use chunk 0 of rank 2"):
        beside(embed(tree(3), 5, [0, 1, 2]), embed(tree(3), 5, [2, 3, 4]))


def test_beside_refuses_a_claim_that_only_the_end_makes():
    first = Schedule(2, 1, [], before=({0: frozenset({0})},), after=({0: frozenset({0})},))
    second = Schedule(2, 1, [], before=({1: frozenset({1})},), after=({0: frozenset({1})},))
    with pytest.raises(ScheduleError, match="both use chunk 0 of rank 0"):
        beside(first, second)


def test_a_hidden_conflict_is_found_when_the_rounds_are_walked():
    """The placements do not tell that both write the same cell; the rounds do."""
    first = Schedule(3, 1, tree(3).rounds, before=(partial(3),), after=({},))
    second = Schedule(3, 1, tree(3).rounds, before=({},), after=({},))
    with pytest.raises(ScheduleError, match=r"round 1: ranks .* all write chunk 0"):
        verify(beside(first, second))


def test_beside_needs_a_schedule():
    with pytest.raises(InvalidArgument, match="at least one schedule"):
        beside()


@pytest.mark.parametrize(("other", "named"), [(ring(4), "world"), (tree(3), "n_chunks")])
def test_beside_refuses_another_world_or_chunks(other, named):
    with pytest.raises(InvalidArgument, match=f"^{named} of"):
        beside(ring(3), other)


# Wrong compositions of a hierarchical all-reduce


def test_nodes_that_speak_for_themselves_alone_do_not_follow_a_scatter_inside_the_nodes():
    inside = beside(embed(reduce(2), 4, [0, 1]), embed(reduce(2), 4, [2, 3]))
    with pytest.raises(ScheduleError, match="cannot follow"):
        inside.then(embed(tree(2), 4, [0, 2]))


def test_the_wrong_owner_does_not_follow():
    inside = beside(embed(reduce_scatter(2), 4, [0, 1]), embed(reduce_scatter(2), 4, [2, 3]))
    rings = beside(
        embed(tree(2), 4, [0, 2], 2, [0], speaks_for=[[0, 1], [2, 3]]),  # chunk 0 is on ranks 1 and 3
        embed(tree(2), 4, [1, 3], 2, [1], speaks_for=[[0, 1], [2, 3]]),
    )
    with pytest.raises(ScheduleError, match="at chunk 0 it needs"):
        inside.then(rings)


def test_a_gather_that_forgets_to_speak_for_everyone_does_not_follow():
    nodes = [[0, 1], [2, 3]]
    inside = beside(*(embed(reduce_scatter(2), 4, node) for node in nodes))
    rings = beside(*(embed(tree(2), 4, [a, b], 2, [c], speaks_for=nodes) for c, (a, b) in enumerate([(1, 3), (0, 2)])))
    right, wrong = (
        beside(*(embed(all_gather(2), 4, node, speaks_for=voices) for node in nodes))
        for voices in ([range(4)] * 2, None)
    )
    assert verify(inside.then(rings).then(right))
    with pytest.raises(ScheduleError, match="cannot follow"):
        inside.then(rings).then(wrong)
