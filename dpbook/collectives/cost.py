"""What a schedule sends, counted message by message, and the least that any must send."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpbook.collectives.rounds import IntArray
from dpbook.collectives.schedule import Schedule, check_schedule
from dpbook.errors import check_float, check_int
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
    bounds = schedule.bounds(check_int("size", size, 0), check_int("itemsize", itemsize, 1))
    chunk_bytes = np.diff(bounds) * itemsize
    sent = np.zeros(schedule.world)  # float64 counts exactly up to 2**53 bytes, and bincount adds it fastest
    received = np.zeros(schedule.world)
    messages = 0
    for round_ in schedule.walk():
        nbytes = chunk_bytes[round_.chunk]
        sent += np.bincount(round_.source, nbytes, schedule.world)
        received += np.bincount(round_.dest, nbytes, schedule.world)
        messages += int(np.count_nonzero(nbytes))
    return Traffic(len(schedule.rounds), messages, sent.astype(np.int64), received.astype(np.int64))


def bandwidth_lower_bound(world: int, nbytes: float) -> float:
    """Bytes that some rank must send in any all-reduce of ``nbytes``: 2(N − 1)/N · nbytes.

    Holds where sums are made at the ranks (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
    clusters of workstations", 2009); a switch that adds evades it. Raises `InvalidArgument`.
    """
    check_int("world", world, 1)
    return 2 * (world - 1) / world * check_float("nbytes", nbytes, minimum=0)
