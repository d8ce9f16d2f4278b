"""Each algorithm: what it computes, in how many rounds, and how many bytes it moves."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from dpbook import collectives
from dpbook.collectives import (
    ALGORITHMS,
    Link,
    Topology,
    bandwidth_lower_bound,
    count,
    frames,
    hierarchical_ring,
    ring_per_port,
    simulate,
    verify,
)
from dpbook.core.errors import InvalidArgument
from tests.cases import each
from tests.collectives.oracles import (
    ALL_SCHEDULES,
    WORLDS,
    broken_promises,
    by_hand,
    collective_schedules,
    divisors,
    integers,
    plain,
    torch_reduce_scatter,
    worlds,
)


def sizes(world):
    """0, 1, below the world, not divisible, divisible."""
    return sorted({0, 1, max(world - 1, 0), 2 * world + 1, 3 * world})


# What they compute


def keeps_its_promise(schedule):
    return broken_promises(schedule) == [] and verify(schedule).schedule is schedule


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_keeps_its_promise(name):
    for world in worlds(name):
        assert keeps_its_promise(ALGORITHMS[name](world)), world


@each(("world", "name"), [case for case in ALL_SCHEDULES if case[1] not in ALGORITHMS])
def test_every_other_schedule_keeps_its_promise(world, name):
    assert keeps_its_promise(collective_schedules(world)[name])


@pytest.mark.parametrize("name", ALGORITHMS)
@each("world", worlds)
def test_every_all_reduce_gives_every_rank_the_sum(name, world):
    for size in sizes(world):
        buffers = integers(world, size)
        result = simulate(ALGORITHMS[name](world), buffers).buffers
        np.testing.assert_array_equal(result, np.broadcast_to(buffers.sum(axis=0), (world, size)))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_refuses_the_worlds_it_is_not_made_for(name):
    for world in [0, *set(WORLDS).difference(worlds(name))]:
        with pytest.raises(InvalidArgument, match=r"^world must be"):
            ALGORITHMS[name](world)


@each("world", WORLDS)
def test_reduce_leaves_the_sum_on_its_root(world):
    for root in range(world):
        buffers = integers(world, 3)
        assert simulate(collectives.reduce(world, root), buffers).buffers[root].tolist() == buffers.sum(0).tolist()


@each("world", WORLDS)
def test_broadcast_gives_every_rank_the_buffer_of_its_root(world):
    for root in range(world):
        buffers = integers(world, 3)
        assert (
            simulate(collectives.broadcast(world, root), buffers).buffers.tolist() == [buffers[root].tolist()] * world
        )


@each("world", WORLDS)
def test_reduce_scatter_leaves_chunk_r_plus_1_on_rank_r(world):
    size = 2 * world + 1
    buffers, offsets = integers(world, size), collectives.chunk_bounds(size, world)
    result = simulate(collectives.reduce_scatter(world), buffers).buffers
    for rank in range(world):
        mine = slice(offsets[(rank + 1) % world], offsets[(rank + 1) % world + 1])
        np.testing.assert_array_equal(result[rank, mine], buffers[:, mine].sum(axis=0))


@each("world", WORLDS)
def test_relabelled_it_leaves_chunk_r_on_rank_r_as_torch_does(world):
    schedule = torch_reduce_scatter(world)
    assert [dict(h) for h in schedule.after] == [{r: frozenset(range(world))} for r in range(world)]
    assert verify(schedule)
    buffers = integers(world, 3 * world)
    result = simulate(schedule, buffers).buffers.reshape(world, world, 3)
    np.testing.assert_array_equal(result[range(world), range(world)], buffers.sum(axis=0).reshape(world, 3))


def test_the_ring_adds_each_chunk_in_its_own_order():
    """Chunk c starts at rank c and goes right: ((x_c + x_{c+1}) + …). Non-associative numbers tell the orders apart."""
    buffers = np.random.default_rng(2).standard_normal((5, 5)).astype(np.float32)
    expected = []
    for chunk in range(5):
        total = buffers[chunk, chunk]
        for step in range(1, 5):
            total = buffers[(chunk + step) % 5, chunk] + total
        expected.append(total)
    assert simulate(collectives.ring(5), buffers).buffers[3].tolist() == np.array(expected).tolist()
    assert buffers.sum(axis=0).tolist() != np.array(expected).tolist()


# Rounds and bytes


@pytest.mark.parametrize("name", ALGORITHMS)
@each("world", worlds)
def test_rounds_are_those_of_the_textbook(name, world):
    assert len(ALGORITHMS[name](world).rounds) == ALGORITHMS[name].rounds(world)


@each("name", collective_schedules(1))
def test_a_world_of_one_sends_nothing(name):
    schedule = collective_schedules(1)[name]
    assert len(schedule.rounds) == 0
    assert count(schedule, 10).total_bytes == 0
    assert simulate(schedule, np.ones((1, 5))).buffers.tolist() == [[1.0] * 5]


@each("world", WORLDS)
def test_the_ring_sends_the_lower_bound_when_the_world_divides_the_size(world):
    traffic = count(collectives.ring(world), 12 * world, itemsize=4)
    assert traffic.sent_bytes.tolist() == traffic.received_bytes.tolist()
    assert traffic.sent_bytes.tolist() == [bandwidth_lower_bound(world, 48 * world)] * world


@pytest.mark.parametrize("name", ALGORITHMS)
@each("world", worlds)
def test_no_all_reduce_beats_the_lower_bound(name, world):
    for size in (world, 2 * world + 1, 97):
        assert count(ALGORITHMS[name](world), size).busiest_bytes >= bandwidth_lower_bound(world, 4 * size)


@each("world", WORLDS)
@each("name", ["tree", "parameter_server"])
def test_a_tree_sends_as_many_bytes_in_all_as_a_parameter_server(world, name):
    assert count(ALGORITHMS[name](world), 10, 8).total_bytes == 2 * (world - 1) * 80


@each("world", WORLDS)
def test_the_root_of_a_parameter_server_moves_every_buffer_both_ways(world):
    traffic = count(collectives.parameter_server(world), 10, 8)
    assert (traffic.sent_bytes[0], traffic.received_bytes[0]) == ((world - 1) * 80, (world - 1) * 80)
    assert traffic.sent_bytes[1:].tolist() == [80] * (world - 1)


@each(("world", "name"), ALL_SCHEDULES)
def test_count_agrees_with_counting_one_message_at_a_time(world, name):
    schedule = collective_schedules(world)[name]
    for size in sizes(world):
        lengths = np.diff(schedule.bounds(size, 2)).tolist()
        sent, received, messages = [0] * world, [0] * world, 0
        for round_ in schedule.rounds:
            for m in round_:
                sent[m.source] += 2 * lengths[m.chunk]
                received[m.dest] += 2 * lengths[m.chunk]
                messages += lengths[m.chunk] > 0
        traffic = count(schedule, size, itemsize=2)
        assert (traffic.sent_bytes.tolist(), traffic.received_bytes.tolist()) == (sent, received)
        assert (traffic.messages, traffic.rounds) == (messages, len(schedule.rounds))


def test_count_says_what_it_counted():
    expected = "6 rounds, 24 messages, 2,400 bytes in all, at most 600 sent or received by one rank"
    assert repr(count(collectives.ring(4), 100)) == expected


@pytest.mark.parametrize(("size", "itemsize", "named"), [(-1, 4, "size"), (1.5, 4, "size"), (3, 0, "itemsize")])
def test_count_refuses_what_is_no_size(size, itemsize, named):
    with pytest.raises(InvalidArgument, match=f"^{named} must be"):
        count(collectives.ring(2), size, itemsize)


def test_the_lower_bound_needs_a_world():
    with pytest.raises(InvalidArgument, match=r"^world must be"):
        bandwidth_lower_bound(0, 8)


# Halving and doubling


@pytest.mark.parametrize("world", [2, 4, 8, 16])
def test_halving_leaves_chunk_r_on_rank_r_half_way(world):
    schedule = collectives.halving_doubling(world)
    buffers = integers(world, world)
    half_way = list(frames(schedule, buffers))[len(schedule.rounds) // 2].buffers
    np.testing.assert_array_equal(np.diagonal(half_way), buffers.sum(axis=0))


def test_halving_sends_half_as_much_in_each_round_and_doubling_twice_as_much():
    chunks = [len(round_) // 16 for round_ in collectives.halving_doubling(16).rounds]
    assert chunks == [8, 4, 2, 1, 1, 2, 4, 8]


@pytest.mark.parametrize("world", [2, 4, 8, 16, 64])
def test_halving_doubling_sends_the_lower_bound_in_a_power_of_two(world):
    traffic = count(collectives.halving_doubling(world), 5 * world, 8)
    assert traffic.sent_bytes.tolist() == [bandwidth_lower_bound(world, 40 * world)] * world


@each("world", [3, 5, 6, 7, 9, 12])
@each("name", ["recursive_doubling", "halving_doubling"])
def test_in_a_folded_world_the_ranks_too_many_send_once_and_receive_once(world, name):
    core = 2 ** math.floor(math.log2(world))
    schedule = ALGORITHMS[name](world)
    traffic = count(schedule, 3 * core, 8)
    assert schedule.n_chunks == (core if name == "halving_doubling" else 1)
    assert traffic.sent_bytes[core:].tolist() == traffic.received_bytes[core:].tolist() == [24 * core] * (world - core)
    ends = [{rank for m in schedule.rounds[i] for rank in (m.source, m.dest)} for i in (0, -1)]
    assert ends == [{*range(core, world), *range(world - core)}] * 2


# Over nodes


@each(("nodes", "ranks"), [*itertools.product(range(1, 5), range(1, 5)), (2, 8), (3, 5)])
def test_every_all_reduce_over_nodes_gives_every_rank_the_sum(nodes, ranks):
    made = [hierarchical_ring(nodes, ranks), *(ring_per_port(nodes, ranks, ports) for ports in divisors(ranks))]
    for schedule in made:
        assert verify(schedule)
        for size in sizes(nodes * ranks):
            buffers = integers(nodes * ranks, size)
            result = simulate(schedule, buffers).buffers
            np.testing.assert_array_equal(result, np.broadcast_to(buffers.sum(axis=0), result.shape))


@pytest.mark.parametrize(("nodes", "ranks"), [(2, 3), (3, 2), (4, 4)])
def test_what_verification_says_of_them_is_what_counting_by_hand_says(nodes, ranks):
    for schedule in (hierarchical_ring(nodes, ranks), ring_per_port(nodes, ranks)):
        assert broken_promises(schedule) == []
        buffers = integers(nodes * ranks, 2 * schedule.n_chunks + 1)
        np.testing.assert_array_equal(simulate(schedule, buffers).buffers, plain(schedule, buffers))


@pytest.mark.parametrize(("nodes", "ranks"), [(2, 3), (3, 2), (4, 4)])
def test_a_hierarchical_ring_sends_between_nodes_only_what_a_ring_of_nodes_would(nodes, ranks):
    schedule, size = hierarchical_ring(nodes, ranks), 6 * nodes * ranks
    between = sum(size // schedule.n_chunks for r in schedule.rounds for m in r if m.source // ranks != m.dest // ranks)
    assert between == 2 * (nodes - 1) * size
    assert len(schedule.rounds) == 2 * (ranks - 1) + 2 * (nodes - 1)


def test_a_hierarchical_ring_of_single_ranks_or_of_one_node_is_a_ring():
    for shape in ((5, 1), (1, 5)):
        ours, ring = hierarchical_ring(*shape), collectives.ring(5)
        assert count(ours, 50).sent_bytes.tolist() == count(ring, 50).sent_bytes.tolist()
        assert len(ours.rounds) == len(ring.rounds)


@pytest.mark.parametrize(
    ("nodes", "ranks", "ports"), [(2, 4, 4), (2, 4, 2), (2, 4, 1), (3, 6, 3), (4, 1, 1), (3, 8, 8)]
)
def test_each_port_sends_one_ring_and_receives_one(nodes, ranks, ports):
    """Bytes between nodes are the same through every port, in every round."""
    topology = Topology(nodes, ranks, Link(0, 1e9), Link(0, 1e9), ports)
    schedule = ring_per_port(nodes, ranks, ports)
    world = nodes * ranks
    _, carried = by_hand(schedule, 3 * schedule.n_chunks, 4, topology)
    between = {place: nbytes for place, nbytes in carried.items() if place[0] == "between"}
    places = itertools.product(["between"], ["sent", "received"], range(nodes), range(ports))
    assert between == dict.fromkeys(places, 2 * (world - 1) * 3 * 4)


def test_one_ring_leaves_a_node_by_one_port():
    _, carried = by_hand(collectives.ring(8), 80, 4, Topology(2, 4, Link(0, 1e9), Link(0, 1e9)))
    assert Counter(place[:2] for place in carried if place[0] == "between") == {
        ("between", way): 2 for way in ("sent", "received")
    }


@pytest.mark.parametrize("ports", [3, 0, 5, 1.5])
def test_ports_must_divide_the_ranks_of_a_node(ports):
    with pytest.raises(InvalidArgument, match=r"^ports must be"):
        ring_per_port(2, 4, ports)


@pytest.mark.parametrize("make", [hierarchical_ring, ring_per_port])
@pytest.mark.parametrize(("shape", "named"), [((0, 2), "nodes"), ((2, 0), "per_node"), ((2.0, 2), "nodes")])
def test_a_shape_must_be_one(make, shape, named):
    with pytest.raises(InvalidArgument, match=f"^{named} must be"):
        make(*shape)


@pytest.mark.parametrize("make", [hierarchical_ring, ring_per_port])
def test_a_cluster_of_32_nodes_of_8_is_proved(make):
    assert verify(make(32, 8))
