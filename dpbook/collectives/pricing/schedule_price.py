"""What a schedule costs: each round takes the time of its slowest link, and the rounds add up.

On a link a round takes α + β · (the most bytes that any one port sends or receives through it): the latency once, since
the messages of a round travel together, and the bytes of the busiest port, since ports are full duplex and do not
disturb each other. Left out are the time of the additions (γ of Thakur, Rabenseifner and Gropp), the switches in
between, and that a rank may begin a round before the others have ended theirs.
"""

import math
from dataclasses import dataclass

import numpy as np

from dpbook.collectives.pricing import bandwidth
from dpbook.collectives.pricing.alpha_beta import FloatArray
from dpbook.collectives.pricing.counting import Traffic, count, count_chunks, load_of
from dpbook.collectives.pricing.topology import Network, topology_for
from dpbook.collectives.schedule.schedule import Schedule, check_schedule
from dpbook.core import InvalidArgument, check_int, in_words, plural


@dataclass(frozen=True, eq=False)
class Cost:
    """What one call of ``schedule`` on ``nbytes`` per rank costs.

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
        return bandwidth.algbw(self.nbytes, self.seconds)

    @property
    def busbw(self) -> float:
        """NaN for a schedule that is none of the collectives for which nccl-tests defines it."""
        collective = bandwidth.collective_of(self.schedule)
        if collective is None:
            return math.nan
        return bandwidth.busbw(self.nbytes, self.seconds, self.schedule.world, collective)

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
