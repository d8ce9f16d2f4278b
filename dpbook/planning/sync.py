"""The collectives of a step, priced by NCCL's names for their algorithms."""

from collections.abc import Callable
from dataclasses import replace
from math import ceil, sqrt
from typing import Literal

from dpbook.collectives import Topology, closed_forms
from dpbook.core import InvalidArgument, check_one_of
from dpbook.overlap import Wires

Price = Callable[[float], float]
"""Seconds of a call by its bytes."""

Algorithm = Literal["Ring", "Tree", "NVLS", "NVLSTree"]
"""Of an all-reduce. "Ring": one through every port of a node. "Tree": a chain through each node, and for every port a
pair of binary trees between the nodes. "NVLS": the switches of one node add. "NVLSTree": NVLS inside the nodes, pairs
of trees between them. NVLink's switches add from Hopper on, which nothing here checks. NCCL has more (CollNet, PAT),
and takes what its own model says is fastest; NCCL_ALGO limits it.
"""

NVLS_SHARE = 0.75
"""Of a ring's share of the NVLink bandwidth what NVLS reaches. On 8 H200 16 GiB went at 275.6 GB/s of n bytes through
the switches, and at 367.6 GB/s of a ring's 2(N − 1)/N · n without them (S. Bekman, "Machine Learning Engineering")."""

NVLS_START = 54e-6
"""Seconds that a call through the switches takes before its bytes count: fitted to every second size of that sweep."""


def all_reduce(algorithm: Algorithm, where: Topology) -> Price:
    """The price of an all-reduce. Raises `InvalidArgument` for NVLS beyond one node."""
    check_one_of("algorithm", algorithm, ("Ring", "Tree", "NVLS", "NVLSTree"))
    if where.world == 1:
        return lambda nbytes: 0.0
    if algorithm == "Ring":
        return closed_forms.ring_per_port(where.nodes, where.per_node, where, where.ports)
    if algorithm == "Tree":
        return _tree(where)
    if algorithm == "NVLS" and where.nodes > 1:
        raise InvalidArgument("algorithm", algorithm, "NVLSTree beyond one node, whose switches add by themselves")
    return _nvls_tree(where)


def wires(algorithm: Algorithm, where: Topology, hybrid: bool) -> Wires:
    """What the collectives of a sharded step cost. Reduce-scatter and all-gather are half a ring each.

    ``hybrid``: weights and gradients are sharded inside a node, and each shard is all-reduced between the nodes by a
    ring of its own through its port (hybrid sharding, HSDP).
    """
    half = _half(all_reduce("Ring", replace(where, nodes=1, ports=where.per_node) if hybrid else where))
    across = closed_forms.ring(where.nodes, where.between)
    sharing = ceil(where.per_node / where.ports)
    return Wires(half, half, all_reduce(algorithm, where), lambda shard: across(sharing * shard))


def _half(price: Price) -> Price:
    return lambda nbytes: 0.5 * price(nbytes)


def _tree(where: Topology) -> Price:
    """Up a chain and a pair of trees and down again, in blocks that follow each other, by every port its own part.

    The first block takes 2(L − 1) hops in chains of L ranks and 4⌈log2 M⌉ rounds in the double trees of M nodes (as in
    `closed_forms.double_binary_tree`); then one leaves each way in the time of the slowest hop. Through a rank's link
    inside the node go the chains of all ports.
    """
    hops = [(2 * (where.per_node - 1), where.within.alpha, where.within.beta * where.ports)]
    hops += [(4 * (where.nodes - 1).bit_length(), where.between.alpha, where.between.beta)]
    hops = [hop for hop in hops if hop[0]]
    alpha, filling = max(alpha for _, alpha, _ in hops), sum(times * beta for times, _, beta in hops)

    def seconds(nbytes: float) -> float:
        part = nbytes / where.ports
        if not alpha:
            return 2 * part * max(beta for *_, beta in hops)  # ever smaller blocks, which cost nothing
        block = min(part, sqrt(2 * part * alpha / filling))
        slowest = max(alpha + beta * block for _, alpha, beta in hops)
        return sum(times * (alpha + beta * block) for times, alpha, beta in hops) + 2 * part / block * slowest

    return seconds


def _nvls_tree(where: Topology) -> Price:
    """The switches of each node add, double binary trees carry the shards between the nodes, the switches share out."""
    switches = replace(where.within, latency=0, bandwidth=where.within.bandwidth * NVLS_SHARE)
    start = NVLS_START if where.per_node > 1 else 0.0
    through = closed_forms.in_network(where.per_node, switches)
    sharing, link = ceil(where.per_node / where.ports) / where.per_node, where.between
    depth = (where.nodes - 1).bit_length()

    def seconds(nbytes: float) -> float:
        inside, shard = start + through(nbytes), sharing * nbytes  # of ranks on one port, one after another
        if not depth or not link.alpha:
            return inside + bool(depth) * 2 * link.beta * shard
        block = sqrt(shard * link.alpha / (2 * depth * link.beta))
        return inside + closed_forms.double_binary_tree(where.nodes, link, block)(shard)

    return seconds
