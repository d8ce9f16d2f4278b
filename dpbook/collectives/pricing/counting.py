"""What a schedule sends, counted message by message: per rank, and in each round per port of a topology."""

from dataclasses import dataclass

import numpy as np

from dpbook.collectives.pricing.alpha_beta import FloatArray
from dpbook.collectives.pricing.topology import Topology
from dpbook.collectives.schedule.rounds import IntArray, Round
from dpbook.collectives.schedule.schedule import Schedule, check_schedule
from dpbook.core import check_int, plural


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


def count(schedule: Schedule, size: int, itemsize: int = 4, header: int = 0) -> Traffic:
    """Count the traffic of ``schedule`` on a buffer of ``size`` elements of ``itemsize`` bytes per rank.

    A message of an empty chunk is none: nothing is sent. ``header`` is what every message has beside its elements, in
    bytes, such as a scale. Raises `InvalidArgument`.
    """
    check_schedule(schedule)
    chunk_bytes = count_chunks(schedule, size, itemsize)
    chunk_bytes = chunk_bytes + check_int("header", header, 0) * (chunk_bytes > 0)
    sent = np.zeros(schedule.world)
    received = np.zeros(schedule.world)
    messages = 0
    for round_ in schedule.walk():
        nbytes = chunk_bytes[round_.chunk]
        sent += _sum(round_.source, nbytes, schedule.world)
        received += _sum(round_.dest, nbytes, schedule.world)
        messages += int(np.count_nonzero(nbytes))
    return Traffic(len(schedule.rounds), messages, sent.astype(np.int64), received.astype(np.int64))


def count_chunks(schedule: Schedule, size: int, itemsize: int) -> IntArray:
    """Bytes of each chunk of a buffer of ``size`` elements of ``itemsize`` bytes. Raises `InvalidArgument`."""
    return np.diff(schedule.bounds(check_int("size", size, 0), check_int("itemsize", itemsize, 1))) * itemsize


def load_of(round_: Round, chunk_bytes: IntArray, topology: Topology) -> list[FloatArray]:
    """Bytes through every port in one round: sent and received within nodes, sent and received between them.

    The first two have shape (world,), the others (nodes · ports,). Messages that share a port add up.
    """
    nbytes, ports = chunk_bytes[round_.chunk], topology.nodes * topology.ports
    if topology.nodes == 1:
        return [*(_sum(end, nbytes, topology.world) for end in (round_.source, round_.dest)), *np.zeros((2, ports))]
    out = np.where(topology.node[round_.source] == topology.node[round_.dest], 0, nbytes)
    inside = [_sum(end, nbytes - out, topology.world) for end in (round_.source, round_.dest)]
    return inside + [_sum(topology.port[end], out, ports) for end in (round_.source, round_.dest)]


def _sum(places: IntArray, nbytes: IntArray, n: int) -> FloatArray:
    """The bytes of each of ``n`` places; float64 counts exactly up to 2**53, and bincount adds it fastest."""
    return np.bincount(places, nbytes, n).astype(np.float64, copy=False)
