"""Are the formulas what counting round by round gives?"""

import itertools
import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbook import collectives
from dpbook.collectives import (
    ALGORITHMS,
    AlphaBeta,
    Link,
    Slowest,
    Topology,
    bandwidth_lower_bound,
    cost,
    latency_lower_bound,
)
from dpbook.collectives.pricing import closed_forms
from dpbook.core.errors import InvalidArgument
from tests.cases import each
from tests.collectives.oracles import WORLDS, divisors, worlds

NET, NVLINK = Link.gigabits(400, latency=5e-6), Link.gigabytes(450, latency=2e-6)
EAGER = Link.gigabytes(450, latency=20e-6)  # a larger latency *and* a larger bandwidth than NET
SHAPES = [*itertools.product(range(1, 5), range(1, 5)), (2, 8), (3, 6)]

PARTS = {
    name: getattr(closed_forms, name) for name in ("reduce_scatter", "all_gather", "reduce", "broadcast", "two_phase")
}
FORMS = {name: algorithm.closed_form for name, algorithm in ALGORITHMS.items()} | PARTS


def places(name):
    """Worlds to look at: those of the tests, and for a whole algorithm two large ones too."""
    return WORLDS if name in PARTS else worlds(name) + [world for world in (12, 64) if ALGORITHMS[name].worlds(world)]


def build(name, world):
    return (vars(collectives) | ALGORITHMS)[name](world)


def close(a, b):
    return math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-18)


@pytest.mark.parametrize("name", FORMS)
@each("world", places)
def test_on_a_link_the_formula_is_the_counted_price(name, world):
    schedule = build(name, world)
    for elements in (1, 3, 1000):
        nbytes = 4 * schedule.n_chunks * elements
        assert close(cost(schedule, nbytes, NET).seconds, FORMS[name](world, NET)(nbytes))


@each(("nodes", "per_node"), SHAPES)
@each("within", [NVLINK, EAGER])
def test_on_a_topology_the_formula_is_the_counted_price(within, nodes, per_node):
    world = nodes * per_node
    made = [(collectives.ring(world), partial(closed_forms.ring, world))]
    made += [(collectives.hierarchical_ring(nodes, per_node), partial(closed_forms.hierarchical_ring, nodes, per_node))]
    made += [
        (
            collectives.ring_per_port(nodes, per_node, rings),
            partial(closed_forms.ring_per_port, nodes, per_node, ports=rings),
        )
        for rings in divisors(per_node)
    ]
    for ports in {1, per_node // 2 or 1, per_node - 1 or 1, per_node}:
        where = Topology(nodes, per_node, within, NET, ports)
        for schedule, form in made:
            for elements in (1, 10_000):
                nbytes = 4 * schedule.n_chunks * elements
                assert close(cost(schedule, nbytes, where).seconds, form(where)(nbytes)), schedule


@each(("nodes", "per_node"), SHAPES)
def test_a_ring_without_rounds_takes_what_its_messages_take(nodes, per_node):
    """Each rank sends a chunk when it has come, and when its port has sent the one before."""
    world, calls = nodes * per_node, (1.0, 1e5, 1e7, 1e10)
    form = closed_forms.ring_without_rounds(nodes, per_node, Topology(nodes, per_node, NVLINK, NET, ports=1), ports=1)
    links = [NET if nodes > 1 and rank % per_node == per_node - 1 else NVLINK for rank in range(world)]
    alphas, betas = (np.array([getattr(link, name) for link in links]) for name in ("alpha", "beta"))
    for nbytes in calls:
        come, free = np.zeros(world), np.zeros(world)
        for _ in range(2 * (world - 1)):
            begun = np.maximum(come, free)
            free = begun + betas * nbytes / world
            come = np.roll(free + alphas, 1)
        taken = come.max()
        slack = 2 * max(0, NET.alpha - NVLINK.alpha)  # a chunk may cross between nodes twice more than NCCL counts
        assert taken <= (form(nbytes) + slack) * (1 + 1e-9)
        assert form(nbytes) <= 2 * taken * (1 + 1e-9)


@each(("nodes", "per_node"), SHAPES)
def test_over_nodes_a_link_will_do(nodes, per_node):
    for make, form in (
        (collectives.hierarchical_ring, closed_forms.hierarchical_ring),
        (collectives.ring_per_port, closed_forms.ring_per_port),
    ):
        schedule = make(nodes, per_node)
        nbytes = 4 * schedule.n_chunks * 3
        assert close(cost(schedule, nbytes, NET).seconds, form(nodes, per_node, NET)(nbytes))


@pytest.mark.parametrize("name", FORMS)
@each("world", places)
def test_elsewhere_the_counted_price_lies_between_the_next_sizes_that_divide(name, world):
    schedule = build(name, world)
    for extra in (0, 1, 7, 50, 173):
        size, n = schedule.n_chunks + extra, schedule.n_chunks
        below, above = (FORMS[name](world, NET)(4 * n * count) for count in (size // n, -(-size // n)))
        counted = cost(schedule, 4 * size, NET).seconds
        assert below * (1 - 1e-12) <= counted <= above * (1 + 1e-12)


@given(st.sampled_from([(2, 3), (3, 2), (2, 4), (4, 4)]), st.integers(0, 200), st.booleans())
def test_that_holds_over_nodes_too(shape, extra, per_port):
    name = "ring_per_port" if per_port else "hierarchical_ring"
    schedule, where = getattr(collectives, name)(*shape), Topology(*shape, NVLINK, NET)
    size, n = schedule.n_chunks + extra, schedule.n_chunks
    form = getattr(closed_forms, name)(*shape, where)
    below, above = (form(4 * n * count) for count in (size // n, -(-size // n)))
    assert below * (1 - 1e-12) <= cost(schedule, 4 * size, where).seconds <= above * (1 + 1e-12)


def test_the_formulas_of_thakur_rabenseifner_and_gropp_for_64_ranks():
    n, a, b = 10**6, NET.alpha, NET.beta
    assert close(closed_forms.recursive_doubling(64, NET)(n), 6 * a + 6 * n * b)
    assert close(closed_forms.halving_doubling(64, NET)(n), 2 * 6 * a + 2 * 63 / 64 * n * b)
    assert close(closed_forms.ring(64, NET)(n), 2 * 63 * a + 2 * 63 / 64 * n * b)
    assert close(closed_forms.tree(64, NET)(n), 2 * 6 * (a + n * b))


@pytest.mark.parametrize("world", [8192, 10**6])
def test_thousands_of_ranks_are_priced_without_a_schedule(world):
    for algorithm in ALGORITHMS.values():
        assert not algorithm.worlds(world) or algorithm.closed_form(world, NET)(1e9) > 0


# How they compare


@each("world", [2, 4, 8, 16, 64, 1024])
def test_in_a_power_of_two_halving_doubling_sends_what_a_ring_sends_in_fewer_rounds(world):
    short, long = closed_forms.halving_doubling(world, NET), closed_forms.ring(world, NET)
    assert short.beta == pytest.approx(long.beta, rel=1e-12)
    assert short.alpha <= long.alpha


@each(("nodes", "per_node"), SHAPES)
def test_on_one_kind_of_link_a_hierarchical_ring_sends_what_a_ring_sends_in_no_more_rounds(nodes, per_node):
    flat = closed_forms.ring(nodes * per_node, NET)
    for network in (NET, Topology(nodes, per_node, NET, NET)):
        ours = closed_forms.hierarchical_ring(nodes, per_node, network)
        assert ours.beta == pytest.approx(flat.beta, rel=1e-12)
        assert ours.alpha <= flat.alpha * (1 + 1e-12)


@pytest.mark.parametrize("name", ALGORITHMS)
@each("world", places)
def test_no_all_reduce_beats_the_two_lower_bounds(name, world):
    form = ALGORITHMS[name].closed_form(world, NET)
    assert form.alpha >= latency_lower_bound(world) * NET.alpha
    assert form.beta >= bandwidth_lower_bound(world, 1) * NET.beta * (1 - 1e-12)


@each("world", [*WORLDS, 64, 1000])
def test_recursive_doubling_takes_the_fewest_rounds_that_can_be_in_a_power_of_two(world):
    rounds = len(collectives.recursive_doubling(world).rounds)
    least = latency_lower_bound(world)
    assert rounds == least if world & (world - 1) == 0 else least < rounds <= least + 1


def test_where_neither_link_is_always_the_slower_the_price_bends():
    form = closed_forms.ring(8, Topology(2, 4, EAGER, NET))
    assert isinstance(form, Slowest)
    assert form(8) == pytest.approx(14 * EAGER.alpha, rel=1e-3)
    assert form(8e9) == pytest.approx(14e9 * NET.beta, rel=1e-3)
    assert isinstance(closed_forms.ring(8, Topology(2, 4, NVLINK, NET)), AlphaBeta)


# What evades the plain bounds


@each("world", [2, 16, 256, 1000])
@each("nbytes", [1e6, 1e9])
def test_the_best_block_of_a_double_binary_tree_gives_the_formula_of_its_docstring(world, nbytes):
    h, a, b = math.ceil(math.log2(world)), NET.alpha, NET.beta
    best = math.sqrt(nbytes * a / (2 * h * b))
    least = closed_forms.double_binary_tree(world, NET, best)(nbytes)
    assert close(least, 2 * (math.sqrt(b * nbytes) + math.sqrt(2 * h * a)) ** 2)
    for other in best * np.array([0.5, 0.9, 1.1, 2]):
        assert closed_forms.double_binary_tree(world, NET, other)(nbytes) > least


def test_a_double_binary_tree_beats_a_ring_of_many_ranks_and_a_plain_tree():
    nbytes, world = 100e6, 1024
    ours = closed_forms.double_binary_tree(world, NET, 512 * 1024)(nbytes)
    assert ours < closed_forms.ring(world, NET)(nbytes)
    assert ours < closed_forms.tree(world, NET)(nbytes)
    huge = closed_forms.double_binary_tree(world, NET, 64e6)
    assert huge.beta == pytest.approx(2 * NET.beta, rel=0.01)  # two buffers through each port, as in a ring


def test_reduction_in_the_network_needs_half_the_bytes_of_the_bound():
    form = closed_forms.in_network(1024, NET, levels=2)
    assert form == AlphaBeta(4 * NET.alpha, NET.beta)
    assert form(1e9) < bandwidth_lower_bound(1024, 1e9) * NET.beta


def test_every_gpu_serves_the_switches_of_nvlink_with_all_parts_and_one_sum():
    for world in (2, 4, 8, 72):
        sent = sum(1 / world for reader in range(world)) + 1 / world  # parts that others' sums need, and its own sum
        form = closed_forms.nvlink_sharp(world, NET)
        assert form.alpha == 2 * NET.alpha
        assert close(form.beta, sent * NET.beta)


def test_one_rank_pays_nothing():
    every = [form(1, NET) for form in FORMS.values()]
    every += [closed_forms.double_binary_tree(1, NET, 1e6), closed_forms.in_network(1, NET)]
    every += [closed_forms.nvlink_sharp(1, NET), closed_forms.ring_without_rounds(1, 1, NET)]
    every += [closed_forms.hierarchical_ring(1, 1, NET), closed_forms.ring_per_port(1, 1, NET)]
    every += [closed_forms.ring_per_port(1, 1, Topology(1, 1, NVLINK, NET))]
    assert set(every) == {AlphaBeta(0, 0)}


@each("form", FORMS.values())
def test_what_is_no_world_or_link_is_named(form):
    for world in (0, 1.5, "4"):
        with pytest.raises(InvalidArgument, match=r"^world must be"):
            form(world, NET)
    with pytest.raises(InvalidArgument, match=r"^(link|network) must be"):
        form(4, 50e9)


@each(
    ("call", "named"),
    [
        (lambda: closed_forms.tree(4, Topology(2, 2, NVLINK, NET)), "link"),
        (lambda: closed_forms.ring(4, Topology(2, 3, NVLINK, NET)), "network"),
        (lambda: closed_forms.hierarchical_ring(2, 3, Topology(3, 2, NVLINK, NET)), "network"),
        (lambda: closed_forms.hierarchical_ring(0, 3, NET), "nodes"),
        (lambda: closed_forms.ring_per_port(2, 4, NET, 3), "ports"),
        (lambda: closed_forms.ring_per_port(2, 0, NET), "per_node"),
        (lambda: closed_forms.double_binary_tree(4, NET, 0), "block_bytes"),
        (lambda: closed_forms.in_network(4, NET, 0), "levels"),
        (lambda: closed_forms.in_network(0, NET), "world"),
        (lambda: latency_lower_bound(0), "world"),
    ],
)
def test_a_wrong_argument_is_named(call, named):
    with pytest.raises(InvalidArgument, match=f"^{named} must be"):
        call()
