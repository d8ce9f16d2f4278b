"""Links between ranks, and topologies of links that several messages share."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dpbook.collectives.schedule.rounds import IntArray
from dpbook.core import InvalidArgument, UnitsError, check_float, check_int, check_type, in_words, plural

LEAST_BANDWIDTH, MOST_BANDWIDTH = 1e6, 1e14
"""Bytes per second. A rate below that of an office network of 1990, or above that of any port, has another unit."""
MOST_LATENCY = 1.0
"""Seconds; light circles the Earth seven times in one."""

_ONE_PER_RANK: Any = None  # means as many ports as ranks of a node; replaced when the topology is built


@dataclass(frozen=True)
class Link:
    """A full-duplex link: a message of n bytes takes ``latency`` + n / ``bandwidth`` seconds.

    ``latency`` is in seconds and ``bandwidth`` in **bytes** per second and direction. Vendors specify networks in bits;
    use `Link.gigabits` for these and `Link.gigabytes` for others. Raises `UnitsError` for a value that is impossible in
    its unit, and `InvalidArgument` for a value that is no number.
    """

    latency: float
    bandwidth: float
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "latency", check_float("latency", self.latency))
        object.__setattr__(self, "bandwidth", check_float("bandwidth", self.bandwidth, above=0))
        check_type("name", self.name, str, "a string")
        _check_bandwidth(self.bandwidth, f"{self.bandwidth:g} bytes per second", _meant(self.bandwidth))
        _check_latency(self.latency)

    @classmethod
    def gigabits(cls, rate: float, latency: float = 0.0, name: str = "") -> "Link":
        """Return a link of ``rate`` Gb/s (10^9 **bits** per second), the unit of networks: 400 is 50 GB/s."""
        return cls._in_giga(rate, "gigabits", latency, name)

    @classmethod
    def gigabytes(cls, rate: float, latency: float = 0.0, name: str = "") -> "Link":
        """Return a link of ``rate`` GB/s (10^9 **bytes** per second) in each direction."""
        return cls._in_giga(rate, "gigabytes", latency, name)

    @classmethod
    def _in_giga(cls, rate: float, unit: str, latency: float, name: str) -> "Link":
        bandwidth = check_float("rate", rate, above=0) * 1e9 / (8 if unit == "gigabits" else 1)
        meant = f"Link.{unit}({rate / 1e9:g})" if bandwidth > MOST_BANDWIDTH else "a larger number"
        _check_bandwidth(bandwidth, f"{rate:g} {unit} per second", meant)
        return cls(latency, bandwidth, name)

    def achieving(self, share: float) -> "Link":
        """Return the same link with the ``share`` of its bandwidth that programs reach, above 0 and at most 1.

        Data sheets specify a share of 1. Raises `InvalidArgument`.
        """
        if check_float("share", share, above=0) > 1:
            raise InvalidArgument("share", share, "at most 1")
        return Link(self.latency, share * self.bandwidth, self.name)

    @property
    def alpha(self) -> float:
        """Seconds of a message of any length: the latency."""
        return self.latency

    @property
    def beta(self) -> float:
        """Seconds per byte: 1 / bandwidth."""
        return 1 / self.bandwidth

    def __repr__(self) -> str:
        rates = f"{in_words(8 * self.bandwidth, 'b')}/s ({in_words(self.bandwidth, 'B')}/s)"
        return f"{self.name + ': ' if self.name else ''}{rates}, {in_words(self.latency, 's')}"


@dataclass(frozen=True)
class Topology:
    """``nodes`` × ``per_node`` ranks, numbered node by node.

    Inside a node every rank has one full-duplex port on the link ``within``. A node has ``ports`` full-duplex ports to
    other nodes on the link ``between``, by default one per rank. With fewer, neighbouring ranks share a port, and their
    bytes add up. Raises `InvalidArgument`.
    """

    nodes: int
    per_node: int
    within: Link
    between: Link
    ports: int = _ONE_PER_RANK

    def __post_init__(self) -> None:
        for name in ("nodes", "per_node"):
            object.__setattr__(self, name, check_int(name, getattr(self, name), 1))
        for name in ("within", "between"):
            check_type(name, getattr(self, name), Link, "a Link, such as Link.gigabits(400, latency=5e-6)")
        ports = self.per_node if self.ports is None else check_int("ports", self.ports, 1, self.per_node)
        object.__setattr__(self, "ports", ports)

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.nodes * self.per_node

    @cached_property
    def node(self) -> IntArray:
        """Node of each rank, shape (world,)."""
        return np.arange(self.world) // self.per_node

    @cached_property
    def port(self) -> IntArray:
        """Port by which each rank's messages leave its node, numbered over all nodes, shape (world,)."""
        local = np.arange(self.world) % self.per_node
        return self.node * self.ports + local * self.ports // self.per_node

    def __repr__(self) -> str:
        inside = f"within {self.within!r}"
        outside = f"between {self.between!r}, {plural(self.ports, 'port')} per node"
        return f"{plural(self.nodes, 'node')} × {plural(self.per_node, 'rank')}; {inside}; {outside}"


Network = Link | Topology
"""A single `Link` means a topology in which every rank has one full-duplex port on that link."""


def topology_for(network: Network, world: int) -> Topology:
    """Return ``network`` as a topology of ``world`` ranks. Raises `InvalidArgument` if their numbers differ."""
    if isinstance(network, Link):
        return Topology(1, world, network, network)
    check_type("network", network, Topology, "a Link or a Topology")
    if network.world != world:
        raise InvalidArgument("network", network, f"a topology of {plural(world, 'rank')}, or a Link")
    return network


def _check_bandwidth(bandwidth: float, read: str, meant: str) -> None:
    if not LEAST_BANDWIDTH <= bandwidth <= MOST_BANDWIDTH:
        limits = f"{in_words(LEAST_BANDWIDTH, 'B')}/s to {in_words(MOST_BANDWIDTH, 'B')}/s"
        raise UnitsError(
            f"bandwidth was read as {read}, but no link of a rank is outside {limits}. Did you mean {meant}?"
        )


def _meant(bandwidth: float) -> str:
    """Return the probable meaning of an impossible number of bytes per second."""
    if bandwidth > MOST_BANDWIDTH:
        return "a smaller number"
    if bandwidth < LEAST_BANDWIDTH and bandwidth >= 1:
        return f"{bandwidth:g} Gb/s, Link.gigabits({bandwidth:g}), or {bandwidth:g} GB/s, Link.gigabytes({bandwidth:g})"
    return "Link(latency, bandwidth), in this order"


def _check_latency(latency: float) -> None:
    if 0 <= latency <= MOST_LATENCY:
        return
    if latency >= LEAST_BANDWIDTH:
        meant = "the bandwidth, which is the second argument"
    elif latency > 0:
        meant = f"{latency:g} µs, {latency:g}e-6"
    else:
        meant = "a time that is not negative"
    raise UnitsError(
        f"latency was read as {latency:g} seconds, but that of a link lies from 0 to {MOST_LATENCY:g} s. "
        f"Did you mean {meant}?"
    )
