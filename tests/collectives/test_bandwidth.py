"""Are the two bandwidths those that nccl-tests reports?"""

import math

import pytest

from dpbook import collectives
from dpbook.collectives import Link, algbw, bus_factor, busbw, collective_of, cost
from dpbook.core.errors import InvalidArgument
from tests.cases import each
from tests.collectives.oracles import WORLDS, torch_reduce_scatter

NO_LATENCY = Link.gigabytes(50)


def test_the_algorithm_bandwidth_is_bytes_per_second():
    assert algbw(1e9, 0.5) == 2e9
    assert math.isnan(algbw(1e9, 0))


@pytest.mark.parametrize(
    ("collective", "factor"),
    [("all_reduce", 1.75), ("all_gather", 0.875), ("reduce_scatter", 0.875), ("broadcast", 1), ("reduce", 1)],
)
def test_the_bus_bandwidth_of_eight_ranks(collective, factor):
    assert bus_factor(8, collective) == factor
    assert busbw(1e9, 0.5, 8, collective) == 2e9 * factor


@each("world", WORLDS[1:])
@each("name", ["ring", "reduce_scatter", "all_gather"])
def test_a_ring_reaches_the_links_bandwidth_as_its_bus_bandwidth(name, world):
    assert cost(getattr(collectives, name)(world), 4 * world * 1000, NO_LATENCY).busbw == pytest.approx(50e9)


@each("world", WORLDS[1:])
def test_the_collective_of_a_schedule_is_seen_in_its_promise(world):
    made = {
        "all_reduce": [make(world) for make in collectives.ALGORITHMS.values()],
        "reduce_scatter": [collectives.reduce_scatter(world), torch_reduce_scatter(world)],
        "all_gather": [collectives.all_gather(world)],
        "reduce": [collectives.reduce(world, root) for root in range(world)],
        "broadcast": [collectives.broadcast(world, root) for root in range(world)],
    }
    for expected, schedules in made.items():
        assert {collective_of(schedule) for schedule in schedules} == {expected}


def test_others_are_none_of_them():
    ranks, node = range(4), [frozenset((0, 1))] * 2 + [frozenset((2, 3))] * 2
    inside_nodes = collectives.Schedule(4, 1, [], after=(dict(zip(ranks, node, strict=True)),))
    twice_on_0 = collectives.Schedule(2, 3, [], after=tuple(collectives.complete_on([r], 2) for r in (0, 0, 1)))
    on_0, on_1 = ((collectives.complete_on([rank], 2),) for rank in (0, 1))
    moved = collectives.Schedule(2, 1, [], before=on_0, after=on_1)
    assert [collective_of(schedule) for schedule in (inside_nodes, twice_on_0, moved)] == [None] * 3


@each(
    ("call", "named"),
    [
        (lambda: algbw(-1, 1), "nbytes"),
        (lambda: algbw(1, -1), "seconds"),
        (lambda: algbw(1, math.nan), "seconds"),
        (lambda: bus_factor(0), "world"),
        (lambda: bus_factor(4, "all_to_all"), "collective"),
        (lambda: collective_of(4), "schedule"),
    ],
)
def test_a_wrong_argument_is_named(call, named):
    with pytest.raises(InvalidArgument, match=f"^{named} must be"):
        call()
