"""Checks of exercise 12: lost time, a scaling table, early reads, and a forecast."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpbook.book.ch12 import time_lost
from dpbook.book.ch12.streams import in_time as in_time
from dpbook.book.ch12.streams import too_early as too_early
from dpbook.classroom import Answer, Wrong, call, describe, expect, expect_close, expect_items, expect_number, value
from dpbook.core import plural
from dpbook.overlap import Kind, Span, Timeline

MS = 1e-3
CAUSES = ("network", "straggler", "input")
"""Causes of the three losses: of transfer, waiting and idle time."""
LOSSES = ("transfer", "waiting", "idle")
Interval = tuple[int, int]
Intervals = Sequence[Sequence[Interval]]
Ticks = Sequence[Sequence[int]]
Row = tuple[str, int, str, Kind, float, float]


def ticked(
    length: int, work: Intervals, entries: Ticks, ends: Ticks, other: Intervals, widths: Sequence[float] = ()
) -> Timeline:
    """Return a step in whole ticks, from 0 to ``length``.

    Args:
        length: ticks of the step.
        work: for each rank, intervals of computation.
        entries: for each rank, when it enters each collective, ascending.
        ends: for each rank, when it leaves each; not before the last rank has entered.
        other: for each rank, intervals of copies, which are neither computation nor communication.
        widths: seconds of each tick (default: a millisecond).
    """
    times = [0.0, *np.cumsum(widths or [MS] * length).tolist()]
    spans = []
    for rank in range(len(work)):
        for number, (a, b) in enumerate(work[rank]):
            lane = f"compute {number}" if number % 2 else "compute"
            spans.append(Span("matmul", rank, lane, "computation", times[a], times[b]))
        spans += [Span("to the device", rank, "copy", "copy", times[a], times[b]) for a, b in other[rank]]
        for number, (a, b) in enumerate(zip(entries[rank], ends[rank], strict=True)):
            lane = f"communication {(number + rank) % 2}"  # a collective may have another lane on another rank
            spans.append(Span("all-reduce", rank, lane, "communication", times[a], times[b]))
    return Timeline(tuple(spans), (0.0, times[-1]))


def in_ticks(step: Timeline) -> NDArray[np.int64]:
    """Return the ticks of transfer, waiting and idleness of each rank, of a step whose ticks are milliseconds."""
    return np.rint(np.array(list(time_lost(step).values())) / MS).astype(np.int64)


def right_verdict(step: Timeline) -> tuple[str, int] | None:
    """Return the cause and the rank to look at; None if it is not clear."""
    table = in_ticks(step)
    totals = table.sum(axis=0)
    cause = int(totals.argmax())
    column = -table[:, 1] if CAUSES[cause] == "straggler" else table[:, cause]
    clear = np.sort(totals)[-1] > 1.2 * np.sort(totals)[-2]
    alone = len(column) == 1 or np.sort(column)[-1] > np.sort(column)[-2] + 2
    return (CAUSES[cause], int(column.argmax())) if clear and alone else None


def _described(step: Timeline) -> str:
    """Describe a step in milliseconds, for a report."""

    def intervals(rank: int, kind: Kind) -> list[Interval]:
        spans = [span for span in step.spans if span.rank == rank and span.kind == kind]
        return [(round(span.start / MS), round(span.end / MS)) for span in spans]

    ranks = [
        f"rank {rank} computes {intervals(rank, 'computation')}, is in collectives {intervals(rank, 'communication')}"
        for rank in step.ranks
    ]
    return f"ms of a window from 0 to {round(step.end / MS)}: {'; '.join(ranks)}"


def small() -> Iterator[tuple[str, Timeline]]:
    """Yield small steps by name and description."""
    steps = {
        "one rank": ticked(10, [[(2, 6)]], [[5]], [[9]], [[]]),
        "all come at once": ticked(12, [[(0, 6)]] * 2, [[6]] * 2, [[10]] * 2, [[]] * 2),
        "rank 1 comes late": ticked(10, [[(0, 4)], [(3, 7)]], [[4], [7]], [[10], [10]], [[], []]),
        "hidden waiting": ticked(12, [[(0, 9)], [(0, 5)]], [[2], [6]], [[11], [11]], [[], []]),
        "one waits while another moves": ticked(14, [[(0, 2)], [(0, 8)]], [[2, 3], [2, 9]], [[7, 12]] * 2, [[], []]),
        "the first collective is left last": ticked(
            16, [[(0, 1)], [(0, 4)]], [[1, 2], [4, 9]], [[6, 14], [13, 11]], [[], []]
        ),
        "computation within computation": ticked(9, [[(0, 6), (2, 4), (5, 7)]], [[6]], [[9]], [[(0, 9)]]),
        "rank 1 only copies": ticked(8, [[(1, 6)], []], [[], []], [[], []], [[], [(0, 1)]]),
        "no collective": ticked(8, [[(1, 3)], [(2, 7)]], [[], []], [[], []], [[], [(0, 1)]]),
    }
    yield from ((f"{name}, {_described(step)}", step) for name, step in steps.items())


def random(rng: np.random.Generator, world: int) -> Timeline:
    """Draw a step with overlapping computation, concurrent collectives, any order of ranks and ticks of any width."""
    length, calls = int(rng.integers(40, 90)), int(rng.integers(2, 6))
    work = [_intervals(rng, length // 2, int(rng.integers(1, 6))) for _ in range(world)]
    entries = [np.sort(rng.choice(length - 8, calls, replace=False)).tolist() for _ in range(world)]
    begun = np.max(entries, axis=0).astype(int)
    ends = [np.minimum(begun + rng.integers(0, 8, calls), length).tolist() for _ in range(world)]
    other, widths = [_intervals(rng, length, 1) for _ in range(world)], rng.integers(1, 10**6, length) / 1e9
    return ticked(length, work, entries, ends, other, widths.tolist())


def _intervals(rng: np.random.Generator, length: int, count: int) -> list[Interval]:
    bounds = np.sort(rng.integers(0, length, (count, 2)), axis=1)
    return [(int(a), int(b)) for a, b in bounds]


def misleading() -> Iterator[Timeline]:
    """Yield steps whose cause or rank is not the one that a single collective or a single rank suggests."""
    # Rank 1 is last in the first collective and computes most, but all ranks wait for rank 2 in the second.
    work = [[(0, 20)], [(0, 24)], [(0, 8), (50, 60)]]
    yield ticked(63, work, [[10, 20], [16, 24], [8, 60]], [[18, 62]] * 3, [[]] * 3)
    # Rank 0 waits longer than any rank transfers, but all ranks together transfer longer than they wait.
    work = [[(0, 10)], [(0, 28), (30, 33)], [(0, 28), (30, 33)], [(0, 33)]]
    yield ticked(45, work, [[10], [28], [28], [30]], [[44]] * 4, [[]] * 4)


def faulty(rng: np.random.Generator, cause: str, on_rank_0: bool) -> Timeline:
    """Draw a step of 2 to 5 ranks, of input, computation and two collectives, whose largest loss has this cause.

    With ``on_rank_0`` the worst rank, if there is one, is rank 0; otherwise it is any.
    """
    while True:
        world = int(rng.choice([2, 3, 5]))
        first, late = rng.integers(1, 4, world), np.zeros(world, int)
        work, transfer = rng.integers(14, 18, world), int(rng.integers(2, 5))
        worst = 0 if on_rank_0 else int(rng.integers(world))
        if cause == "network":
            transfer = int(rng.integers(20, 40))
        elif cause == "input":
            first += 20
            first[worst] += 4
        elif rng.random() < 0.5:
            work[worst] += 40
        else:
            late[worst] = 40  # only this rank waits for input
        begins = first + late
        middle, computed = begins + work // 2, begins + work
        entries = np.stack([middle, computed], axis=1)
        begun = entries.max(axis=0)
        ends = [begun[0] + transfer, max(begun[1], begun[0] + transfer) + transfer]
        computing, loading = [[pair] for pair in zip(begins, computed, strict=True)], [[(0, at)] for at in begins]
        step = ticked(ends[-1] + 1, computing, entries.tolist(), [ends] * world, loading)
        if (verdict := right_verdict(step)) and verdict[0] == cause:
            return step


def _judge_rows(names: Sequence[str], expected: Sequence[Sequence[float]], got: Any, where: str, row: str) -> None:
    """Check that each item of ``got`` has the right number for each name, as a tuple, a list or an array."""
    expect(isinstance(got, tuple | list | np.ndarray), f"a list with one triple per {row}", describe(got), where)
    expect(len(got) == len(expected), f"{plural(len(expected), 'triple')}, one per {row}", f"{len(got)}", where)
    for number, (numbers, item) in enumerate(zip(expected, got, strict=True)):
        items, place = item.tolist() if isinstance(item, np.ndarray) else item, f"{where}, {row} {number}"
        expect_items(items, len(names), f"({', '.join(names)})", place)
        for name, right, actual in zip(names, numbers, items, strict=True):
            expect_close(right, actual, 1e-9 * max(1, abs(right)), f"{place}, {name}")


# 12.1: where does the time go


def _on_spans(diagnose: Callable[..., Any], rows: list[Row], window: tuple[float, float]) -> Any:
    return diagnose([Span(*row) for row in rows], window)


def _diagnosis(answer: Answer, step: Timeline, rng: np.random.Generator, where: str) -> tuple[Any, Any, Any]:
    """Return the answer for the spans in random order, at times from a random one on."""
    start = float(rng.integers(0, 50)) / 10
    window = (start, start + step.end)
    moved = [step.spans[k].moved(lambda time: start + time) for k in rng.permutation(len(step.spans))]
    rows: list[Row] = [span[:6] for span in moved]
    got = call(answer, rows, window, through=_on_spans, where=where, by_hand=([Span(*row) for row in rows], window))
    losses, cause, rank = expect_items(got, 3, "(losses, cause, rank)", where)
    return losses, cause, rank


def lost_time(answer: Answer, rng: np.random.Generator) -> None:
    cases = [*small(), *((f"random spans on {world} ranks", random(rng, world)) for world in (1, 2, 2, 3, 5, 7, 16))]
    for where, step in cases:
        got, _, _ = _diagnosis(answer, step, rng, where)
        _judge_rows(LOSSES, list(time_lost(step).values()), got, f"{where}, in seconds", "rank")


def verdicts(answer: Answer, rng: np.random.Generator) -> str:
    drawn = rng.permutation([cause for cause in CAUSES for _ in range(6)]).tolist()
    steps = [faulty(rng, cause, on_rank_0=drawn[:number].count(cause) % 2 == 0) for number, cause in enumerate(drawn)]
    steps += misleading()
    for number, step in enumerate(steps):
        where = f"step {number + 1}, losses (transfer, waiting, idle) in ms by rank {in_ticks(step).tolist()}"
        _, *got = _diagnosis(answer, step, rng, where)
        expected = right_verdict(step)
        fits = isinstance(got[0], str) and isinstance(got[1], int) and (got[0], got[1]) == expected
        expect(fits, f"cause and rank {expected}", describe(tuple(got)), where)
    return f"{len(steps)} steps diagnosed"


# 12.2: a table of scaling


def _tables(rng: np.random.Generator) -> Iterator[tuple[str, list[tuple[int, int, float]]]]:
    """Yield tables of runs (ranks, tokens per step, seconds of a step), by name."""
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
    # The base is the run on the fewest ranks, not that of fewest tokens, longest step, lowest rate, or the first row.
    yield "on few ranks a large batch", [(4, 32_768, 0.25), (2, 98_304, 1.0), (8, 16_384, 1.2)]


def _scaled(runs: Sequence[tuple[int, int, float]], parameters: int, peak: float) -> list[list[float]]:
    rates = [tokens / seconds for _, tokens, seconds in runs]
    per_rank = [rate / n for rate, (n, _, _) in zip(rates, runs, strict=True)]
    alone = per_rank[min(range(len(runs)), key=lambda k: runs[k][0])]
    return [[rate, own / alone, 6 * parameters * own / peak] for rate, own in zip(rates, per_rank, strict=True)]


def rows_agree(answer: Answer, rng: np.random.Generator) -> None:
    for name, runs in _tables(rng):
        parameters, peak = int(rng.integers(10**7, 10**10)), float(rng.integers(100, 2000) * 1e12)
        where = f"{name}, {runs}, {parameters:,} parameters, peak {peak:.4g}"
        got = call(answer, runs, parameters, peak, unchanged=True, where=where)
        columns = ("tokens per second", "efficiency", "MFU")
        _judge_rows(columns, _scaled(runs, parameters, peak), got, where, "run")


# 12.4: a forecast of one's own step, beside its measurement

MARGIN = 0.5
"""Share of the measured step by which a forecast from the parts may be wrong on a busy machine."""


def _own_log(answer: Answer) -> tuple[float, dict[str, Any]]:
    """Return the error that the answer states, and its log with arrays (ranks, calls), after a check of its form."""
    expected = "(error, log), a number and the line that measure_updates returned"
    error, text = expect_items(value(answer), 2, expected)
    try:
        log = json.loads(text)
        tables = [np.array(log[name], float) for name in ("compute", "sync", "update")]
        numbers = [float(log[name]) for name in ("forecast", "measured", "forecast_at", "updated")]
    except (TypeError, ValueError, KeyError):
        raise Wrong(expected, describe(text)) from None
    sizes = [table.shape for table in tables]
    complete = all(len(size) == 2 and size[0] >= 2 and size[1] >= 10 for size in sizes) and sizes[2][1] >= 20
    expect(complete, "at least 10 calls of each part and 20 updates, on two ranks or more", f"{sizes}")
    expect(all((table > 0).all() for table in tables) and min(numbers) > 0, "seconds above 0", "others")
    return expect_number(error), log | dict(zip(("compute", "sync", "update"), tables, strict=True))


def forecast_came_first(answer: Answer, rng: np.random.Generator) -> None:
    _, log = _own_log(answer)
    order = log["measured"] <= log["forecast_at"] < log["updated"]
    expect(order, "the parts, then the forecast, then the updates", "another order of their times")
    taken = log["update"].sum(axis=1).max()
    passed = log["updated"] - log["forecast_at"]
    expect(passed >= taken, f"at least {taken:.3f} s for the updates", f"{passed:.3f} s between forecast and end")


def error_of_the_log(answer: Answer, rng: np.random.Generator) -> None:
    error, log = _own_log(answer)
    updates = log["update"].max(axis=0)
    measured = float(np.median(updates))
    mistakes = {
        "This is relative to the forecast: divide by what was measured.": measured / log["forecast"] - 1,
        "The sign is wrong: a forecast above the measurement has an error above 0.": 1 - log["forecast"] / measured,
        "This takes the mean of the updates: one slow update moves it.": (log["forecast"] / float(updates.mean()) - 1),
        "This takes rank 0's updates: an update has ended when its slowest rank has.": (
            log["forecast"] / float(np.median(log["update"][0])) - 1
        ),
    }
    expect_close(log["forecast"] / measured - 1, error, 1e-3, "the error of the log", mistakes=mistakes)


def forecast_from_the_parts(answer: Answer, rng: np.random.Generator) -> str:
    _, log = _own_log(answer)
    compute, sync, measured = (float(np.median(log[name].max(axis=0))) for name in ("compute", "sync", "update"))
    low, high = (1 - MARGIN) * max(compute, sync), (1 + MARGIN) * (compute + sync)
    forecast = float(log["forecast"])
    expect(low <= forecast <= high, f"{low:.4f} to {high:.4f} s, which the parts allow", f"{forecast:.4f}")
    off = abs(forecast / measured - 1)
    expect(off <= MARGIN, f"a forecast within {MARGIN:.0%} of the measured step", f"{off:.0%} away")
    return f"{off:.0%} away from the measured step"
