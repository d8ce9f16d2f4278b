"""Rings: every rank sends to the next, and all send at once. Some are composed over nodes, and one is gloo's.

Ranks of several nodes are numbered node by node. Names follow MPI and Thakur, Rabenseifner and Gropp, "Optimization of
Collective Communication Operations in MPICH" (2005). Every function takes the number of ranks and raises
`InvalidArgument` if it is below 1.
"""

import numpy as np

from dpbook.collectives.schedule.chunks import GlooBounds, complete_on
from dpbook.collectives.schedule.rounds import IntArray, LazyRounds, Round, read_only
from dpbook.collectives.schedule.schedule import Schedule, beside, embed, relabel
from dpbook.core import InvalidArgument, check_int


def reduce_scatter(world: int) -> Schedule:
    """Ring reduce-scatter: in round s rank r sends chunk (r − s) mod world to rank r + 1, which adds it.

    After world − 1 rounds rank r holds the complete sum of chunk (r + 1) mod world.
    """
    ranks, right = _circle(world)
    rounds = LazyRounds(world - 1, lambda s: Round(ranks, right, (ranks - s) % world, reduce=True))
    after = tuple(complete_on([(chunk - 1) % world], world) for chunk in range(world))
    return Schedule(world, world, rounds, after=after, name=f"reduce_scatter(world={world})")


def all_gather(world: int) -> Schedule:
    """Ring all-gather: rank r begins with chunk (r + 1) mod world; in round s it passes on chunk (r + 1 − s)."""
    ranks, right = _circle(world)
    rounds = LazyRounds(world - 1, lambda s: Round(ranks, right, (ranks + 1 - s) % world, reduce=False))
    before = tuple(complete_on([(chunk - 1) % world], world) for chunk in range(world))
    return Schedule(world, world, rounds, before=before, name=f"all_gather(world={world})")


def ring(world: int) -> Schedule:
    """Ring all-reduce: a reduce-scatter, then an all-gather; 2(world − 1) rounds (Patarasuk and Yuan, 2009)."""
    return reduce_scatter(world).then(all_gather(world)).named(f"ring(world={world})")


def _circle(world: int) -> tuple[IntArray, IntArray]:
    """Return the ranks, and the right-hand neighbour of each."""
    ranks = np.arange(check_int("world", world, 1))
    return read_only("ranks", ranks), read_only("ranks", (ranks + 1) % world)


def gloo_ring(world: int) -> Schedule:
    """Ring all-reduce as gloo runs it, with gloo's chunks: simulated, it predicts gloo's bits.

    Every rank sends to the one before it, and chunk c ends on rank c. Chunk c starts at rank c − 1 and is added to at c
    − 2, c − 3, …, so that its sum is ((x[c−1] + x[c−2]) + …) + x[c].
    """
    ranks = np.arange(check_int("world", world, 1))
    previous = (ranks - 1) % world
    scatter = LazyRounds(world - 1, lambda s: Round(ranks, previous, (ranks + 1 + s) % world, reduce=True))
    gather = LazyRounds(world - 1, lambda s: Round(ranks, previous, (ranks + s) % world, reduce=False))
    owned = tuple(complete_on([chunk], world) for chunk in range(world))
    first = Schedule(world, world, scatter, GlooBounds(world), after=owned)
    second = Schedule(world, world, gather, GlooBounds(world), before=owned)
    return first.then(second).named(f"gloo_ring(world={world})")


def hierarchical_ring(nodes: int, per_node: int) -> Schedule:
    """Reduce-scatter inside each node, a ring all-reduce of each shard over the nodes, all-gather inside.

    It has 2(per_node − 1) + 2(nodes − 1) rounds, and nodes · per_node chunks. Shard c consists of the chunks c · nodes
    to (c + 1) · nodes − 1; the rank of each node that has it after the reduce-scatter sends it round the nodes. Only
    2(nodes − 1)/nodes of a buffer leaves each node in all. Raises `InvalidArgument`.
    """
    nodes, per_node = check_int("nodes", nodes, 1), check_int("per_node", per_node, 1)
    world = nodes * per_node
    members = [range(node * per_node, (node + 1) * per_node) for node in range(nodes)]
    shards = [range(shard * nodes, (shard + 1) * nodes) for shard in range(per_node)]
    renamed = range(-1, per_node - 1)  # so that shard c ends on local rank c
    scatter, gather = (
        relabel(part(per_node), chunks=[c % per_node for c in renamed]) for part in (reduce_scatter, all_gather)
    )
    inside = [embed(scatter, world, ranks, world, shards) for ranks in members]
    across = [
        embed(ring(nodes), world, [ranks[c] for ranks in members], world, shards[c], speaks_for=members)
        for c in range(per_node)
    ]
    back = [embed(gather, world, ranks, world, shards, speaks_for=[range(world)] * per_node) for ranks in members]
    schedule = beside(*inside).then(beside(*across)).then(beside(*back))
    return schedule.named(f"hierarchical_ring(nodes={nodes}, per_node={per_node})")


def ring_per_port(nodes: int, per_node: int, ports: int | None = None) -> Schedule:
    """Run ``ports`` rings over all ranks at once, each on its share of the buffer; by default ``per_node`` rings.

    Every ring goes through the nodes in order and through each node from rank to rank. Ring i enters a node at local
    rank i · per_node / ports and leaves it at the rank before. So each port of a node, shared by per_node / ports
    neighbouring ranks, receives one ring and sends one. There are 2(N − 1) rounds and ports · N chunks. Raises
    `InvalidArgument` unless ``ports`` divides ``per_node``.
    """
    nodes, per_node = check_int("nodes", nodes, 1), check_int("per_node", per_node, 1)
    ports = check_int("ports", per_node if ports is None else ports, 1, per_node)
    if per_node % ports:
        raise InvalidArgument("ports", ports, f"a divisor of per_node, {per_node}")
    world = nodes * per_node
    one = ring(world)

    def turned(index: int) -> Schedule:
        first = index * per_node // ports
        order = [node * per_node + (first + i) % per_node for node in range(nodes) for i in range(per_node)]
        return embed(one, world, order, ports * world, range(index * world, (index + 1) * world))

    name = f"ring_per_port(nodes={nodes}, per_node={per_node}, ports={ports})"
    return beside(*map(turned, range(ports))).named(name)
