"""Prices of the collectives of a step, by NCCL's names for their algorithms."""

from collections.abc import Callable
from dataclasses import replace
from math import ceil, sqrt
from typing import Literal

from dpbook.collectives import Topology, closed_forms
from dpbook.core import InvalidArgument, check_one_of
from dpbook.overlap import Wires

Price = Callable[[float], float]
"""Seconds of a collective by its bytes."""

Algorithm = Literal["Ring", "Tree", "NVLS", "NVLSTree"]
"""Algorithm of an all-reduce. "Ring": one through every port of a node. "Tree": a chain through each node, and for
every port a pair of binary trees between the nodes. "NVLS": the switches of one node add. "NVLSTree": NVLS inside the
nodes, pairs of trees between them. NVLink's switches add from Hopper on, which is not checked here. NCCL has more
algorithms (CollNet, PAT) and chooses the fastest by its own model; NCCL_ALGO restricts the choice.
"""

NVLS_SHARE = 0.75
"""Share of a ring's NVLink bandwidth that NVLS reaches. On 8 H200 an all-reduce of 16 GiB reached 275.6 GB/s of n bytes
through the switches, and 367.6 GB/s of a ring's 2(N − 1)/N · n without them (S. Bekman, "Machine Learning
Engineering")."""

NVLS_START = 54e-6
"""Latency of a call through the switches in seconds, fitted to every second size of that sweep."""


def all_reduce(algorithm: Algorithm, topology: Topology) -> Price:
    """Return the price of an all-reduce. Raises `InvalidArgument` for NVLS beyond one node."""
    check_one_of("algorithm", algorithm, ("Ring", "Tree", "NVLS", "NVLSTree"))
    if topology.world == 1:
        return lambda nbytes: 0.0
    if algorithm == "Ring":
        return closed_forms.ring_per_port(topology.nodes, topology.per_node, topology, topology.ports)
    if algorithm == "Tree":
        return _tree(topology)
    if algorithm == "NVLS" and topology.nodes > 1:
        raise InvalidArgument(
            "algorithm", algorithm, "NVLSTree beyond one node: NVLS adds in the switches of a single node"
        )
    return _nvls_tree(topology)


def wires(algorithm: Algorithm, topology: Topology, hybrid: bool) -> Wires:
    """Return the prices of the collectives of a sharded step. Reduce-scatter and all-gather are half a ring each.

    With ``hybrid`` weights and gradients are sharded inside a node, and each shard is all-reduced between the nodes by
    a separate ring through its port (hybrid sharding, HSDP).
    """
    half = _half(all_reduce("Ring", replace(topology, nodes=1, ports=topology.per_node) if hybrid else topology))
    across = closed_forms.ring(topology.nodes, topology.between)
    sharing = ceil(topology.per_node / topology.ports)
    return Wires(half, half, all_reduce(algorithm, topology), lambda shard: across(sharing * shard))


def _half(price: Price) -> Price:
    return lambda nbytes: 0.5 * price(nbytes)


def _tree(topology: Topology) -> Price:
    """Return the price of "Tree": up a chain and a pair of trees and down again, in pipelined blocks.

    Every port carries its part of the buffer. The first block takes 2(L − 1) hops in chains of L ranks and 4⌈log2 M⌉
    rounds in the double trees of M nodes (as in `closed_forms.double_binary_tree`). Then one block arrives each way in
    the time of the slowest hop. The chains of all ports share a rank's link inside the node.
    """
    hops = [(2 * (topology.per_node - 1), topology.within.alpha, topology.within.beta * topology.ports)]
    hops += [(4 * (topology.nodes - 1).bit_length(), topology.between.alpha, topology.between.beta)]
    hops = [hop for hop in hops if hop[0]]
    alpha, filling = max(alpha for _, alpha, _ in hops), sum(times * beta for times, _, beta in hops)

    def seconds(nbytes: float) -> float:
        part = nbytes / topology.ports
        if not alpha:
            return (
                2 * part * max(beta for *_, beta in hops)
            )  # without latency, ever smaller blocks fill the pipeline at no cost
        block = min(part, sqrt(2 * part * alpha / filling))
        slowest = max(alpha + beta * block for _, alpha, beta in hops)
        return sum(times * (alpha + beta * block) for times, alpha, beta in hops) + 2 * part / block * slowest

    return seconds


def _nvls_tree(topology: Topology) -> Price:
    """Return the price of NVLS in each node, with double binary trees that carry the shards between the nodes."""
    switches = replace(topology.within, latency=0, bandwidth=topology.within.bandwidth * NVLS_SHARE)
    start = NVLS_START if topology.per_node > 1 else 0.0
    through = closed_forms.in_network(topology.per_node, switches)
    sharing, link = ceil(topology.per_node / topology.ports) / topology.per_node, topology.between
    depth = (topology.nodes - 1).bit_length()

    def seconds(nbytes: float) -> float:
        inside, shard = start + through(nbytes), sharing * nbytes  # ranks that share a port send one after another
        if not depth or not link.alpha:
            return inside + bool(depth) * 2 * link.beta * shard
        block = sqrt(shard * link.alpha / (2 * depth * link.beta))
        return inside + closed_forms.double_binary_tree(topology.nodes, link, block)(shard)

    return seconds
