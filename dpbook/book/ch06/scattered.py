"""The price of a schedule whose ranks lie on the nodes in no order."""

from collections.abc import Sequence

import numpy as np

from dpbook.collectives import Link, Schedule, Topology, cost, relabel

INSIDE, PORT = Link.gigabytes(450, latency=3e-6), Link.gigabits(400, latency=5e-6)
NBYTES = 64_000_000


def price_scattered(schedule: Schedule, host: Sequence[int], ports: int) -> float:
    """Seconds of one call on 64 MB, with rank r on node ``host[r]`` and so many ``ports`` in each node.

    Every node has as many ranks. Raises `InvalidArgument`.
    """
    nodes = max(host) + 1
    place = np.argsort(np.argsort(host, kind="stable"))  # of each rank, were they numbered node by node
    cluster = Topology(nodes, len(host) // nodes, INSIDE, PORT, ports)
    return cost(relabel(schedule, ranks=place.tolist()), NBYTES, cluster).seconds
