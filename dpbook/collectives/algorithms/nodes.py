"""All-reduce over nodes of several ranks, composed from rings. Ranks are numbered node by node."""

from dpbook.collectives.algorithms.rings import all_gather, reduce_scatter, ring
from dpbook.collectives.schedule.composition import beside, embed, relabel
from dpbook.collectives.schedule.schedule import Schedule
from dpbook.core import InvalidArgument, check_int


def hierarchical_ring(nodes: int, per_node: int) -> Schedule:
    """Reduce-scatter inside each node, a ring all-reduce of each shard over the nodes, all-gather inside.

    2(per_node − 1) + 2(nodes − 1) rounds, and nodes · per_node chunks: shard c is the chunks c · nodes to
    (c + 1) · nodes − 1, and the rank of each node that ends the reduce-scatter with it takes it round the nodes.
    Between nodes only 2(nodes − 1)/nodes of a buffer leaves each node in all. Raises `InvalidArgument`.
    """
    nodes, per_node = check_int("nodes", nodes, 1), check_int("per_node", per_node, 1)
    world = nodes * per_node
    members = [range(node * per_node, (node + 1) * per_node) for node in range(nodes)]
    shards = [range(shard * nodes, (shard + 1) * nodes) for shard in range(per_node)]
    own = range(-1, per_node - 1)  # relabelled so that shard c ends on local rank c
    scatter, gather = (
        relabel(part(per_node), chunks=[c % per_node for c in own]) for part in (reduce_scatter, all_gather)
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
    """``ports`` rings over all ranks side by side, each on its share of the buffer; by default ``per_node`` rings.

    Every ring goes through the nodes in order and through each node from rank to rank, but ring i enters a node at
    local rank i · per_node / ports and leaves it at the one before: each of the node's ports, shared by
    per_node / ports neighbouring ranks, receives one ring and sends one. 2(N − 1) rounds and ports · N chunks.
    Raises `InvalidArgument` unless ``ports`` divides ``per_node``.
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
