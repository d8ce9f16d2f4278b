"""Closed forms of the algorithms' costs, in seconds as a function of the bytes n of the buffer, and lower bounds.

The formulas are those of Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in
MPICH" (2005), without their term γ for the time of the additions. Each equals the price that `cost` counts, round by
round, if the number of chunks divides the number of elements. Otherwise chunks differ by one element, and the counted
price of a buffer of at least one element per chunk lies between the formula's for the next smaller and the next larger
size that the number of chunks divides. On a `Link` every rank has one full-duplex port. All raise `InvalidArgument`.
"""

from typing import overload

import numpy as np

from dpbook.collectives.pricing.alpha_beta import AlphaBeta, Slowest, slowest
from dpbook.collectives.pricing.topology import Link, Network, Topology, topology_for
from dpbook.core import InvalidArgument, check_float, check_int, check_type


def latency_lower_bound(world: int) -> int:
    """Return the fewest rounds of any all-reduce, ⌈log2 N⌉: the contributions on a rank at most double in a round.

    It holds if a rank sends to one and receives from one other rank in a round. Raises `InvalidArgument`.
    """
    return (check_int("world", world, 1) - 1).bit_length()


def bandwidth_lower_bound(world: int, nbytes: float) -> float:
    """Return the bytes that some rank must send in any all-reduce of ``nbytes``, 2(N − 1)/N · nbytes.

    It holds if the ranks do the adding (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
    clusters of workstations", 2009); with switches that add it does not. Raises `InvalidArgument`.
    """
    check_int("world", world, 1)
    return 2 * (world - 1) / world * check_float("nbytes", nbytes, minimum=0)


def parameter_server(world: int, link: Link) -> AlphaBeta:
    """Return 2(N − 1)(α + βn): one rank after another sends to the server, and then gets the sum."""
    rounds = 2 * (check_int("world", world, 1) - 1)
    return _through(link, rounds, rounds)


def reduce(world: int, link: Link) -> AlphaBeta:
    """Return ⌈log2 N⌉(α + βn): a binomial tree, upwards."""
    depth = latency_lower_bound(world)
    return _through(link, depth, depth)


def broadcast(world: int, link: Link) -> AlphaBeta:
    """Return ⌈log2 N⌉(α + βn): a binomial tree, downwards."""
    return reduce(world, link)


def tree(world: int, link: Link) -> AlphaBeta:
    """Return 2⌈log2 N⌉(α + βn): reduce, then broadcast."""
    return reduce(world, link) + broadcast(world, link)


def recursive_doubling(world: int, link: Link) -> AlphaBeta:
    """Return ⌊log2 N⌋(α + βn), and 2(α + βn) more if N is no power of two."""
    core, folded = _core(world)
    return _through(link, core + folded, core + folded)


def halving_doubling(world: int, link: Link) -> AlphaBeta:
    """Return 2 log2 P · α + 2(P − 1)/P · βn, with P the largest power of two up to N; 2(α + βn) more if N is not P."""
    core, folded = _core(world)
    return _through(link, 2 * core + folded, 2 * (1 - 2.0**-core) + folded)


def reduce_scatter(world: int, link: Link) -> AlphaBeta:
    """Return (N − 1)α + (N − 1)/N · βn: one half of a ring."""
    world = check_int("world", world, 1)
    return _through(link, world - 1, (world - 1) / world)


def all_gather(world: int, link: Link) -> AlphaBeta:
    """Return (N − 1)α + (N − 1)/N · βn: the other half of a ring."""
    return reduce_scatter(world, link)


@overload
def ring(world: int, network: Link) -> AlphaBeta: ...
@overload
def ring(world: int, network: Topology) -> AlphaBeta | Slowest: ...
def ring(world: int, network: Network) -> AlphaBeta | Slowest:
    """Return 2(N − 1)α + 2(N − 1)/N · βn, with α and β of the slowest link of the ring.

    On a topology every rank sends to its neighbour, so the messages of one rank enter a node and those of one leave it.
    """
    world = check_int("world", world, 1)
    topology = topology_for(network, world)
    rounds, share = 2 * (world - 1), 2 * (world - 1) / world
    inside = _through(topology.within, rounds, share) if topology.per_node > 1 or topology.nodes == 1 else _NOTHING
    across = _through(topology.between, rounds, share) if topology.nodes > 1 else _NOTHING
    return slowest(inside, across)


def two_phase(world: int, link: Link) -> AlphaBeta:
    """Return 2(N − 1)α + 2(N − 1)/N · βn, as for a ring: each of 2(N − 1) rounds sends one chunk."""
    return reduce_scatter(world, link) + all_gather(world, link)


def hierarchical_ring(nodes: int, per_node: int, network: Network) -> AlphaBeta:
    """Return 2(L − 1)(α + βn/L) inside M nodes of L ranks, plus 2(M − 1)(α + s·βn/LM) between them.

    ``s`` is the largest number of ranks that share a port between nodes. On a `Link` it is 1.
    """
    topology = _placed(nodes, per_node, network)
    sharing = 1 if topology.nodes == 1 else int(np.bincount(topology.port).max())
    inside, across = 2 * (per_node - 1), 2 * (nodes - 1)
    return _through(topology.within, inside, inside / per_node) + _through(
        topology.between, across, across * sharing / (nodes * per_node)
    )


def ring_per_port(nodes: int, per_node: int, network: Network, ports: int | None = None) -> AlphaBeta | Slowest:
    """Return 2(N − 1)α + 2(N − 1)/N · βn · (rings through one port) / (rings), on the slowest kind of link.

    One ring uses a port between nodes if the topology has as many ports as rings. All rings use the ports inside a
    node, or all but one if each rank is the last of its node in one of them.
    """
    topology, inside, outside = _rings(nodes, per_node, network, ports)
    rounds = 2 * (topology.world - 1)
    within = _through(topology.within, rounds, inside) if inside or not rounds else _NOTHING
    return slowest(within, _through(topology.between, rounds, outside) if outside else _NOTHING)


def ring_without_rounds(nodes: int, per_node: int, network: Network, ports: int | None = None) -> AlphaBeta:
    """Return the time of `ring_per_port` if no rank waits for a round of the others to end, in NCCL's model.

    A chunk goes twice round the ring. On its way it takes 2(M − 1) latencies between the M nodes and 2(N − M) inside
    them, where rounds that all ranks begin together pay the largest 2(N − 1) times. The bytes are the same. This is how
    NCCL's tuner prices its rings (``src/graph/tuning.cc``). Apart from two crossings that NCCL leaves out, the sum is
    an upper bound, because a chunk travels while a port sends other chunks.
    """
    topology, inside, outside = _rings(nodes, per_node, network, ports)
    between = 2 * (topology.nodes - 1)
    latencies = between * topology.between.alpha + 2 * (topology.world - topology.nodes) * topology.within.alpha
    return AlphaBeta(latencies, max(inside * topology.within.beta, outside * topology.between.beta))


def _rings(nodes: int, per_node: int, network: Network, ports: int | None) -> tuple[Topology, float, float]:
    """Return the topology, and the buffers that pass the busiest port inside a node and between nodes."""
    topology = _placed(nodes, per_node, network)
    rings = check_int("ports", per_node if ports is None else ports, 1, per_node)
    if per_node % rings:
        raise InvalidArgument("ports", ports, f"a divisor of per_node, {per_node}")
    share = 2 * (topology.world - 1) / (topology.world * rings)
    if topology.nodes == 1:
        return topology, share * rings, 0.0
    last = (np.arange(rings) * per_node // rings - 1) % per_node
    first = (last + 1) % per_node
    outside = max(int(np.bincount(topology.port[local]).max()) for local in (first, last))
    inside = rings - (rings == per_node) if per_node > 1 else 0
    return topology, share * inside, share * outside


def double_binary_tree(world: int, link: Link, block_bytes: float) -> AlphaBeta:
    """Return 4h(α + βb) + 2(α/b + β)n for blocks of b = ``block_bytes``, with h = ⌈log2 N⌉; 0 for N = 1.

    Each of two binary trees carries half of the buffer. Every rank is a leaf of one tree and an inner node of the
    other, so that each rank sends and receives one block in every round. A reduction takes 2h rounds to fill the
    pipeline and n/b more to empty it, and the broadcast after it as many (Sanders, Speck and Träff, "Two-tree
    algorithms for full bandwidth broadcast, reduction and scan", 2009). It assumes full-duplex ports, a latency paid by
    every block, and n ≥ 2b. With the best block for each n, √(nα / 2hβ) bytes, it takes 2(√(βn) + √(2hα))²: twice the
    bytes of the buffer, as a ring, but with a number of latencies that grows like log N.
    """
    depth, block = latency_lower_bound(world), check_float("block_bytes", block_bytes, above=0)
    seconds = _through(link, 1, 1)(block)
    return AlphaBeta(4 * depth * seconds, 2 * seconds / block if depth else 0)


def in_network(world: int, link: Link, levels: int = 1) -> AlphaBeta:
    """Return 2 · ``levels`` · α + βn: switches in a tree of so many levels add on the way up and send the sum down.

    Each rank sends and receives n bytes at the same time; without switches the best is 2(N − 1)/N · n. It is a lower
    bound on the time: it assumes pipelined switches that add at the rate of the link, and pass the first byte on after
    one α. SHARP in the switches of InfiniBand works like this; for NVLink's switches see `nvlink_sharp`.
    """
    levels = check_int("levels", levels, 1)
    return _through(link, 2 * levels, 1) if check_int("world", world, 1) > 1 else _through(link, 0, 0)


def nvlink_sharp(world: int, link: Link) -> AlphaBeta:
    """Return 2α + (N + 1)/N · βn: the switches of one NVLink domain add, as in NCCL's algorithm NVLS.

    A GPU sums one Nth of the buffer: it reads its part through the switch, which fetches it from all GPUs and adds, and
    multicasts the sum. So each sends its whole buffer and one sum, and receives one sum and the whole result, N + 1
    parts each way (NCCL's ``src/device/all_reduce.h``). It is a lower bound, as `in_network`.
    """
    world = check_int("world", world, 1)
    return _through(link, 2, (world + 1) / world) if world > 1 else _through(link, 0, 0)


_NOTHING = AlphaBeta(0, 0)


def _through(link: Link, rounds: float, buffers: float) -> AlphaBeta:
    """Return the time of ``rounds`` in which the busiest port carries ``buffers`` times the buffer in all."""
    check_type("link", link, Link, "a Link, such as Link.gigabits(400, latency=5e-6)")
    return AlphaBeta(rounds * link.alpha, buffers * link.beta)


def _core(world: int) -> tuple[int, int]:
    """Return ⌊log2 N⌋, and the 2 further rounds of a world that is folded because it is no power of two."""
    depth = check_int("world", world, 1).bit_length() - 1
    return depth, 0 if world == 1 << depth else 2


def _placed(nodes: int, per_node: int, network: Network) -> Topology:
    """Return ``network`` as a topology of this shape; a `Link` is one node for any shape."""
    world = check_int("nodes", nodes, 1) * check_int("per_node", per_node, 1)
    topology = topology_for(network, world)
    if isinstance(network, Topology) and (network.nodes, network.per_node) != (nodes, per_node):
        raise InvalidArgument("network", network, f"a topology of {nodes} × {per_node} ranks, or a Link")
    return topology
