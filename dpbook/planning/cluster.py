"""Accelerators and links, each figure with its source; clusters, meshes of ranks, and prices of collectives on them.

Rates are peaks from data sheets, without sparsity. Bandwidths are bytes per second in **one** direction, half of the
figure on a sheet that adds up both directions. Data sheets have no latencies: those here are assumptions. Algorithms
have NCCL's names.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Literal

import numpy as np

from dpbook.collectives import AlphaBeta, Link, Topology, closed_forms
from dpbook.collectives.schedule import IntArray
from dpbook.core import InvalidArgument, UnitsError, check_float, check_int, check_one_of, check_type, plural
from dpbook.overlap import Price, Wires


@dataclass(frozen=True)
class Accelerator:
    """An accelerator: dense bf16 ``flops`` per second, ``memory`` in bytes, and ``fabric``, its link inside a node."""

    name: str
    flops: float
    memory: float
    fabric: Link
    source: str

    def __post_init__(self) -> None:
        check_float("flops", self.flops, above=0)
        check_float("memory", self.memory, above=0)
        if not 1e10 <= self.flops <= 1e17:
            raise UnitsError(f"flops was read as {self.flops:g} operations per second; 989 TFLOP/s is 989e12")
        if not 1e8 <= self.memory <= 1e13:
            raise UnitsError(f"memory was read as {self.memory:g} bytes; 80 GB is 80e9")

    def __repr__(self) -> str:
        return f"{self.name}: {self.flops / 1e12:,.0f} TFLOP/s in bf16, {self.memory / 1e9:,.0f} GB, {self.fabric!r}"


LINKS: dict[str, Link] = {
    link.name: link
    for link in (
        Link.gigabits(1, latency=50e-6, name="Ethernet 1 Gb/s"),
        Link.gigabits(25, latency=20e-6, name="Ethernet 25 Gb/s"),
        Link.gigabits(100, latency=10e-6, name="Ethernet 100 Gb/s"),
        Link.gigabits(200, latency=5e-6, name="InfiniBand HDR 200 Gb/s"),
        Link.gigabits(400, latency=5e-6, name="InfiniBand NDR 400 Gb/s"),
        Link.gigabits(800, latency=5e-6, name="InfiniBand XDR 800 Gb/s"),
        Link.gigabytes(25, latency=10e-6, name="PCIe 4.0 x16"),
        Link.gigabytes(300, latency=3e-6, name="NVLink 3"),
        Link.gigabytes(450, latency=3e-6, name="NVLink 4"),
        Link.gigabytes(900, latency=3e-6, name="NVLink 5"),
    )
}
"""Links by name. Networks have their nominal rates. NVLink: NVIDIA's data sheets of A100 (600 GB/s for both
directions), H100 (900) and B200 (1,800). PCIe 4.0 x16: 16 GT/s · 16 lanes · 128/130 is 31.5 GB/s; copies reach 25."""

ACCELERATORS: dict[str, Accelerator] = {
    accelerator.name: accelerator
    for accelerator in (
        Accelerator("RTX 4090", 165.2e12, 24e9, LINKS["PCIe 4.0 x16"], "NVIDIA Ada GPU architecture paper, 2022"),
        Accelerator("A100 80 GB", 312e12, 80e9, LINKS["NVLink 3"], "NVIDIA A100 data sheet, 2021"),
        Accelerator("H100 SXM", 989e12, 80e9, LINKS["NVLink 4"], "NVIDIA H100 data sheet, 2023"),
        Accelerator("H800", 989e12, 80e9, Link.gigabytes(200, 3e-6, "NVLink 4, H800"), "as H100; its NVLink: below"),
        Accelerator("H200 SXM", 989e12, 141e9, LINKS["NVLink 4"], "NVIDIA H200 data sheet, 2024"),
        Accelerator("B200", 2250e12, 180e9, LINKS["NVLink 5"], "NVIDIA DGX B200 data sheet, 2024: an eighth of it"),
        Accelerator("GB200", 2500e12, 186e9, LINKS["NVLink 5"], "NVIDIA GB200 NVL72 data sheet, 2024: a 72nd of it"),
        Accelerator("B300", 2250e12, 288e9, LINKS["NVLink 5"], "NVIDIA HGX B300 data sheet, 2025: an eighth of it"),
        Accelerator("GB300", 2500e12, 278e9, LINKS["NVLink 5"], "NVIDIA GB300 NVL72 data sheet, 2025: a 72nd of it"),
        Accelerator("MI300X", 1307e12, 192e9, Link.gigabytes(448, 3e-6, "Infinity Fabric"), "AMD MI300X data sheet"),
    )
}
"""Accelerators by name. Of GB200 and GB300, 72 share one NVLink domain: ``per_node=72``. The H800's NVLink has 400 GB/s
for both directions: Zhao et al., "Insights into DeepSeek-V3", 2025. An MI300X has seven links of 64 GB/s.
Peaks of B300 and GB300 are half of what is printed with sparsity."""


@dataclass(frozen=True)
class Cluster:
    """A cluster of ``world`` accelerators; more than ``per_node`` must fill whole nodes. Raises `InvalidArgument`.

    Attributes:
        network: link of one port of a node to the network.
        per_node: accelerators in a node.
        ports: network ports of a node; by default one for each accelerator.
        utilisation: share of the peak that training reaches while it computes. Printed presets assume a half; published
            runs of large models report 38 to 46 %.
        wires: share of the links' bandwidths that collectives reach.
        contention: seconds by which a second of communication lengthens the computation that hides it: its kernels take
            processors and memory bandwidth. 0.5 fits published curves of fully sharded training (chapter 13). They do
            not tell how much of it is waiting for the slowest rank; that alone would not explain small models.
    """

    accelerator: Accelerator
    world: int
    network: Link
    per_node: int = 8
    ports: int | None = None
    utilisation: float = 0.5
    wires: float = 1.0
    contention: float = 0.0

    def __post_init__(self) -> None:
        check_type("accelerator", self.accelerator, Accelerator, f"an Accelerator: one of {', '.join(ACCELERATORS)}")
        check_int("per_node", self.per_node, 1)
        if check_int("world", self.world, 1) > self.per_node and self.world % self.per_node:
            raise InvalidArgument("world", self.world, f"at most {self.per_node}, or a multiple of it: whole nodes")
        for name in ("utilisation", "wires"):
            if check_float(name, getattr(self, name), above=0) > 1:
                raise InvalidArgument(name, getattr(self, name), "a share of the peak, at most 1")
        check_float("contention", self.contention, minimum=0)
        check_type("network", self.network, Link, "a Link, such as Link.gigabits(400, latency=5e-6)")
        if self.ports is not None:
            check_int("ports", self.ports, 1, self.per_node)

    @property
    def flops(self) -> float:
        """Operations per second that one accelerator reaches in training."""
        return self.accelerator.flops * self.utilisation

    @property
    def topology(self) -> Topology:
        """Topology of all ranks; the links have the share of their bandwidth that collectives reach."""
        return self.data_ranks(1)

    def data_ranks(self, cut: int) -> Topology:
        """Return the topology of a data-parallel group if each copy of the model is cut over ``cut`` neighbours.

        A node has as many groups as it has parts of the model, and they share its ports evenly.
        Raises `InvalidArgument` unless whole copies fill whole nodes, or whole nodes a copy.
        """
        per_node = min(self.world, self.per_node)
        groups = min(check_int("cut", cut, 1, self.world), per_node)
        if self.world % cut or per_node % groups or cut % groups:
            raise InvalidArgument("cut", cut, f"a divisor or a multiple of {plural(per_node, 'rank')}, the node")
        inside, ports_each = per_node // groups, min(self.ports or per_node, per_node) / groups
        ports = max(1, int(ports_each))
        within, between = (
            replace(link, bandwidth=link.bandwidth * self.wires * share)
            for link, share in ((self.accelerator.fabric, 1.0), (self.network, ports_each / ports))
        )
        return Topology(self.world // cut // inside, inside, within, between, ports)

    def of(self, world: int) -> "Cluster":
        """Return the same cluster with ``world`` accelerators."""
        return replace(self, world=world)


@dataclass(frozen=True)
class Mesh:
    """Ranks in a grid with one dimension for each kind of parallelism: ``Mesh({"dp": 4, "tp": 8})`` has 32 ranks.

    ``sizes`` are the dimensions by name, the outermost first. The numbering is that of torch's ``DeviceMesh`` and of a
    C array: the last dimension varies fastest, so its groups are consecutive ranks. Ranks that differ in one coordinate
    only form a group, and every rank is in one group of each dimension. Raises `InvalidArgument`.
    """

    sizes: Mapping[str, int]

    def __post_init__(self) -> None:
        if not isinstance(self.sizes, Mapping) or not self.sizes or not all(isinstance(n, str) for n in self.sizes):
            raise InvalidArgument("sizes", self.sizes, "the size of one or more dimensions by name")
        sizes = {name: check_int(f"sizes[{name!r}]", size, 1) for name, size in self.sizes.items()}
        object.__setattr__(self, "sizes", sizes)

    @property
    def world(self) -> int:
        """Number of ranks: the product of the sizes."""
        return prod(self.sizes.values())

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the coordinate of ``rank`` in each dimension."""
        check_int("rank", rank, 0, self.world - 1)
        places = np.unravel_index(rank, tuple(self.sizes.values()))
        return {name: int(place) for name, place in zip(self.sizes, places, strict=True)}

    def rank(self, **coordinates: int) -> int:
        """Return the rank at these coordinates; missing ones are 0."""
        self._check_names(coordinates)
        places = [check_int(name, coordinates.get(name, 0), 0, size - 1) for name, size in self.sizes.items()]
        return int(np.ravel_multi_index(places, tuple(self.sizes.values())))

    def groups(self, *names: str) -> IntArray:
        """Return the groups of ranks along one or more dimensions, of shape (groups, ranks per group), ascending."""
        self._check_names(names)
        if not names or len(set(names)) < len(names):
            raise InvalidArgument("names", names, f"one or more distinct names of {', '.join(self.sizes)}")
        grid = np.arange(self.world).reshape(tuple(self.sizes.values()))
        inside = [axis for axis, name in enumerate(self.sizes) if name in names]
        outside = [axis for axis in range(grid.ndim) if axis not in inside]
        return grid.transpose(outside + inside).reshape(-1, prod(self.sizes[name] for name in names))

    def group(self, rank: int, *names: str) -> tuple[int, ...]:
        """Return the ranks of the group that contains ``rank``."""
        check_int("rank", rank, 0, self.world - 1)
        groups = self.groups(*names)
        return tuple(groups[(groups == rank).any(axis=1)][0].tolist())

    def nodes_per_group(self, per_node: int, *names: str) -> int:
        """Return the largest number of nodes, of ``per_node`` ranks each, that a group spans."""
        nodes = self.groups(*names) // check_int("per_node", per_node, 1)
        return max(len(set(group)) for group in nodes.tolist())

    def link(self, cluster: Cluster, *names: str) -> Link:
        """Return the slowest link of a group: the fabric if every group stays inside a node, else the network.

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


Algorithm = Literal["Ring", "Tree", "NVLS", "NVLSTree"]
"""Algorithm of an all-reduce. "Ring": one through every port of a node. "Tree": a chain through each node, and for
every port a pair of binary trees between the nodes. "NVLS": the switches of one node add. "NVLSTree": NVLS inside the
nodes, pairs of trees between them. NVLink's switches add from Hopper on, which is not checked here. NCCL has more
algorithms (CollNet, PAT) and chooses the fastest by its own model; NCCL_ALGO restricts the choice.
"""

NVLS_SHARE = 0.843
"""Share of a ring's NVLink bandwidth that NVLS reaches. On 8 H200 an all-reduce of 16 GiB took n bytes at 275.6 GB/s,
so that (N + 1)/N · n pass each port at 310 GB/s; a ring's 2(N − 1)/N · n passed at 367.6 GB/s (S. Bekman, "Machine
Learning Engineering"). With 5, 6 and 7 GPUs of that node the first rate is 311, 305 and 307 GB/s."""

NVLS_START = 54e-6
"""Latency of a call through the switches in seconds, fitted to every second size of that sweep."""


def all_reduce(algorithm: Algorithm, topology: Topology) -> Price:
    """Return the price of an all-reduce. Raises `InvalidArgument` for NVLS beyond one node."""
    check_one_of("algorithm", algorithm, ("Ring", "Tree", "NVLS", "NVLSTree"))
    if topology.world == 1:
        return lambda nbytes: 0.0
    if algorithm == "Ring":
        return closed_forms.ring_without_rounds(topology.nodes, topology.per_node, topology, topology.ports)
    if algorithm == "Tree":
        return _tree(topology)
    if algorithm == "NVLS" and topology.nodes > 1:
        expected = "NVLSTree beyond one node: NVLS adds in the switches of a single node"
        raise InvalidArgument("algorithm", algorithm, expected)
    return _nvls_tree(topology)


def wires(algorithm: Algorithm, topology: Topology, hybrid: bool) -> Wires:
    """Return the prices of the collectives of a sharded step. Reduce-scatter and all-gather are half a ring each.

    With ``hybrid`` weights and gradients are sharded inside a node, and each shard is all-reduced between the nodes by
    a separate ring through its port (hybrid sharding, HSDP).
    """
    ring = all_reduce("Ring", replace(topology, nodes=1, ports=topology.per_node) if hybrid else topology)
    half: Price = lambda nbytes: 0.5 * ring(nbytes)  # noqa: E731
    across = closed_forms.ring(topology.nodes, topology.between)
    sharing = ceil(topology.per_node / topology.ports)
    return Wires(half, half, all_reduce(algorithm, topology), lambda shard: across(sharing * shard))


def _tree(topology: Topology) -> Price:
    """Return the price of "Tree": up a chain and a pair of trees and down again, in pipelined blocks.

    Every port carries its part of the buffer up and down. The chains of all ports share a rank's link inside the node.
    The first block takes 2(L − 1) hops in chains of L ranks and 4⌈log2 M⌉ between M nodes: an inner node serves one
    child after the other. (NCCL's tuner counts half of these, each twice as long as a ring's: 8.5 and 4.0 µs.) Further
    blocks follow without a latency of their own, as in `closed_forms.ring_without_rounds`. In lock step each pays one,
    as in `closed_forms.double_binary_tree`, and trees of a published sweep on 32 GPUs would cost 30 % too much.
    """
    latencies = 2 * (topology.per_node - 1) * topology.within.alpha + _between(topology)
    links = [topology.within.beta * topology.ports] * (topology.per_node > 1)
    links += [topology.between.beta] * (topology.nodes > 1)
    return AlphaBeta(latencies, 2 * max(links) / topology.ports)


def _between(topology: Topology) -> float:
    """Return the latencies of a pair of binary trees between the nodes."""
    return 4 * (topology.nodes - 1).bit_length() * topology.between.alpha


def _nvls_tree(topology: Topology) -> Price:
    """Return the price of NVLS in each node, with double binary trees that carry the shards between the nodes."""
    switches = replace(topology.within, latency=0, bandwidth=topology.within.bandwidth * NVLS_SHARE)
    start = NVLS_START if topology.per_node > 1 else 0.0
    inside = closed_forms.nvlink_sharp(topology.per_node, switches)
    shard = ceil(topology.per_node / topology.ports) / topology.per_node  # ranks that share a port take turns
    between = 2 * shard * topology.between.beta if topology.nodes > 1 else 0.0
    return inside + AlphaBeta(start + _between(topology), between)
