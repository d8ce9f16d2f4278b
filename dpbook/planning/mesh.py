"""Ranks in a grid of groups: data, tensor, pipeline and expert parallelism at once, and over which links each talks.

The numbering is that of torch's ``DeviceMesh`` and of a C array: the last dimension varies fastest, so its groups are
ranks that follow each other.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from dpbook.collectives import Link
from dpbook.collectives.schedule import IntArray
from dpbook.core import InvalidArgument, check_int, check_one_of, plural
from dpbook.planning.hardware import Cluster


@dataclass(frozen=True)
class Mesh:
    """Ranks in a grid, one dimension for each way to share the work: ``Mesh({"dp": 4, "tp": 8})`` has 32 of them.

    ``sizes`` are the dimensions by name, the outermost first. Ranks that differ in one coordinate only form a group,
    and every rank is in one group of each dimension. Raises `InvalidArgument`.
    """

    sizes: Mapping[str, int]

    def __post_init__(self) -> None:
        if not isinstance(self.sizes, Mapping) or not self.sizes or not all(isinstance(n, str) for n in self.sizes):
            raise InvalidArgument("sizes", self.sizes, "the size of one or more dimensions by name")
        sizes = {name: check_int(f"sizes[{name!r}]", size, 1) for name, size in self.sizes.items()}
        object.__setattr__(self, "sizes", sizes)

    @property
    def world(self) -> int:
        """The number of ranks: the product of the sizes."""
        return prod(self.sizes.values())

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where ``rank`` is in each dimension."""
        check_int("rank", rank, 0, self.world - 1)
        places = np.unravel_index(rank, tuple(self.sizes.values()))
        return {name: int(place) for name, place in zip(self.sizes, places, strict=True)}

    def rank(self, **coordinates: int) -> int:
        """The rank at these coordinates; those that are left out are 0."""
        self._check_names(coordinates)
        places = [check_int(name, coordinates.get(name, 0), 0, size - 1) for name, size in self.sizes.items()]
        return int(np.ravel_multi_index(places, tuple(self.sizes.values())))

    def groups(self, *names: str) -> IntArray:
        """All groups of a dimension, or of several taken together: shape (groups, ranks of each), ascending."""
        self._check_names(names)
        if not names or len(set(names)) < len(names):
            raise InvalidArgument("names", names, f"one or more different ones of {', '.join(self.sizes)}")
        grid = np.arange(self.world).reshape(tuple(self.sizes.values()))
        inside = [axis for axis, name in enumerate(self.sizes) if name in names]
        outside = [axis for axis in range(grid.ndim) if axis not in inside]
        return grid.transpose(outside + inside).reshape(-1, prod(self.sizes[name] for name in names))

    def group(self, rank: int, *names: str) -> tuple[int, ...]:
        """The ranks of the group that ``rank`` is in."""
        check_int("rank", rank, 0, self.world - 1)
        groups = self.groups(*names)
        return tuple(groups[(groups == rank).any(axis=1)][0].tolist())

    def nodes_per_group(self, per_node: int, *names: str) -> int:
        """Over how many nodes of ``per_node`` ranks a group is spread: the most of any group."""
        nodes = self.groups(*names) // check_int("per_node", per_node, 1)
        return max(len(set(group)) for group in nodes.tolist())

    def link(self, cluster: Cluster, *names: str) -> Link:
        """The slowest link in the way of a group: the fabric where every group stays inside a node, else the network.

        Raises `InvalidArgument` for a cluster of another number of ranks.
        """
        if not isinstance(cluster, Cluster) or cluster.world != self.world:
            raise InvalidArgument("cluster", cluster, f"a Cluster of {plural(self.world, 'rank', ',')}")
        inside = self.nodes_per_group(cluster.per_node, *names) == 1
        return cluster.accelerator.fabric if inside else cluster.network

    def _check_names(self, names: Iterable[str]) -> None:
        for name in names:
            check_one_of("dimension", name, self.sizes)

    def __repr__(self) -> str:
        grid = " × ".join(f"{name} {size:,}" for name, size in self.sizes.items())
        return f"{grid}: {plural(self.world, 'rank', ',')}"
