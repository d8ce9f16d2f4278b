"""Accelerators and links, each figure with its source; a cluster made of them.

Rates are peaks from data sheets, without sparsity; bandwidths are bytes per second in **one** direction, half of what
a sheet that adds up both directions prints. Latencies are not in data sheets: those here are assumptions.
"""

from dataclasses import dataclass, replace

from dpbook.collectives import Link, Topology
from dpbook.core import InvalidArgument, UnitsError, check_float, check_int, check_type, plural


@dataclass(frozen=True)
class Accelerator:
    """``flops``: dense bf16 floating-point operations per second; ``memory``: bytes; ``fabric``: to its node."""

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
"""Links by name. Networks: their nominal rates. NVLink: NVIDIA's data sheets of A100 (600 GB/s for both directions),
H100 (900) and B200 (1,800). PCIe 4.0 x16: 16 GT/s · 16 lanes · 128/130 is 31.5 GB/s; 25 is what copies reach."""

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
    )
}
"""Accelerators by name. Of GB200, 72 share one NVLink domain: ``per_node=72``. The H800's NVLink has 400 GB/s for both
directions: Zhao et al., "Insights into DeepSeek-V3", 2025."""


@dataclass(frozen=True)
class Cluster:
    """``world`` accelerators, ``per_node`` in a node, with ``ports`` ports of ``network`` per node (default: one each).

    Up to ``per_node`` of them share a node; more must fill whole nodes. ``utilisation`` is the share of the peak that
    training reaches while it computes: a half is what printed presets assume, published runs of large models report
    38 to 46 %. ``wires`` is the share of the links' bandwidths that collectives reach. Raises `InvalidArgument`.
    """

    accelerator: Accelerator
    world: int
    network: Link
    per_node: int = 8
    ports: int | None = None
    utilisation: float = 0.5
    wires: float = 1.0

    def __post_init__(self) -> None:
        check_type("accelerator", self.accelerator, Accelerator, f"an Accelerator: one of {', '.join(ACCELERATORS)}")
        check_int("per_node", self.per_node, 1)
        if check_int("world", self.world, 1) > self.per_node and self.world % self.per_node:
            raise InvalidArgument("world", self.world, f"at most {self.per_node}, or a multiple: whole nodes")
        for name in ("utilisation", "wires"):
            if check_float(name, getattr(self, name), above=0) > 1:
                raise InvalidArgument(name, getattr(self, name), "a share of the peak, at most 1")
        check_type("network", self.network, Link, "a Link, such as Link.gigabits(400, latency=5e-6)")
        if self.ports is not None:
            check_int("ports", self.ports, 1, self.per_node)

    @property
    def flops(self) -> float:
        """Operations per second that one accelerator reaches."""
        return self.accelerator.flops * self.utilisation

    @property
    def topology(self) -> Topology:
        """How its ranks are joined, by links at the share of their bandwidth that they reach."""
        return self.data_ranks(1)

    def data_ranks(self, cut: int) -> Topology:
        """How the ranks of a data group are joined if copies of the model are cut over ``cut`` neighbours each.

        A node has as many groups as it has parts of the model, and they share its ports evenly.
        Raises `InvalidArgument` unless whole copies fill whole nodes, or whole nodes a copy.
        """
        per_node = min(self.world, self.per_node)
        groups = min(check_int("cut", cut, 1, self.world), per_node)
        if self.world % cut or per_node % groups or cut % groups:
            raise InvalidArgument("cut", cut, f"a divisor or a multiple of {plural(per_node, 'rank')}, the node")
        inside, own = per_node // groups, min(self.ports or per_node, per_node) / groups
        ports = max(1, int(own))
        within, between = (
            replace(link, bandwidth=link.bandwidth * self.wires * share)
            for link, share in ((self.accelerator.fabric, 1.0), (self.network, own / ports))
        )
        return Topology(self.world // cut // inside, inside, within, between, ports)

    def of(self, world: int) -> "Cluster":
        """The same cluster with ``world`` accelerators."""
        return replace(self, world=world)
