"""Every all-reduce that needs to know the number of ranks alone."""

from __future__ import annotations

from collections.abc import Callable

from dpbook.collectives.algorithms import parameter_server, ring, tree
from dpbook.collectives.doubling import halving_doubling, recursive_doubling
from dpbook.collectives.schedule import Schedule

ALGORITHMS: dict[str, Callable[[int], Schedule]] = {
    "parameter_server": parameter_server,
    "tree": tree,
    "recursive_doubling": recursive_doubling,
    "ring": ring,
    "halving_doubling": halving_doubling,
}
"""Every all-reduce by name: a function from the world size to a `Schedule`."""
