"""What the tasks of exercise 12 check: losses against a count of milliseconds, and tables against their definitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from dpbook.collectives.bandwidth import Collective, algbw, busbw
from dpbook.grading import Answer, call, expect, expect_close
from dpbook.grading.text import describe
from dpbook.overlap import Kind, Span
from dpbook.text import plural

MS = 1e-3
CAUSES = ("network", "straggler", "input")
"""What the three losses are called as a cause: of transfer, waiting and idle time."""
LOSSES = ("transfer", "waiting", "idle")
C: Kind = "computation"
Interval = tuple[int, int]
Row = tuple[str, int, str, Kind, float, float]


def _triples(got: Any, count: int, of: str, where: str, row: str) -> list[list[float]]:
    """``got``, if it is ``count`` triples of numbers, as lists or an array; ``of``: what a triple holds, in words."""
    got = got.tolist() if isinstance(got, np.ndarray) else got
    fits = isinstance(got, tuple | list) and len(got) == count
    expect(fits, f"a list of {plural(count, 'triple')} {of}, one per {row}", describe(got), where)
    found = []
    for number, triple in enumerate(got):
        triple = triple.tolist() if isinstance(triple, np.ndarray) else triple
        good = isinstance(triple, tuple | list) and len(triple) == 3
        good = good and all(isinstance(x, int | float) for x in triple)
        expect(good, f"a triple {of}", describe(triple), f"{where}, {row} {number}")
        found.append([float(x) for x in triple])
    return found


# 12.1: where does the time go


@dataclass(frozen=True)
class Case:
    """A step in whole milliseconds, from 0 to ``length``.

    ``work``: per rank, when it computes. ``entries``: per rank, when it enters each collective, ascending. ``ends``:
    per rank, when it leaves each; not before the last rank has come. ``other``: per rank, copies, which are neither.
    """

    length: int
    work: list[list[Interval]]
    entries: list[list[int]]
    ends: list[list[int]]
    other: list[list[Interval]]

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
        return [(*found[k][:4], start + MS * found[k][4], start + MS * found[k][5]) for k in order]

    def table(self) -> NDArray[np.int64]:
        """Milliseconds of transfer, waiting and idleness of each rank, counted one by one."""
        begun = np.max(self.entries, axis=0)
        counts = []
        for rank in range(self.world):
            working, inside, moving = (np.zeros(self.length, bool) for _ in range(3))
            for a, b in self.work[rank]:
                working[a:b] = True
            for a, b, first in zip(self.entries[rank], self.ends[rank], begun, strict=True):
                inside[a:b] = True
                moving[first:b] = True
            free = ~working
            counts.append([(free & moving).sum(), (free & inside & ~moving).sum(), (free & ~inside).sum()])
        return np.array(counts)

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


def _small() -> Iterator[tuple[str, Case]]:
    yield "one rank", Case(10, [[(2, 6)]], [[5]], [[9]], [[]])
    yield "all come at once", Case(12, [[(0, 6)]] * 2, [[6]] * 2, [[10]] * 2, [[]] * 2)
    yield "rank 1 comes late", Case(10, [[(0, 4)], [(3, 7)]], [[4], [7]], [[10], [10]], [[], []])
    yield "hidden waiting", Case(12, [[(0, 9)], [(0, 5)]], [[2], [6]], [[11], [11]], [[], []])
    yield (
        "one waits while another moves",
        Case(14, [[(0, 2)], [(0, 8)]], [[2, 3], [2, 9]], [[7, 12], [7, 12]], [[], []]),
    )
    yield "computation within computation", Case(9, [[(0, 6), (2, 4), (5, 7)]], [[6]], [[9]], [[(0, 9)]])
    yield "no collective", Case(8, [[(1, 3)], [(2, 7)]], [[], []], [[], []], [[], [(0, 1)]])


def _random(rng: np.random.Generator, world: int) -> Case:
    """Anything goes: computation that overlaps, collectives in flight together, ranks in any order."""
    length, calls = int(rng.integers(40, 90)), int(rng.integers(2, 6))
    work = [_intervals(rng, length // 2, int(rng.integers(1, 6))) for _ in range(world)]
    entries = [np.sort(rng.choice(length - 8, calls, replace=False)).tolist() for _ in range(world)]
    begun = np.max(entries, axis=0).astype(int)
    ends = [np.minimum(begun + rng.integers(0, 8, calls), length).tolist() for _ in range(world)]
    return Case(length, work, entries, ends, [_intervals(rng, length, 1) for _ in range(world)])


def _intervals(rng: np.random.Generator, length: int, count: int) -> list[Interval]:
    bounds = np.sort(rng.integers(0, length, (count, 2)), axis=1)
    return [(int(a), int(b)) for a, b in bounds]


def _ill(rng: np.random.Generator, cause: str, on_rank_0: bool) -> Case:
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


def _on_spans(diagnose: Callable[..., Any], rows: list[Row], window: tuple[float, float]) -> Any:
    return diagnose([Span(*row) for row in rows], window)


def _diagnosis(answer: Answer, case: Case, rng: np.random.Generator, where: str) -> tuple[Any, Any, Any]:
    start = float(rng.integers(0, 50)) / 10
    window = (start, start + MS * case.length)
    got = call(answer, case.rows(rng, start), window, through=_on_spans, where=where)
    fits = isinstance(got, tuple | list) and len(got) == 3
    expect(fits, "(losses, cause, rank)", describe(got), where)
    return got[0], got[1], got[2]


def _judge_losses(case: Case, got: Any, where: str) -> None:
    rows = _triples(got, case.world, "(transfer, waiting, idle) in seconds", where, "rank")
    for rank, (expected, row) in enumerate(zip(case.table().tolist(), rows, strict=True)):
        for name, ms, seconds in zip(LOSSES, expected, row, strict=True):
            expect_close(MS * ms, seconds, 1e-9, f"{where}, rank {rank}, {name}")


def lost_time(answer: Answer, rng: np.random.Generator) -> None:
    cases = [*_small(), *((f"random spans on {world} ranks", _random(rng, world)) for world in (1, 2, 2, 3, 5, 7, 16))]
    for name, case in cases:
        where = f"{name}, {case}" if case.world <= 2 and case.length < 20 else name
        _judge_losses(case, _diagnosis(answer, case, rng, where)[0], where)


def verdicts(answer: Answer, rng: np.random.Generator) -> str:
    drawn = rng.permutation([cause for cause in CAUSES for _ in range(6)]).tolist()
    for number, cause in enumerate(drawn):
        case = _ill(rng, cause, on_rank_0=drawn[:number].count(cause) % 2 == 0)
        where = f"step {number + 1}, losses (transfer, waiting, idle) in ms by rank {case.table().tolist()}"
        _, *got = _diagnosis(answer, case, rng, where)
        expected = case.verdict()
        fits = isinstance(got[0], str) and isinstance(got[1], int) and (got[0], got[1]) == expected
        expect(fits, f"cause and rank {expected}", describe(tuple(got)), where)
    return f"{len(drawn)} steps told apart"


# 12.2: a table of scaling


def _tables(rng: np.random.Generator) -> Iterator[tuple[str, list[tuple[int, int, float]]]]:
    """Runs as (ranks, tokens per step, seconds of a step), by what they scale."""
    base, alone = 1024 * int(rng.integers(2, 9)), float(rng.uniform(0.2, 3))

    def runs(worlds: Sequence[int], tokens: Callable[[int], int]) -> list[tuple[int, int, float]]:
        table = []
        for n in worlds:
            step = tokens(n)
            table.append((n, step, round(alone * step / (base * n) * float(rng.uniform(1, 1.6)), 3)))
        return table

    yield "weak scaling", runs((1, 2, 5, 16), lambda n: base * n)
    yield "strong scaling", runs((1, 2, 4, 8, 16), lambda n: 16 * base)
    yield "the smallest run comes last", runs((16, 7, 5, 2, 1), lambda n: base * n)
    yield "no run on one rank", runs((8, 2, 64), lambda n: base * n)
    yield "some of both", runs((4, 2, 8), lambda n: base * int(rng.integers(1, 9)))
    yield "one run", runs((1,), lambda n: base)


def _scaled(runs: Sequence[tuple[int, int, float]], parameters: int, peak: float) -> list[list[float]]:
    rates = [tokens / seconds for _, tokens, seconds in runs]
    per_rank = [rate / n for rate, (n, _, _) in zip(rates, runs, strict=True)]
    alone = per_rank[min(range(len(runs)), key=lambda k: runs[k][0])]
    return [[rate, each / alone, 6 * parameters * each / peak] for rate, each in zip(rates, per_rank, strict=True)]


def rows_agree(answer: Answer, rng: np.random.Generator) -> None:
    for name, runs in _tables(rng):
        parameters, peak = int(rng.integers(10**7, 10**10)), float(rng.integers(100, 2000) * 1e12)
        where = f"{name}, {runs}, {parameters:,} parameters, peak {peak:.4g}"
        got = call(answer, runs, parameters, peak, unchanged=True, where=where)
        rows = _triples(got, len(runs), "(tokens per second, efficiency, MFU)", where, "run")
        for number, (expected, row) in enumerate(zip(_scaled(runs, parameters, peak), rows, strict=True)):
            for column, right, found in zip(("tokens per second", "efficiency", "MFU"), expected, row, strict=True):
                expect_close(right, found, 1e-9 * right, f"{where}, run {number}, {column}")


# 12.3: bandwidths as nccl-tests counts

NAMES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")


def bandwidths_agree(answer: Answer, rng: np.random.Generator) -> None:
    assert set(NAMES) < set(get_args(Collective))
    for world in (2, 5, 7, 16, 1):
        for name in NAMES:
            handed, seconds = int(rng.integers(1, 10**6)) * 1024 * world, float(rng.uniform(1e-5, 1e-1))
            size = handed * world if name == "all_gather" else handed
            where = f'bandwidths("{name}", {handed}, {seconds:.4g}, {world})'
            got = call(answer, name, handed, seconds, world, where=where)
            good = isinstance(got, tuple | list) and len(got) == 2 and all(isinstance(x, int | float) for x in got)
            expect(good, "(algbw, busbw) in bytes per second", describe(got), where)
            expected = algbw(size, seconds), busbw(size, seconds, world, name)  # type: ignore[arg-type]
            for what, right, found in zip(("algbw", "busbw"), expected, got, strict=True):
                expect_close(right, float(found), 1e-9 * right, f"{where}, {what}")
