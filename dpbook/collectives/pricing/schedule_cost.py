"""The cost of a schedule: its traffic, counted message by message, its seconds, and its bandwidths.

Each round takes the time of its slowest link, and the rounds add up. On a link a round takes α + β · (the most bytes
that any one port sends or receives through it): the latency once, since the messages of a round travel together, and
the bytes of the busiest port, since ports are full duplex and independent. The time of the additions (γ of Thakur,
Rabenseifner and Gropp) and the switches in between are left out. So is the possibility that a rank begins a round
before the others have finished theirs.

Bandwidths are those that nccl-tests reports. The algorithm bandwidth is what the caller sees: bytes of the buffer per
second. The bus bandwidth is the rate of a link if every rank sends the least that it must. It can be compared with the
link's bandwidth for any number of ranks, but only if the ranks do the adding: if switches add, ranks send less, and the
bus bandwidth may exceed the link's. "Bytes" are those of the whole buffer; for an all-gather or a reduce-scatter, those
of all ranks' parts together.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from dpbook.collectives.pricing.alpha_beta import FloatArray
from dpbook.collectives.pricing.topology import Network, Topology, topology_for
from dpbook.collectives.schedule.chunks import Placement, complete_everywhere, everyone, partial
from dpbook.collectives.schedule.rounds import IntArray, Round
from dpbook.collectives.schedule.schedule import Schedule, check_schedule
from dpbook.core import InvalidArgument, check_float, check_int, check_one_of, in_words, plural


@dataclass(frozen=True, eq=False)
class Traffic:
    """Rounds, messages, and the bytes that each rank sent and received, int64 of shape (world,)."""

    rounds: int
    messages: int
    sent_bytes: IntArray
    received_bytes: IntArray

    @property
    def total_bytes(self) -> int:
        """Bytes sent by all ranks together."""
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


def count(schedule: Schedule, size: int, itemsize: int = 4, header: int = 0, block: int | None = None) -> Traffic:
    """Count the traffic of ``schedule`` on a buffer of ``size`` elements of ``itemsize`` bytes per rank.

    A message of an empty chunk is not sent. ``header`` is the number of further bytes in every message, such as a
    scale, or with ``block`` for every started block of so many elements. Raises `InvalidArgument`.
    """
    check_schedule(schedule)
    chunk_bytes = count_chunks(schedule, size, itemsize)
    blocks = chunk_bytes > 0 if block is None else -(chunk_bytes // -(itemsize * check_int("block", block, 1)))
    chunk_bytes = chunk_bytes + check_int("header", header, 0) * blocks
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
    """Return the bytes of each chunk of ``size`` elements of ``itemsize`` bytes. Raises `InvalidArgument`."""
    return np.diff(schedule.bounds(check_int("size", size, 0), check_int("itemsize", itemsize, 1))) * itemsize


def load_of(round_: Round, chunk_bytes: IntArray, topology: Topology) -> list[FloatArray]:
    """Return the bytes through every port in a round: sent and received within nodes, sent and received between them.

    The first two have shape (world,), the others (nodes · ports,). Messages that share a port add up.
    """
    nbytes, ports = chunk_bytes[round_.chunk], topology.nodes * topology.ports
    if topology.nodes == 1:
        return [*(_sum(end, nbytes, topology.world) for end in (round_.source, round_.dest)), *np.zeros((2, ports))]
    out = np.where(topology.node[round_.source] == topology.node[round_.dest], 0, nbytes)
    inside = [_sum(end, nbytes - out, topology.world) for end in (round_.source, round_.dest)]
    return inside + [_sum(topology.port[end], out, ports) for end in (round_.source, round_.dest)]


def _sum(places: IntArray, nbytes: IntArray, n: int) -> FloatArray:
    """Return the bytes of each of ``n`` places; float64 is exact up to 2**53, and bincount adds it fastest."""
    return np.bincount(places, nbytes, n).astype(np.float64, copy=False)


Collective = Literal["all_reduce", "reduce_scatter", "all_gather", "reduce", "broadcast"]


def algbw(nbytes: float, seconds: float) -> float:
    """Return the algorithm bandwidth, ``nbytes`` / ``seconds``; NaN for 0 seconds. Raises `InvalidArgument`."""
    nbytes, seconds = check_float("nbytes", nbytes, minimum=0), check_float("seconds", seconds, minimum=0)
    return nbytes / seconds if seconds else math.nan


def busbw(nbytes: float, seconds: float, world: int, collective: Collective = "all_reduce") -> float:
    """Return the bus bandwidth in bytes per second, `algbw` · `bus_factor`. Raises `InvalidArgument`."""
    return algbw(nbytes, seconds) * bus_factor(world, collective)


def bus_factor(world: int, collective: Collective = "all_reduce") -> float:
    """Return the ratio of bus to algorithm bandwidth, as nccl-tests defines it (its doc/PERFORMANCE.md).

    2(N − 1)/N for an all-reduce, (N − 1)/N for a reduce-scatter or an all-gather, 1 for a reduce or a broadcast.
    Raises `InvalidArgument`.
    """
    world = check_int("world", world, 1)
    check_one_of("collective", collective, get_args(Collective))
    if collective == "all_reduce":
        return 2 * (world - 1) / world
    return (world - 1) / world if collective in ("reduce_scatter", "all_gather") else 1.0


def collective_of(schedule: Schedule) -> Collective | None:
    """Return the collective that ``schedule`` promises to be, by its ``before`` and ``after``; None for any other."""
    check_schedule(schedule)
    if schedule.is_all_reduce:
        return "all_reduce"
    if all(holding == partial(schedule.world) for holding in schedule.before):
        return _by_owners(schedule.after, schedule.world, "reduce", "reduce_scatter")
    if all(holding == complete_everywhere(schedule.world) for holding in schedule.after):
        return _by_owners(schedule.before, schedule.world, "broadcast", "all_gather")
    return None


def _by_owners(placement: Placement, world: int, on_one: Collective, on_each: Collective) -> Collective | None:
    """Return a collective by the ranks with complete chunks: all on one rank, or equally many on each rank."""
    if any(len(holding) != 1 or set(holding.values()) != {everyone(world)} for holding in placement):
        return None
    owners = [rank for holding in placement for rank in holding]
    if len(set(owners)) == 1:
        return on_one
    return on_each if sorted(owners) == sorted([*range(world)] * (len(owners) // world)) else None


@dataclass(frozen=True, eq=False)
class Cost:
    """Cost of one call of ``schedule`` on ``nbytes`` per rank.

    ``round_seconds`` has shape (rounds,). The bandwidths are in bytes per second; see `algbw` and `busbw`.
    """

    schedule: Schedule
    nbytes: int
    traffic: Traffic
    round_seconds: FloatArray

    @property
    def rounds(self) -> int:
        return self.traffic.rounds

    @property
    def bytes_per_rank(self) -> int:
        """The most bytes that any one rank sends, or receives, whichever is larger."""
        return self.traffic.busiest_bytes

    @property
    def seconds(self) -> float:
        return math.fsum(self.round_seconds)

    @property
    def algbw(self) -> float:
        return algbw(self.nbytes, self.seconds)

    @property
    def busbw(self) -> float:
        """Bus bandwidth; NaN for a schedule that is no collective for which nccl-tests defines it."""
        collective = collective_of(self.schedule)
        if collective is None:
            return math.nan
        return busbw(self.nbytes, self.seconds, self.schedule.world, collective)

    def __repr__(self) -> str:
        rates = [
            f"{name} {in_words(rate, 'B')}/s"
            for name, rate in (("algbw", self.algbw), ("busbw", self.busbw))
            if not math.isnan(rate)
        ]
        return (
            f"{self.schedule.name} on {in_words(self.nbytes, 'B')}: {plural(self.rounds, 'round', ',')}, "
            f"{in_words(self.bytes_per_rank, 'B')} per rank, {in_words(self.seconds, 's')}"
            + (f"; {', '.join(rates)}" if rates else "")
        )


def cost(schedule: Schedule, nbytes: float, network: Network, itemsize: int = 4) -> Cost:
    """Price one call of ``schedule`` on buffers of ``nbytes`` bytes, in elements of ``itemsize`` bytes, per rank.

    ``network`` is a `Link`, on which every rank has one port, or a `Topology` of as many ranks. Every round is looked
    at: for thousands of ranks the `closed_forms` answer at once. Raises `InvalidArgument`.
    """
    check_schedule(schedule)
    topology = topology_for(network, schedule.world)
    itemsize = check_int("itemsize", itemsize, 1)
    whole = int(nbytes) if isinstance(nbytes, float) and nbytes.is_integer() else nbytes  # 25e6 is a number of bytes
    size, rest = divmod(check_int("nbytes", whole, 0), itemsize)
    if rest:
        raise InvalidArgument("nbytes", nbytes, f"a multiple of itemsize, {itemsize}")
    chunk_bytes = count_chunks(schedule, size, itemsize)
    seconds = np.zeros(len(schedule.rounds))
    for index, round_ in enumerate(schedule.walk()):
        load = [int(port.max()) for port in load_of(round_, chunk_bytes, topology)]
        for link, busiest in ((topology.within, max(load[:2])), (topology.between, max(load[2:]))):
            if busiest:
                seconds[index] = max(seconds[index], link.alpha + link.beta * busiest)
    return Cost(schedule, size * itemsize, count(schedule, size, itemsize), seconds)
