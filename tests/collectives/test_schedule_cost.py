"""Is the price of a schedule what adding it up message by message gives, and does it behave as a price should?"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbook import collectives
from dpbook.collectives import Link, Round, Schedule, Topology, cost, count, ring
from dpbook.core.errors import InvalidArgument
from tests.cases import each
from tests.collectives.oracles import by_hand, collective_schedules, divisors, legal_schedules

NET, NVLINK = Link.gigabits(400, latency=5e-6), Link.gigabytes(450, latency=2e-6)
LINKS = st.builds(Link, st.floats(0, 1e-3), st.floats(1e6, 1e12))


def topologies(world):
    return [
        Topology(nodes, world // nodes, NVLINK, NET, ports)
        for nodes in divisors(world)
        for ports in {1, world // nodes}
    ]


@pytest.mark.parametrize("world", [1, 2, 4, 6, pytest.param(9, marks=pytest.mark.proof)])
@each("name", lambda world: collective_schedules(world))
def test_price_and_bytes_are_what_adding_messages_up_gives(world, name):
    schedule = collective_schedules(world)[name]
    for topology in topologies(world):
        for size in (0, 1, world - 1, 2 * world + 1):
            seconds, ports = by_hand(schedule, size, 4, topology)
            np.testing.assert_allclose(cost(schedule, 4 * size, topology).round_seconds, seconds, rtol=1e-12)
            assert sum(n for (_, way, *_), n in ports.items() if way == "sent") == count(schedule, size).total_bytes


@given(legal_schedules(), st.integers(0, 7), LINKS)
def test_any_legal_schedule_is_priced_by_its_busiest_port(schedule, size, link):
    seconds, _ = by_hand(schedule, size, 2, Topology(1, schedule.world, link, link))
    np.testing.assert_allclose(cost(schedule, 2 * size, link, 2).round_seconds, seconds, rtol=1e-12)


@given(legal_schedules(), st.integers(0, 100), LINKS, st.floats(1, 100))
def test_more_bandwidth_never_makes_it_slower(schedule, size, link, factor):
    faster = Link(link.latency, min(link.bandwidth * factor, 1e14))
    assert cost(schedule, 4 * size, faster).seconds <= cost(schedule, 4 * size, link).seconds


@given(st.sampled_from([(2, 3), (3, 2), (2, 4)]), LINKS, LINKS, st.integers(0, 200), st.data())
def test_more_ports_never_make_it_slower(shape, within, between, size, data):
    schedule = collectives.hierarchical_ring(*shape)
    few = data.draw(st.sampled_from(divisors(shape[1])))
    prices = [cost(schedule, 4 * size, Topology(*shape, within, between, ports)).seconds for ports in (few, shape[1])]
    assert prices[0] >= prices[1]


@given(st.integers(1, 9), st.integers(0, 100), LINKS)
def test_one_schedule_after_another_costs_the_sum(world, size, link):
    first, second = collectives.reduce_scatter(world), collectives.all_gather(world)
    parts = [cost(part, 4 * size, link).seconds for part in (first, second)]
    assert cost(first.then(second), 4 * size, link).seconds == pytest.approx(sum(parts), rel=1e-12)


def test_empty_messages_cost_nothing():
    assert cost(ring(4), 0, NET).seconds == 0
    assert cost(ring(1), 100, NET).seconds == 0
    lonely = Schedule(2, 2, [Round.of(0, 1, 1, True)])
    assert cost(lonely, 4, NET).seconds == 0  # its one element is in chunk 0
    assert cost(lonely, 8, NET).seconds == NET.alpha + 4 * NET.beta


def test_two_ranks_at_one_port_add_up_and_two_ports_do_not():
    both = Schedule(4, 2, [Round.of([0, 1], [2, 3], [0, 1], True)])
    shared, own = (cost(both, 8, Topology(2, 2, NVLINK, NET, ports)).seconds for ports in (1, 2))
    assert (shared, own) == (NET.alpha + 8 * NET.beta, NET.alpha + 4 * NET.beta)


def test_a_message_to_another_node_takes_no_port_inside():
    away = Schedule(4, 1, [Round.of(0, 2, 0, True)])
    assert cost(away, 8, Topology(2, 2, NET, NVLINK)).seconds == NVLINK.alpha + 8 * NVLINK.beta


def test_every_message_has_a_header_and_an_empty_one_is_not_sent():
    exchange = Schedule(2, 2, [Round.of([0, 1], [1, 0], [0, 1], True)])
    assert count(exchange, 1, header=6).sent_bytes.tolist() == [10, 0]  # its one element is in chunk 0


def test_every_started_block_has_a_header():
    schedule = collectives.two_phase(2)  # each rank sends both chunks, of 5 and 4 elements
    assert count(schedule, 9, itemsize=2, header=3, block=4).sent_bytes.tolist() == [2 * 9 + 3 * (2 + 1)] * 2


def test_two_messages_of_one_rank_add_up_and_the_two_directions_do_not():
    fan = Schedule(3, 2, [Round.of(0, [1, 2], [0, 1], True)])
    exchange = Schedule(2, 2, [Round.of([0, 1], [1, 0], [0, 1], True)])
    assert cost(fan, 8, NET).seconds == NET.alpha + 8 * NET.beta
    assert cost(exchange, 8, NET).seconds == NET.alpha + 4 * NET.beta


def test_a_cost_says_what_it_is():
    link = Link.gigabytes(50, latency=10e-6)
    priced = cost(ring(4), 100_000_000, link)
    assert (priced.rounds, priced.bytes_per_rank) == (6, 150_000_000)
    assert priced.seconds == pytest.approx(60e-6 + 3e-3)
    assert priced.algbw == pytest.approx(1e8 / 3.06e-3)
    assert priced.busbw == pytest.approx(1.5e8 / 3.06e-3)
    assert repr(priced) == (
        "ring(world=4) on 100 MB: 6 rounds, 150 MB per rank, 3.06 ms; algbw 32.7 GB/s, busbw 49 GB/s"
    )


def test_what_takes_no_time_has_no_rate():
    priced = cost(ring(1), 100, NET)
    assert math.isnan(priced.algbw)
    assert math.isnan(priced.busbw)
    assert repr(priced) == "ring(world=1) on 100 B: 0 rounds, 0 B per rank, 0 s"


def test_what_is_no_collective_has_no_bus_bandwidth():
    priced = cost(Schedule(2, 1, [Round.of(0, 1, 0, True)], after=({},)), 4, NET)
    assert priced.algbw > 0
    assert math.isnan(priced.busbw)


def test_a_number_of_bytes_may_be_a_float():
    assert cost(ring(4), 25e6, NET).seconds == cost(ring(4), 25_000_000, NET).seconds
    assert type(cost(ring(4), 25e6, NET).nbytes) is int


@each(
    ("call", "named"),
    [
        (lambda: cost(ring, 4, NET), "schedule"),
        (lambda: cost(ring(2), 6, NET), "nbytes"),
        (lambda: cost(ring(2), -4, NET), "nbytes"),
        (lambda: cost(ring(2), 1.5, NET), "nbytes"),
        (lambda: cost(ring(2), float("nan"), NET), "nbytes"),
        (lambda: cost(ring(2), 4, NET, 0), "itemsize"),
        (lambda: cost(ring(2), 4, 50e9), "network"),
        (lambda: cost(ring(2), 4, Topology(2, 2, NVLINK, NET)), "network"),
    ],
)
def test_a_wrong_argument_is_named(call, named):
    with pytest.raises(InvalidArgument, match=f"^{named} must be"):
        call()
