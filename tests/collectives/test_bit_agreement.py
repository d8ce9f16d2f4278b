"""Is "all ranks end with the same bits", decided from the schedule alone, what the bits say?"""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbook import collectives
from dpbook.collectives import (
    LazyRounds,
    Round,
    Schedule,
    agreement,
    find_fault,
    in_own_order,
    recursive_doubling,
    relabel,
    run,
    simulate,
    verify,
)
from dpbook.core.errors import InvalidArgument
from dpbook.replicas import drift
from tests.cases import each

WORLDS = [*range(1, 10), 16]


def dissemination(world):
    """In round s rank r adds what rank r + 2^s has: every rank sums round the circle from itself on."""
    ranks = np.arange(world)
    rounds = LazyRounds(world.bit_length() - 1, lambda s: Round.of((ranks + 2**s) % world, ranks, 0, True))
    return Schedule(world, 1, rounds, name=f"dissemination(world={world})")


def random_all_reduce(rng, world):
    """Ranks add whatever disjoint sum they find, several in a round, until one has all and the rest may copy it."""
    while True:
        contributors, rounds = [{rank} for rank in range(world)], []
        for _ in range(4 * world):
            done = [rank for rank in range(world) if len(contributors[rank]) == world]
            messages, after = [], list(contributors)
            for dest in rng.permutation(world):
                sources = [s for s in range(world) if not contributors[s] & contributors[dest]]
                if sources and rng.random() < 0.8:
                    source = int(rng.choice(sources))
                    messages.append((source, int(dest), 0, True))
                    after[dest] = contributors[dest] | contributors[source]
                elif done and len(contributors[dest]) < world and rng.random() < 0.3:
                    messages.append((int(rng.choice(done)), int(dest), 0, False))
                    after[dest] = set(range(world))
            contributors = after
            rounds.append(Round.from_messages(messages))
            if all(len(own) == world for own in contributors):
                return Schedule(world, 1, rounds, name="random")


def random_exchange(rng, world):
    """Rounds over distances 1, 2, 4, … in any order; in each all ranks add from r xor d, r + d or r − d."""
    ranks = np.arange(world)
    while True:
        distances = rng.permutation(2 ** np.arange(world.bit_length() - 1))
        sources = [[ranks ^ d, (ranks + d) % world, (ranks - d) % world][rng.integers(3)] for d in distances]
        rounds = [Round.of(source, ranks, 0, True) for source in sources]
        schedule = relabel(Schedule(world, 1, rounds, name="exchange"), rng.permutation(world))
        if find_fault(schedule) is None:  # some mixtures count twice
            return schedule


def bits_agree(schedule, draws=200, seed=0):
    """Whether all ranks end with the same float32 bits in many draws of numbers of very different sizes."""
    rng = np.random.default_rng(seed)
    shape = (schedule.world, draws * schedule.n_chunks)
    buffers = (rng.standard_normal(shape) * 10.0 ** rng.uniform(-3, 3, shape)).astype(np.float32)
    return drift(np.asarray(simulate(schedule, buffers).buffers)).identical


@each("world", WORLDS)
@each("name", collectives.ALGORITHMS)
def test_the_books_schedules_keep_replicas_bit_equal(name, world):
    schedule = collectives.ALGORITHMS[name](world)
    assert agreement(schedule).agrees
    assert bits_agree(schedule)
    assert repr(agreement(schedule)) == f"{schedule.name}: all ranks end with the same bits"


def test_a_pairwise_exchange_agrees_because_addition_commutes():
    """The two ranks of a pair add left and right the other way round: a + b is b + a, to the last bit."""
    buffers = np.array([[1e8], [3.0], [-1e8], [0.5]], np.float32)
    orders = [(buffers[a] + buffers[b]) + (buffers[c] + buffers[d]) for a, b, c, d in ([0, 1, 2, 3], [3, 2, 1, 0])]
    ends = np.asarray(simulate(recursive_doubling(4), buffers).buffers)
    assert {row.tobytes() for row in ends} == {order.tobytes() for order in orders}


@pytest.mark.parametrize("world", [3, 5, 6, 7, 9])
def test_ranks_folded_away_have_the_bits_of_the_others(world):
    core = 2 ** (world.bit_length() - 1)
    sums = agreement(recursive_doubling(world)).sums
    assert f"x0 + x{core}" in repr(sums[0, 0])
    assert all(sums[rank, 0] is sums[0, 0] for rank in range(world))
    assert bits_agree(recursive_doubling(world))


@each(("nodes", "per_node"), [(1, 4), (4, 1), (2, 3), (3, 2), (3, 4)])
@each("make", [collectives.hierarchical_ring, collectives.ring_per_port])
def test_schedules_over_nodes_keep_replicas_bit_equal(make, nodes, per_node):
    assert agreement(make(nodes, per_node)).agrees
    assert bits_agree(make(nodes, per_node))


@pytest.mark.parametrize("world", [4, 8, 16])
def test_sums_round_the_circle_do_not_agree(world):
    schedule = dissemination(world)
    verify(schedule)  # every rank has the right sum, and yet
    found = agreement(schedule)
    assert (found.agrees, found.chunk, found.ranks) == (False, 0, (0, 1))
    assert not bits_agree(schedule)


def test_a_disagreement_is_written_out():
    assert repr(agreement(dissemination(4))) == (
        "dissemination(world=4): chunk 0 is (x0 + x1) + (x2 + x3) on rank 0 and (x1 + x2) + (x3 + x0) on rank 1"
    )
    assert repr(agreement(in_own_order, 3)) == (
        "in_own_order: chunk 0 is (x0 + x1) + x2 on rank 0 and (x1 + x2) + x0 on rank 1"
    )


@pytest.mark.parametrize("world", [1, 2, 3])
def test_no_schedule_of_three_ranks_disagrees(world):
    """Every state that messages can lead to, of one chunk: where all sums are complete, all are the same additions.

    A sum is the set of its two operands, so that a + b is b + a. States that have lost a contribution are left out, and
    so are double counts, since neither leads to complete sums. Four ranks can disagree: see `dissemination`.
    """
    everyone = frozenset(range(world))

    def leaves(sum_):
        return frozenset((sum_,)) if isinstance(sum_, int) else frozenset().union(*map(leaves, sum_))

    found, front = {tuple(range(world))}, [tuple(range(world))]
    while front:
        state = front.pop()
        choices = []
        for mine in state:
            added = [frozenset((mine, other)) for other in state if not leaves(mine) & leaves(other)]
            choices.append({*state, *added})
        reached = {s for s in itertools.product(*choices) if frozenset().union(*map(leaves, s)) == everyone} - found
        found |= reached
        front += reached
    complete = [state for state in found if all(leaves(own) == everyone for own in state)]
    assert complete
    assert all(len(set(state)) == 1 for state in complete)
    assert len(found) == {1: 1, 2: 7, 3: 447}[world]


@each("world", WORLDS)
def test_ranks_with_memory_of_their_own_disagree_from_three_on(world):
    found = agreement(in_own_order, world)
    assert found.agrees == (world < 3)
    rng = np.random.default_rng(world)
    draws = rng.standard_normal((world, 500)).astype(np.float32)
    assert drift(in_own_order(draws)).identical == (world < 3)
    np.testing.assert_allclose(in_own_order(draws), np.tile(draws.sum(axis=0), (world, 1)), rtol=1e-3, atol=1e-5)


@given(st.sampled_from([2, 3, 4, 5, 6, 7, 8]), st.integers(0, 2**32 - 1), st.booleans())
def test_the_verdict_is_what_the_bits_say(world, seed, exchange):
    make = random_exchange if exchange and world in (2, 4, 8) else random_all_reduce
    schedule = make(np.random.default_rng(seed), world)
    verify(schedule)
    assert agreement(schedule).agrees == bits_agree(schedule, seed=seed)


def test_random_schedules_are_of_both_kinds():
    rng = np.random.default_rng(1)
    verdicts = [agreement(random_exchange(rng, 4)).agrees for _ in range(60)]
    assert min(verdicts.count(True), verdicts.count(False)) > 10


@given(st.permutations(range(6)), st.sampled_from(list(collectives.ALGORITHMS)))
def test_names_of_ranks_do_not_matter(ranks, name):
    assert agreement(relabel(collectives.ALGORITHMS[name](6), ranks)).agrees


def test_each_chunk_is_judged():
    """Chunk 0 by pairwise exchange, chunk 1 round the circle."""
    agreeing = collectives.embed(recursive_doubling(4), 4, range(4), 2, [0])
    parting = collectives.embed(dissemination(4), 4, range(4), 2, [1])
    found = agreement(collectives.beside(agreeing, parting))
    assert (found.chunk, found.ranks) == (1, (0, 1))
    assert found.sums[0, 0] is found.sums[3, 0]
    assert found.sums[0, 1] is not found.sums[1, 1]


def test_only_what_is_promised_is_compared():
    assert agreement(collectives.reduce(5)).agrees  # one rank has the sum, the others have parts
    assert agreement(collectives.reduce_scatter(5)).agrees
    assert agreement(collectives.all_gather(5)).agrees


def test_ranks_that_are_promised_different_sums_are_not_compared():
    """Two nodes of two ranks, each with the sum of its node."""
    ranks = np.arange(4)
    nodes = [frozenset((0, 1)), frozenset((2, 3))]
    after = ({rank: nodes[rank // 2] for rank in range(4)},)
    exchange = Schedule(4, 1, [Round.of(ranks ^ 1, ranks, 0, True)], after=after)
    verify(exchange)
    assert agreement(exchange).agrees


def test_ring_adds_round_the_circle():
    sums = agreement(collectives.ring(3)).sums
    assert [repr(one) for one in sums[0]] == ["x2 + (x1 + x0)", "x0 + (x2 + x1)", "x1 + (x0 + x2)"]
    assert repr(agreement(collectives.ring(40)).sums[0, 0]).count("…") == 1


def test_a_rank_program_that_adds_by_hand():
    """No schedule, since it keeps what arrives in memory of its own; as a function it can be judged all the same."""

    def program(comm, x):
        passing, world = x.copy(), comm.world_size
        for _ in range(world - 1):
            arriving = np.empty_like(passing)
            comm.sendrecv(passing, (comm.rank + 1) % world, arriving, (comm.rank - 1) % world)
            x += arriving
            passing = arriving

    def by_hand(buffers):
        return np.stack(run(program, list(buffers)))

    assert repr(agreement(by_hand, 3)).endswith("chunk 0 is (x0 + x2) + x1 on rank 0 and (x1 + x0) + x2 on rank 1")
    assert agreement(by_hand, 2).agrees


@pytest.mark.parametrize(
    "add_up", [lambda b: np.tile(b.sum(axis=0), (len(b), 1)), lambda b: np.tile(sum(b), (len(b), 1))]
)
def test_one_sum_for_all_agrees(add_up):
    assert agreement(add_up, 5).agrees


@each(
    ("name", "call"),
    [
        ("world", lambda: agreement(in_own_order)),
        ("world", lambda: agreement(collectives.ring(3), 4)),
        ("all_reduce", lambda: agreement("ring", 3)),
        ("all_reduce", lambda: agreement(lambda buffers: buffers[0], 3)),
        ("all_reduce", lambda: agreement(lambda buffers: np.zeros((3, 3)), 3)),
        ("all_reduce", lambda: agreement(lambda buffers: buffers * 2, 3)),
    ],
)
def test_bad_input_is_named(name, call):
    with pytest.raises(InvalidArgument, match=f"^{name} must be"):
        call()
