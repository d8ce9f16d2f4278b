"""Steps of several ranks in whole ticks, whose losses can be counted: what exercise 12.1 is tried on."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpbook.overlap import Kind

MS = 1e-3
CAUSES = ("network", "straggler", "input")
"""What the three losses are called as a cause: of transfer, waiting and idle time."""
LOSSES = ("transfer", "waiting", "idle")
C: Kind = "computation"
Interval = tuple[int, int]
Row = tuple[str, int, str, Kind, float, float]


@dataclass(frozen=True)
class Case:
    """A step in whole ticks, from 0 to ``length``: of a millisecond each, or of ``widths`` seconds.

    ``work``: per rank, when it computes. ``entries``: per rank, when it enters each collective, ascending. ``ends``:
    per rank, when it leaves each; not before the last rank has come. ``other``: per rank, copies, which are neither.
    """

    length: int
    work: list[list[Interval]]
    entries: list[list[int]]
    ends: list[list[int]]
    other: list[list[Interval]]
    widths: tuple[float, ...] = ()

    @property
    def ticks(self) -> NDArray[np.float64]:
        """Seconds of each tick."""
        return np.array(self.widths) if self.widths else np.full(self.length, MS)

    @property
    def world(self) -> int:
        return len(self.work)

    def rows(self, rng: np.random.Generator, start: float) -> list[Row]:
        """The spans, in no order, each in one of some lanes, at times from ``start`` on."""
        found: list[tuple[str, int, str, Kind, int, int]] = []
        for rank in range(self.world):
            found += [("matmul", rank, "compute", C, a, b) for a, b in self.work[rank]]
            found += [("to the device", rank, "copy", "copy", a, b) for a, b in self.other[rank]]
            for a, b in zip(self.entries[rank], self.ends[rank], strict=True):
                lane = str(rng.choice(["communication", "communication 2"]))
                found.append(("all-reduce", rank, lane, "communication", a, b))
        order = rng.permutation(len(found)).tolist()
        times = [start, *(start + self.ticks.cumsum())]
        return [(*found[k][:4], float(times[found[k][4]]), float(times[found[k][5]])) for k in order]

    def table(self) -> NDArray[np.int64]:
        """Ticks of transfer, waiting and idleness of each rank."""
        counts: NDArray[np.int64] = self._lost().sum(axis=2)
        return counts

    def seconds(self) -> NDArray[np.float64]:
        """Seconds of transfer, waiting and idleness of each rank."""
        seconds: NDArray[np.float64] = self._lost() @ self.ticks
        return seconds

    def _lost(self) -> NDArray[np.bool_]:
        """For each rank which ticks it loses to transfer, to waiting and to idleness, one by one."""
        begun = np.max(self.entries, axis=0)
        lost = []
        for rank in range(self.world):
            working, inside, moving = (np.zeros(self.length, bool) for _ in range(3))
            for a, b in self.work[rank]:
                working[a:b] = True
            for a, b, first in zip(self.entries[rank], self.ends[rank], begun, strict=True):
                inside[a:b] = True
                moving[first:b] = True
            free = ~working
            lost.append([free & moving, free & inside & ~moving, free & ~inside])
        return np.array(lost)

    def verdict(self) -> tuple[str, int] | None:
        """The cause and the rank to look at; None where it is a close thing."""
        table = self.table()
        totals = table.sum(axis=0)
        cause = int(totals.argmax())
        column = -table[:, 1] if CAUSES[cause] == "straggler" else table[:, cause]
        clear = np.sort(totals)[-1] > 1.2 * np.sort(totals)[-2]
        alone = self.world == 1 or np.sort(column)[-1] > np.sort(column)[-2] + 2
        return (CAUSES[cause], int(column.argmax())) if clear and alone else None

    def __str__(self) -> str:
        """In milliseconds, for the reader of a report."""
        each = [
            f"rank {rank} computes {self.work[rank]}, is in collectives "
            f"{list(zip(self.entries[rank], self.ends[rank], strict=True))}"
            for rank in range(self.world)
        ]
        return f"ms of a window from 0 to {self.length}: {'; '.join(each)}"


def small() -> Iterator[tuple[str, Case]]:
    yield "one rank", Case(10, [[(2, 6)]], [[5]], [[9]], [[]])
    yield "all come at once", Case(12, [[(0, 6)]] * 2, [[6]] * 2, [[10]] * 2, [[]] * 2)
    yield "rank 1 comes late", Case(10, [[(0, 4)], [(3, 7)]], [[4], [7]], [[10], [10]], [[], []])
    yield "hidden waiting", Case(12, [[(0, 9)], [(0, 5)]], [[2], [6]], [[11], [11]], [[], []])
    yield (
        "one waits while another moves",
        Case(14, [[(0, 2)], [(0, 8)]], [[2, 3], [2, 9]], [[7, 12], [7, 12]], [[], []]),
    )
    yield (
        "the first collective is left last",
        Case(16, [[(0, 1)], [(0, 4)]], [[1, 2], [4, 9]], [[6, 14], [13, 11]], [[], []]),
    )
    yield "computation within computation", Case(9, [[(0, 6), (2, 4), (5, 7)]], [[6]], [[9]], [[(0, 9)]])
    yield "no collective", Case(8, [[(1, 3)], [(2, 7)]], [[], []], [[], []], [[], [(0, 1)]])


def random(rng: np.random.Generator, world: int) -> Case:
    """Anything goes: computation that overlaps, collectives in flight together, any order of ranks, no grid."""
    length, calls = int(rng.integers(40, 90)), int(rng.integers(2, 6))
    work = [_intervals(rng, length // 2, int(rng.integers(1, 6))) for _ in range(world)]
    entries = [np.sort(rng.choice(length - 8, calls, replace=False)).tolist() for _ in range(world)]
    begun = np.max(entries, axis=0).astype(int)
    ends = [np.minimum(begun + rng.integers(0, 8, calls), length).tolist() for _ in range(world)]
    other, widths = [_intervals(rng, length, 1) for _ in range(world)], rng.integers(1, 10**6, length) / 1e9
    return Case(length, work, entries, ends, other, tuple(widths.tolist()))


def _intervals(rng: np.random.Generator, length: int, count: int) -> list[Interval]:
    bounds = np.sort(rng.integers(0, length, (count, 2)), axis=1)
    return [(int(a), int(b)) for a, b in bounds]


def telling() -> Iterator[Case]:
    """Steps whose cause, or the rank to look at, is another than a look at one collective or one rank would say."""
    # rank 1 is the last in the first collective and computes most, but everybody waits for rank 2 in the second
    work = [[(0, 20)], [(0, 24)], [(0, 8), (50, 60)]]
    yield Case(63, work, [[10, 20], [16, 24], [8, 60]], [[18, 62]] * 3, [[]] * 3)
    # rank 0 waits longer than anybody transfers; all together transfer longer than they wait
    work = [[(0, 10)], [(0, 28), (30, 33)], [(0, 28), (30, 33)], [(0, 33)]]
    yield Case(45, work, [[10], [28], [28], [30]], [[44]] * 4, [[]] * 4)


def ill(rng: np.random.Generator, cause: str, on_rank_0: bool) -> Case:
    """A step of 2 to 5 ranks whose largest loss has this cause: input, computation, two collectives.

    ``on_rank_0``: where one rank is worse than the others it is this one, else any.
    """
    while True:
        world = int(rng.choice([2, 3, 5]))
        first, late = rng.integers(1, 4, world), np.zeros(world, int)
        work, transfer = rng.integers(14, 18, world), int(rng.integers(2, 5))
        sick = 0 if on_rank_0 else int(rng.integers(world))
        if cause == "network":
            transfer = int(rng.integers(20, 40))
        elif cause == "input":
            first += 20
            first[sick] += 4
        elif rng.random() < 0.5:
            work[sick] += 40
        else:
            late[sick] = 40  # no input for this rank alone
        begins = first + late
        middle, done = begins + work // 2, begins + work
        entries = [[int(m), int(d)] for m, d in zip(middle, done, strict=True)]
        begun = np.max(entries, axis=0)
        ends = np.array([begun[0] + transfer, max(begun[1], begun[0] + transfer) + transfer])
        case = Case(
            int(ends[-1]) + 1,
            [[(int(a), int(b))] for a, b in zip(begins, done, strict=True)],
            entries,
            [ends.tolist()] * world,
            [[(0, int(a))] for a in begins],
        )
        if (found := case.verdict()) and found[0] == cause:
            return case
