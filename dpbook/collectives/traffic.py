"""What a schedule sends, counted message by message: per rank, and per port of a topology."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpbook.collectives.alpha_beta import FloatArray
from dpbook.collectives.rounds import IntArray, Round
from dpbook.collectives.schedule import Schedule, check_schedule
from dpbook.collectives.topology import Network, Topology, topology_for
from dpbook.errors import check_int
from dpbook.text import plural


@dataclass(frozen=True, eq=False)
class Traffic:
    """Rounds, messages, and the bytes that each rank sent and received, int64 of shape (world,)."""

    rounds: int
    messages: int
    sent_bytes: IntArray
    received_bytes: IntArray

    @property
    def total_bytes(self) -> int:
        """Bytes that crossed the wire, over all ranks."""
        return int(self.sent_bytes.sum())

    @property
    def busiest_bytes(self) -> int:
        """The most bytes that any one rank sent, or received, whichever is larger."""
        return int(max(self.sent_bytes.max(), self.received_bytes.max()))

    def __repr__(self) -> str:
        return (
            f"{plural(self.rounds, 'round')}, {plural(self.messages, 'message')}, "
            f"{plural(self.total_bytes, 'byte', ',')} in all, "
            f"at most {self.busiest_bytes:,} sent or received by one rank"
        )


def count(schedule: Schedule, size: int, itemsize: int = 4) -> Traffic:
    """Count the traffic of ``schedule`` on a buffer of ``size`` elements of ``itemsize`` bytes per rank.

    A message of an empty chunk is none: nothing is sent. Raises `InvalidArgument`.
    """
    check_schedule(schedule)
    chunk_bytes = count_chunks(schedule, size, itemsize)
    sent = np.zeros(schedule.world)
    received = np.zeros(schedule.world)
    messages = 0
    for round_ in schedule.walk():
        nbytes = chunk_bytes[round_.chunk]
        sent += _sum(round_.source, nbytes, schedule.world)
        received += _sum(round_.dest, nbytes, schedule.world)
        messages += int(np.count_nonzero(nbytes))
    return Traffic(len(schedule.rounds), messages, sent.astype(np.int64), received.astype(np.int64))


@dataclass(frozen=True, eq=False)
class PortTraffic:
    """Bytes through every port of ``topology``, int64.

    ``within_sent`` and ``within_received`` have shape (world,): each rank's port inside its node. ``between_sent`` and
    ``between_received`` have shape (nodes, ports): the ports by which nodes reach each other.
    """

    topology: Topology
    within_sent: IntArray
    within_received: IntArray
    between_sent: IntArray
    between_received: IntArray

    @property
    def within(self) -> int:
        """The most bytes that any port inside a node carries in one direction."""
        return int(max(self.within_sent.max(), self.within_received.max()))

    @property
    def between(self) -> int:
        """The most bytes that any port between nodes carries in one direction."""
        return int(max(self.between_sent.max(), self.between_received.max()))

    def __repr__(self) -> str:
        return (
            f"at most {plural(self.within, 'byte', ',')} one way through a port within a node, "
            f"{self.between:,} through one between nodes"
        )


def count_ports(schedule: Schedule, size: int, network: Network, itemsize: int = 4) -> PortTraffic:
    """Count what `count` counts, port by port. Raises `InvalidArgument` if ``network`` has another number of ranks."""
    check_schedule(schedule)
    topology = topology_for(network, schedule.world)
    chunk_bytes = count_chunks(schedule, size, itemsize)
    loads = [load.astype(np.int64) for load in _no_load(topology)]
    for round_ in schedule.walk():
        for total, load in zip(loads, load_of(round_, chunk_bytes, topology), strict=True):
            total += load.astype(np.int64)
    shape = topology.nodes, topology.ports
    return PortTraffic(topology, loads[0], loads[1], loads[2].reshape(shape), loads[3].reshape(shape))


def count_chunks(schedule: Schedule, size: int, itemsize: int) -> IntArray:
    """Bytes of each chunk of a buffer of ``size`` elements of ``itemsize`` bytes. Raises `InvalidArgument`."""
    return np.diff(schedule.bounds(check_int("size", size, 0), check_int("itemsize", itemsize, 1))) * itemsize


def load_of(round_: Round, chunk_bytes: IntArray, topology: Topology) -> list[FloatArray]:
    """Bytes through every port in one round: sent and received within nodes, sent and received between them.

    The first two have shape (world,), the others (nodes · ports,). Messages that share a port add up.
    """
    nbytes = chunk_bytes[round_.chunk]
    if topology.nodes == 1:
        return [_sum(end, nbytes, topology.world) for end in (round_.source, round_.dest)] + _no_load(topology)[2:]
    out = np.where(topology.node[round_.source] == topology.node[round_.dest], 0, nbytes)
    inside = [_sum(end, nbytes - out, topology.world) for end in (round_.source, round_.dest)]
    ports = topology.nodes * topology.ports
    return inside + [_sum(topology.port[end], out, ports) for end in (round_.source, round_.dest)]


def _sum(places: IntArray, nbytes: IntArray, n: int) -> FloatArray:
    """The bytes of each of ``n`` places; float64 counts exactly up to 2**53, and bincount adds it fastest."""
    return np.bincount(places, nbytes, n).astype(np.float64, copy=False)


def _no_load(topology: Topology) -> list[FloatArray]:
    ports = topology.nodes * topology.ports
    return [np.zeros(n) for n in (topology.world, topology.world, ports, ports)]
