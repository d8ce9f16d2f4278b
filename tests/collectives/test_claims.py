"""Figures that the book repeats from the literature, recomputed."""

import math

import numpy as np
import pytest

from dpbook.collectives import (
    Link,
    Topology,
    bandwidth_lower_bound,
    cost,
    count,
    hierarchical_ring,
    parameter_server,
    ring,
    tree,
)
from dpbook.collectives.pricing import closed_forms
from tests.collectives.oracles import by_hand

GRADIENTS = 70 * 10**9  # parameters of a 70 B model
NBYTES = 2 * GRADIENTS  # in bf16
PORT, NVLINK = Link.gigabits(400), Link.gigabytes(450)
CLUSTER = Topology(nodes=32, per_node=8, within=NVLINK, between=PORT)


def test_a_parameter_server_of_1024_ranks_gets_143_terabytes():
    arriving = int(count(parameter_server(1024), GRADIENTS, 2).received_bytes[0])
    assert round(arriving / 1e12) == 143


@pytest.mark.parametrize(("link", "seconds"), [(Link.gigabytes(400), 358), (Link.gigabits(400), 48 * 60)])
def test_one_direction_of_it_takes_358_seconds_or_48_minutes(link, seconds):
    both_ways = cost(parameter_server(1024), NBYTES, link, 2).seconds
    assert both_ways / 2 == pytest.approx(seconds, rel=0.01)
    assert both_ways == pytest.approx(closed_forms.parameter_server(1024, link)(NBYTES))


def test_a_ring_of_256_sends_279_gigabytes_per_rank_in_5_6_seconds():
    priced = cost(ring(256), NBYTES, PORT, 2)
    assert round(priced.bytes_per_rank / 1e9) == 279
    assert priced.seconds == pytest.approx(5.6, abs=0.05)
    assert closed_forms.ring(256, CLUSTER)(NBYTES) == pytest.approx(priced.seconds)


def test_one_ring_per_port_over_eight_ports_takes_0_70_seconds():
    assert closed_forms.ring_per_port(32, 8, CLUSTER)(NBYTES) == pytest.approx(0.70, abs=0.005)


def test_a_hierarchical_ring_takes_0_68_seconds_between_nodes_and_0_54_inside():
    free = Link.gigabytes(100_000)  # so fast that only the other link counts
    between = Topology(32, 8, free, PORT)
    within = Topology(32, 8, NVLINK, free)
    assert closed_forms.hierarchical_ring(32, 8, between)(NBYTES) == pytest.approx(0.68, abs=0.01)
    assert closed_forms.hierarchical_ring(32, 8, within)(NBYTES) == pytest.approx(0.54, abs=0.01)
    whole = closed_forms.hierarchical_ring(32, 8, CLUSTER)(NBYTES)
    assert whole == pytest.approx(0.68 + 0.54, abs=0.01)
    assert cost(hierarchical_ring(32, 8), NBYTES, CLUSTER, 2).seconds == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize("world", [4, 16, 1024])
def test_in_a_tree_two_ranks_move_2_log2_n_buffers_and_the_mean_is_below_4(world):
    """Both directions counted: the root, and its child with the largest subtree. Half of the ranks are leaves."""
    traffic = count(tree(world), 1, 1)
    moved = traffic.sent_bytes + traffic.received_bytes
    assert np.flatnonzero(moved == moved.max()).tolist() == [0, world // 2]
    assert moved.max() == 2 * math.log2(world)
    assert np.count_nonzero(moved == 2) == world // 2
    assert moved.mean() < 4
    assert traffic.total_bytes == count(parameter_server(world), 1, 1).total_bytes == 2 * (world - 1)


def test_25_megabytes_at_400_gigabytes_per_second_take_62_5_microseconds_and_in_a_ring_more():
    link = Link.gigabytes(400, latency=10e-6)
    assert link.beta * 25e6 == pytest.approx(62.5e-6)
    priced = cost(ring(8), 25_000_000, link)
    assert priced.bytes_per_rank == 43_750_000
    assert priced.seconds == pytest.approx(14 * 10e-6 + 1.75 * 62.5e-6)


def test_two_ranks_of_a_7_b_model_send_14_gigabytes_each_and_many_send_28():
    nbytes = 14 * 10**9
    assert count(ring(2), nbytes // 2, 2).busiest_bytes == nbytes
    assert bandwidth_lower_bound(1024, nbytes) == pytest.approx(2 * nbytes, rel=0.01)


def test_a_hierarchical_ring_spreads_its_traffic_evenly_over_the_ports():
    _, carried = by_hand(hierarchical_ring(4, 8), 8 * 4 * 100, 4, Topology(4, 8, NVLINK, PORT))
    assert len(carried) == 4 * 32  # every rank has a port of its own inside its node and one to the others
    for kind in ("within", "between"):
        assert len({nbytes for place, nbytes in carried.items() if place[0] == kind}) == 1
