"""What each algorithm costs, as a formula: seconds as a function of the bytes n of the buffer.

The formulas are those of Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in
MPICH" (2005), without their term γ for the time of the additions. Each is what `cost` counts, round by round, where the
number of chunks divides the number of elements. Elsewhere chunks differ by one element, and the counted price of a
buffer of at least one element per chunk lies between the formula's for the next smaller and the next larger size that
the number of chunks divides. On a `Link` every rank has one full-duplex port. All raise `InvalidArgument`.
"""

from typing import overload

import numpy as np

from dpbook.collectives.pricing.alpha_beta import AlphaBeta, Slowest, slowest
from dpbook.collectives.pricing.lower_bounds import latency_lower_bound
from dpbook.collectives.pricing.topology import Link, Network, Topology, topology_for
from dpbook.core import InvalidArgument, check_float, check_int, check_type


def parameter_server(world: int, link: Link) -> AlphaBeta:
    """2(N − 1)(α + βn): one rank after another sends to the server, and then gets the sum."""
    rounds = 2 * (check_int("world", world, 1) - 1)
    return _through(link, rounds, rounds)


def reduce(world: int, link: Link) -> AlphaBeta:
    """⌈log2 N⌉(α + βn): a binomial tree, upwards."""
    depth = latency_lower_bound(world)
    return _through(link, depth, depth)


def broadcast(world: int, link: Link) -> AlphaBeta:
    """⌈log2 N⌉(α + βn): a binomial tree, downwards."""
    return reduce(world, link)


def tree(world: int, link: Link) -> AlphaBeta:
    """2⌈log2 N⌉(α + βn): reduce, then broadcast."""
    return reduce(world, link) + broadcast(world, link)


def recursive_doubling(world: int, link: Link) -> AlphaBeta:
    """⌊log2 N⌋(α + βn), and 2(α + βn) more if N is no power of two."""
    core, folded = _core(world)
    return _through(link, core + folded, core + folded)


def halving_doubling(world: int, link: Link) -> AlphaBeta:
    """2 log2 P · α + 2(P − 1)/P · βn with P the largest power of two up to N, and 2(α + βn) more if N is not P."""
    core, folded = _core(world)
    return _through(link, 2 * core + folded, 2 * (1 - 2.0**-core) + folded)


def reduce_scatter(world: int, link: Link) -> AlphaBeta:
    """(N − 1)α + (N − 1)/N · βn: one half of a ring."""
    world = check_int("world", world, 1)
    return _through(link, world - 1, (world - 1) / world)


def all_gather(world: int, link: Link) -> AlphaBeta:
    """(N − 1)α + (N − 1)/N · βn: the other half."""
    return reduce_scatter(world, link)


@overload
def ring(world: int, network: Link) -> AlphaBeta: ...
@overload
def ring(world: int, network: Topology) -> AlphaBeta | Slowest: ...
def ring(world: int, network: Network) -> AlphaBeta | Slowest:
    """2(N − 1)α + 2(N − 1)/N · βn, with α and β of the slowest link of the circle.

    On a topology every rank sends to its neighbour, so that one rank's messages enter a node and one's leave it.
    """
    world = check_int("world", world, 1)
    where = topology_for(network, world)
    rounds, share = 2 * (world - 1), 2 * (world - 1) / world
    inside = _through(where.within, rounds, share) if where.per_node > 1 or where.nodes == 1 else _NOTHING
    across = _through(where.between, rounds, share) if where.nodes > 1 else _NOTHING
    return slowest(inside, across)


def hierarchical_ring(nodes: int, per_node: int, network: Network) -> AlphaBeta:
    """2(L − 1)(α + βn/L) inside the M nodes of L ranks and 2(M − 1)(α + s·βn/LM) between them, one after the other.

    ``s`` is the largest number of ranks that share a port between nodes. On a `Link` it is 1.
    """
    where = _placed(nodes, per_node, network)
    sharing = 1 if where.nodes == 1 else int(np.bincount(where.port).max())
    inside, across = 2 * (per_node - 1), 2 * (nodes - 1)
    return _through(where.within, inside, inside / per_node) + _through(
        where.between, across, across * sharing / (nodes * per_node)
    )


def ring_per_port(nodes: int, per_node: int, network: Network, ports: int | None = None) -> AlphaBeta | Slowest:
    """2(N − 1)α + 2(N − 1)/N · βn · (rings through one port) / (rings), on the slowest kind of link.

    Through a port between nodes goes one ring if the topology has as many ports as there are rings; through the ports
    inside a node go all rings, or all but one if each rank is the last of its node in one of them.
    """
    where = _placed(nodes, per_node, network)
    rings = check_int("ports", per_node if ports is None else ports, 1, per_node)
    if per_node % rings:
        raise InvalidArgument("ports", ports, f"a divisor of per_node, {per_node}")
    world = nodes * per_node
    rounds, share = 2 * (world - 1), 2 * (world - 1) / (world * rings)
    if where.nodes == 1:
        return _through(where.within, rounds, share * rings)
    last = (np.arange(rings) * per_node // rings - 1) % per_node
    first = (last + 1) % per_node
    outside = max(int(np.bincount(where.port[local]).max()) for local in (first, last))
    inside = rings - (rings == per_node)
    within = _through(where.within, rounds, share * inside) if per_node > 1 else _NOTHING
    return slowest(within, _through(where.between, rounds, share * outside))


def double_binary_tree(world: int, link: Link, block_bytes: float) -> AlphaBeta:
    """4h(α + βb) + 2(α/b + β)n for blocks of b = ``block_bytes``, with h = ⌈log2 N⌉; 0 for N = 1.

    Two binary trees, each for half of the buffer, in which every rank is a leaf of one and inside the other, so that in
    every round each rank sends and receives one block: a reduction takes 2h rounds to fill the pipeline and n/b more to
    empty it, the broadcast after it as many (Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth
    broadcast, reduction and scan", 2009). It assumes full-duplex ports, a latency paid by every block, and n ≥ 2b. With
    the best block for each n, √(nα / 2hβ) bytes, it takes 2(√(βn) + √(2hα))²: twice the bytes of the buffer, as a ring,
    but a number of latencies that grows like log N.
    """
    depth, block = latency_lower_bound(world), check_float("block_bytes", block_bytes, above=0)
    seconds = _through(link, 1, 1)(block)
    return AlphaBeta(4 * depth * seconds, 2 * seconds / block if depth else 0)


def in_network(world: int, link: Link, levels: int = 1) -> AlphaBeta:
    """2 · ``levels`` · α + βn: switches in a tree of so many levels add what comes up and send the sum down.

    Each rank sends n bytes and receives n, at the same time, where the best that ranks alone can do is 2(N − 1)/N · n.
    It is a lower bound on the time: it assumes switches that add at the rate of the link, pipelined, and pass the first
    byte on after one α. Measured, halving the bytes does not halve the time: see ``data/nccl_h200.json``.
    """
    levels = check_int("levels", levels, 1)
    return _through(link, 2 * levels, 1) if check_int("world", world, 1) > 1 else _through(link, 0, 0)


_NOTHING = AlphaBeta(0, 0)


def _through(link: Link, rounds: float, buffers: float) -> AlphaBeta:
    """So many rounds, in which so many times the buffer goes through the busiest port in all."""
    check_type("link", link, Link, "a Link, such as Link.gigabits(400, latency=5e-6)")
    return AlphaBeta(rounds * link.alpha, buffers * link.beta)


def _core(world: int) -> tuple[int, int]:
    """⌊log2 N⌋, and the 2 rounds more of a world that is folded because it is no power of two."""
    depth = check_int("world", world, 1).bit_length() - 1
    return depth, 0 if world == 1 << depth else 2


def _placed(nodes: int, per_node: int, network: Network) -> Topology:
    """``network`` as a topology of this shape; a `Link` is one node, whatever the shape."""
    world = check_int("nodes", nodes, 1) * check_int("per_node", per_node, 1)
    topology = topology_for(network, world)
    if isinstance(network, Topology) and (network.nodes, network.per_node) != (nodes, per_node):
        raise InvalidArgument("network", network, f"a topology of {nodes} × {per_node} ranks, or a Link")
    return topology
