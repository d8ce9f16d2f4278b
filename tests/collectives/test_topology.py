"""Are links read in the unit they were given in, and do ranks find their ports?"""

import dataclasses

import numpy as np
import pytest

from dpbook.collectives import Link, Topology
from dpbook.collectives.pricing.topology import topology_for
from dpbook.core.errors import DpbookError, InvalidArgument, UnitsError
from dpbook.core.quantities import in_binary, in_words
from tests.cases import each

SLOW, FAST = Link.gigabits(400, latency=5e-6), Link.gigabytes(450, latency=2e-6, name="NVLink")


def test_400_gigabits_are_50_gigabytes():
    assert Link.gigabits(400, 5e-6) == Link.gigabytes(50, 5e-6) == Link(5e-6, 50e9)
    assert Link.gigabits(400) != Link.gigabytes(400)


def test_a_link_has_the_alpha_and_beta_of_the_model():
    assert (SLOW.alpha, SLOW.beta) == (5e-6, 1 / 50e9)


def test_a_share_of_a_link_has_less_bandwidth_and_the_same_latency():
    assert FAST.achieving(0.8) == Link(2e-6, 360e9, "NVLink")
    assert FAST.achieving(1) == FAST
    for share in (0, 1.1, "half"):
        with pytest.raises(InvalidArgument, match=r"^share must be"):
            FAST.achieving(share)


def test_a_link_shows_its_rate_in_bits_and_in_bytes():
    assert repr(SLOW) == "400 Gb/s (50 GB/s), 5 µs"
    assert repr(FAST) == "NVLink: 3.6 Tb/s (450 GB/s), 2 µs"


@each(
    ("make", "message"),
    [
        (lambda: Link(5e-6, 400), r"read as 400 bytes per second.*Link.gigabits\(400\), or .*Link.gigabytes\(400\)"),
        (lambda: Link(5e-6, 999_999), "bytes per second"),
        (lambda: Link(5e-6, 2e14), "a smaller number"),
        (lambda: Link.gigabits(400e9), r"read as 4e\+11 gigabits per second.*Link.gigabits\(400\)\?"),
        (lambda: Link.gigabytes(50e9), r"read as 5e\+10 gigabytes per second.*Link.gigabytes\(50\)\?"),
        (lambda: Link.gigabits(1e-6), "read as 1e-06 gigabits per second.*a larger number"),
        (lambda: Link.gigabits(400, latency=5), "latency was read as 5 seconds.*5 µs, 5e-6"),
        (lambda: Link(-1e-6, 50e9), "latency was read as -1e-06 seconds.*not negative"),
        (lambda: Link(50e9, 50e9), "the bandwidth, which is the second argument"),
        (lambda: Link(50e9, 5e-6), r"read as 5e-06 bytes per second.*Link\(latency, bandwidth\), in this order"),
    ],
)
def test_a_figure_in_another_unit_is_refused_with_what_was_meant(make, message):
    with pytest.raises(UnitsError, match=message) as caught:
        make()
    assert isinstance(caught.value, DpbookError)


@pytest.mark.parametrize("bandwidth", [1e6, 1e14])
@pytest.mark.parametrize("latency", [0, 1])
def test_the_limits_themselves_are_allowed(latency, bandwidth):
    assert Link(latency, bandwidth).bandwidth == bandwidth


@each(
    ("make", "named"),
    [
        (lambda: Link("x", 1e9), "latency"),
        (lambda: Link(float("nan"), 1e9), "latency"),
        (lambda: Link(0, "x"), "bandwidth"),
        (lambda: Link(0, 0), "bandwidth"),
        (lambda: Link(0, -1e9), "bandwidth"),
        (lambda: Link(0, 1e9, 3), "name"),
        (lambda: Link.gigabits(0), "rate"),
        (lambda: Link.gigabytes(None), "rate"),
        (lambda: Topology(0, 2, SLOW, SLOW), "nodes"),
        (lambda: Topology(2, 1.5, SLOW, SLOW), "per_node"),
        (lambda: Topology(2, 2, 400, SLOW), "within"),
        (lambda: Topology(2, 2, SLOW, None), "between"),
        (lambda: Topology(2, 2, SLOW, SLOW, 3), "ports"),
        (lambda: Topology(2, 2, SLOW, SLOW, 0), "ports"),
        (lambda: topology_for(Topology(2, 2, SLOW, SLOW), 5), "network"),
        (lambda: topology_for(50e9, 4), "network"),
    ],
)
def test_what_makes_no_link_or_topology_is_named(make, named):
    with pytest.raises(InvalidArgument, match=f"^{named} must be"):
        make()


def test_a_link_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SLOW.bandwidth = 1e9


def test_ranks_are_numbered_node_by_node():
    assert Topology(3, 2, FAST, SLOW).node.tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("ports", "expected"), [(4, [0, 1, 2, 3, 4, 5, 6, 7]), (2, [0, 0, 1, 1, 2, 2, 3, 3]), (1, [0] * 4 + [1] * 4)]
)
def test_neighbours_share_a_port(ports, expected):
    assert Topology(2, 4, FAST, SLOW, ports).port.tolist() == expected


@each("per_node", range(1, 9))
def test_ports_are_shared_as_evenly_as_can_be(per_node):
    for ports in range(1, per_node + 1):
        sharing = np.bincount(Topology(1, per_node, FAST, SLOW, ports).port)
        assert len(sharing) == ports
        assert sharing.max() - sharing.min() <= 1


def test_by_default_every_rank_has_a_port():
    assert Topology(2, 8, FAST, SLOW).ports == 8
    assert Topology(2, 8, FAST, SLOW) == Topology(2, 8, FAST, SLOW, 8)


def test_a_topology_says_what_it_is():
    assert repr(Topology(32, 8, FAST, SLOW)) == (
        "32 nodes × 8 ranks; within NVLink: 3.6 Tb/s (450 GB/s), 2 µs; between 400 Gb/s (50 GB/s), 5 µs, "
        "8 ports per node"
    )


@each(
    ("value", "message"),
    [
        (0, "0 s"),
        (1, "1 s"),
        (5e-6, "5 µs"),
        (0.6972, "697 ms"),
        (999.96e-6, "1 ms"),
        (1e-9, "1 ns"),
        (5e-13, "0.5 ps"),
        (-2e3, "-2 ks"),
        (1e20, "1e+20 s"),
        (float("inf"), "inf s"),
    ],
)
def test_quantities_get_the_prefix_that_fits(value, message):
    assert in_words(value, "s") == message


@each(
    ("nbytes", "words"),
    [
        (0, "0 B"),
        (1000, "1000 B"),
        (1024, "1 KiB"),
        (25 * 2**20, "25 MiB"),
        (1.5 * 2**30, "1.5 GiB"),
        (2**52, "4096 TiB"),
    ],
)
def test_binary_sizes_in_words(nbytes, words):
    assert in_binary(nbytes) == words
