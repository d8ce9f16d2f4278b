"""Does verification accept exactly the schedules that keep their promise, and name what went wrong?"""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbook.collectives import (
    Round,
    Schedule,
    complete_on,
    find_fault,
    partial,
    ring,
    verify,
)
from dpbook.core.errors import ScheduleError
from tests.cases import each
from tests.collectives.oracles import broken_promises, contributions, legal_schedules

RINGS = range(2, 10)


def changed(schedule, rounds):
    return Schedule(schedule.world, schedule.n_chunks, rounds, before=schedule.before, after=schedule.after)


def edit(schedule, index, replace):
    """The schedule with the messages of one round replaced; ``replace`` maps a list of messages to one."""
    rounds = list(schedule.rounds)
    rounds[index] = Round.from_messages(replace(list(rounds[index])))
    return changed(schedule, rounds)


def each_message(schedule):
    return [(index, m) for index, round_ in enumerate(schedule.rounds) for m in round_]


def passed_on(world, index, message):
    """The ranks whose contributions the ring's message of a reduce-scatter round carries: chunk c began at rank c."""
    return tuple(sorted((message.chunk + k) % world for k in range(index + 1)))


# Both directions, against counting


@st.composite
def promising_schedules(draw):
    """Legal schedules with random beginnings, and promises of which many are kept: taken from what comes out."""
    schedule = draw(legal_schedules(max_world=4))
    world = schedule.world
    ranks, groups = st.integers(0, world - 1), st.frozensets(st.integers(0, world - 1))
    holdings = st.one_of(st.just(partial(world)), st.dictionaries(ranks, groups))
    before = tuple(draw(holdings) for _ in range(schedule.n_chunks))
    begun = Schedule(world, schedule.n_chunks, schedule.rounds, before=before)
    state = contributions(begun)
    after = []
    for chunk in range(schedule.n_chunks):
        ends = {r: frozenset(state[r][chunk] or ()) for r in draw(st.frozensets(ranks))}
        after.append(ends | draw(st.one_of(st.just({}), st.just({}), st.dictionaries(ranks, groups, max_size=1))))
    return Schedule(world, schedule.n_chunks, schedule.rounds, before=before, after=tuple(after), name="promising")


@settings(max_examples=4 * settings().max_examples)
@given(promising_schedules())
def test_a_schedule_is_accepted_if_and_only_if_it_keeps_its_promise(schedule):
    broken = broken_promises(schedule)
    fault = find_fault(schedule)
    assert (fault is None) == (not broken)
    if fault is not None:
        assert (fault.chunk, fault.rank) == broken[0]


@settings(max_examples=4 * settings().max_examples)
@given(promising_schedules())
def test_the_kind_of_fault_and_its_contributors_are_those_that_counting_finds(schedule):
    fault = find_fault(schedule)
    if fault is None:
        return
    counts, promised = contributions(schedule)[fault.rank][fault.chunk], schedule.after[fault.chunk][fault.rank]
    if fault.kind == "lost":
        assert fault.contributors == tuple(sorted(promised - counts.keys()))
        assert max(counts.values(), default=1) == 1
    elif fault.kind == "surplus":
        assert fault.contributors == tuple(sorted(counts.keys() - promised))
        assert promised <= counts.keys()
    elif fault.kind == "double" and counts is not None:
        assert all(counts[r] >= 2 for r in fault.contributors)
    else:
        assert counts is None


def test_verify_returns_its_proof_and_raises_the_explanation():
    assert repr(verify(ring(2))).startswith("verified")
    broken = edit(ring(2), 0, lambda messages: messages[1:]).named("mine")
    with pytest.raises(ScheduleError) as caught:
        verify(broken)
    assert str(caught.value) == f"mine: {find_fault(broken)}"


# Faults planted in a ring, at a known place


@each("world", RINGS)
def test_a_dropped_message_loses_what_it_carried(world):
    for index, message in each_message(ring(world)):
        broken = edit(ring(world), index, lambda messages, lost=message: [m for m in messages if m != lost])
        fault = find_fault(broken)
        carried = passed_on(world, index, message)
        if index < world - 1:
            assert (fault.kind, fault.chunk, fault.rank, fault.contributors) == ("lost", message.chunk, 0, carried)
            assert fault.round == world - 1 + index  # the last rank that had some of it gets a copy that has not
        else:
            assert (fault.kind, (fault.chunk, fault.rank)) == ("lost", broken_promises(broken)[0])
            assert f"the complete sum is on rank{'s' * (index > world - 1)} " in str(fault)


@each("world", RINGS)
def test_a_message_sent_again_in_the_next_round_counts_double(world):
    for index, message in each_message(ring(world))[: world * (world - 1)]:
        rounds = list(ring(world).rounds)
        fault = find_fault(
            changed(ring(world), [*rounds[: index + 1], Round.from_messages([message]), *rounds[index + 1 :]])
        )
        assert (fault.kind, fault.round, fault.chunk, fault.rank) == ("double", index + 1, message.chunk, 0)
        assert fault.contributors == passed_on(world, index, message)
        words = f"rank {message.source} sends chunk {message.chunk} to rank {message.dest}, which adds it though"
        assert f"double contribution in round {index + 2}: {words}" in str(fault)


@each("world", RINGS)
def test_a_reduce_that_became_a_copy_loses_what_the_receiver_had(world):
    for index, message in each_message(ring(world))[: world * (world - 1)]:
        flip = [message._replace(reduce=False)]
        fault = find_fault(
            edit(ring(world), index, lambda ms, old=message, new=flip: [m for m in ms if m != old] + new)
        )
        assert (fault.kind, fault.round, fault.chunk) == ("lost", index, message.chunk)
        assert fault.contributors == (message.dest,)
        assert f"overwritten in round {index + 1}, when rank {message.source} sent the chunk to rank" in str(fault)


@each("world", RINGS)
def test_a_copy_that_became_a_reduce_counts_double(world):
    for index, message in each_message(ring(world))[world * (world - 1) :]:
        flip = [message._replace(reduce=True)]
        fault = find_fault(
            edit(ring(world), index, lambda ms, old=message, new=flip: [m for m in ms if m != old] + new)
        )
        already = passed_on(world, (message.dest - message.chunk) % world, message)  # its own sum of the first phase
        assert (fault.kind, fault.round, fault.chunk) == ("double", index, message.chunk)
        assert fault.contributors == already


@pytest.mark.parametrize("world", [*RINGS[:5], *(pytest.param(n, marks=pytest.mark.proof) for n in RINGS[5:])])
def test_a_redirected_message_is_judged_as_counting_judges_it(world):
    """Some redirections do no harm: the next round would have brought the sum to that rank anyway."""
    verdicts = Counter()
    for index, message in each_message(ring(world)):
        for dest in set(range(world)) - {message.source, message.dest}:
            moved = [message._replace(dest=dest)]
            other = edit(ring(world), index, lambda ms, old=message, new=moved: [m for m in ms if m != old] + new)
            broken, fault = broken_promises(other), find_fault(other)
            assert ((fault.chunk, fault.rank) if fault else None) == (broken[0] if broken else None)
            verdicts["wrong" if broken else "right"] += 1
    assert verdicts["wrong"] > 0 or world == 2


# Single faults, one of each kind


def test_a_chunk_that_goes_to_the_wrong_place_is_lost_there():
    schedule = Schedule(
        2, 2, [Round.of(0, 1, 0, False)], before=(complete_on([0], 2),) * 2, after=({}, complete_on([1], 2))
    )
    fault = find_fault(schedule)
    assert (fault.kind, fault.chunk, fault.rank) == ("unknown", 1, 1)


def test_a_sum_on_the_wrong_rank_is_named():
    schedule = Schedule(3, 1, [Round.of(1, 0, 0, True), Round.of(2, 0, 0, True)], after=(complete_on([1], 3),))
    fault = find_fault(schedule)
    assert (fault.kind, fault.rank, fault.round, fault.contributors) == ("lost", 1, None, (0, 2))
    assert str(fault).endswith("no message brings it there; the complete sum is on rank 0")


def test_what_nobody_vouches_for_may_not_be_added():
    schedule = Schedule(2, 1, [Round.of(1, 0, 0, True)], before=(complete_on([0], 2),), after=(complete_on([0], 2),))
    fault = find_fault(schedule)
    assert (fault.kind, fault.chunk, fault.rank, fault.round) == ("unknown", 0, 0, 0)
    assert "rank 1 sends chunk 0 to rank 0" in str(fault)


def test_what_never_arrives_is_unknown():
    fault = find_fault(Schedule(2, 1, [], before=(complete_on([0], 2),)))
    assert (fault.kind, fault.rank, fault.round) == ("unknown", 1, None)


def test_more_than_was_promised_is_a_fault():
    fault = find_fault(Schedule(2, 1, [Round.of(0, 1, 0, True)], after=(partial(2),)))
    assert (fault.kind, fault.rank, fault.contributors) == ("surplus", 1, (0,))


def test_a_double_that_is_overwritten_is_no_fault():
    twice = [Round.of(1, 0, 0, True), Round.of(0, 1, 0, True)]  # rank 1 now counts its own contribution twice
    assert verify(Schedule(2, 1, [*twice, Round.of(0, 1, 0, False)]))
    assert find_fault(Schedule(2, 1, twice)).kind == "double"


def test_a_promise_about_some_ranks_leaves_the_others_free():
    rounds = [Round.of(1, 0, 0, True), Round.of(0, 1, 0, True)]
    assert verify(Schedule(2, 1, rounds, after=(complete_on([0], 2),)))


def test_an_empty_promise_is_kept_by_anything():
    assert verify(Schedule(2, 1, [Round.of(0, 1, 0, True)] * 3, after=({},)))


def test_an_empty_contribution_is_known_to_be_zero():
    zero = Schedule(
        2, 1, [Round.of(1, 0, 0, True)], before=({0: frozenset({0, 1}), 1: frozenset()},), after=(complete_on([0], 2),)
    )
    assert verify(zero)


@each(("doublings", "extra"), [(1, 0), (7, 0), (8, 0), (8, 1), (16, 0), (16, 1), (64, 1)])
def test_no_multiplicity_passes_for_one(doublings, extra):
    """Rank 0's contribution is counted 2, 128, 256, 257, … times: a counter of 8, 16 or 64 bits would read 0 or 1."""
    double = [Round.of(0, 1, 0, False), Round.of(1, 0, 0, True)]
    before = ({0: frozenset({0}), 2: frozenset({0})},)
    rounds = double * doublings + [Round.of(2, 0, 0, True)] * extra
    fault = find_fault(Schedule(3, 1, rounds, before=before, after=({0: frozenset({0})},)))
    assert (fault.kind, fault.round, fault.contributors) == ("double", 1, (0,))
    assert f"counting rank 0's {2**doublings + extra} times" in str(fault)


@pytest.mark.parametrize("world", [63, 64, 65, 128, 129])
def test_worlds_around_the_length_of_a_machine_word(world):
    assert verify(ring(world))
    last = edit(ring(world), world - 2, lambda messages: messages[:-1])
    fault = find_fault(last)
    assert (fault.kind, len(fault.contributors)) == ("lost", world - 1)
