"""What the tasks of exercise 12 check: losses against a count of milliseconds, and tables against their definitions."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

import numpy as np

from dpbook.book.ch12.steps import CAUSES, LOSSES, Case, Row, ill, random, small, telling
from dpbook.classroom import Answer, call, describe, expect, expect_close, expect_items
from dpbook.collectives import Collective, algbw, busbw
from dpbook.core import plural
from dpbook.overlap import Span


def _judge_numbers(names: Sequence[str], expected: Sequence[float], got: Any, where: str) -> None:
    """``got`` holds a number for each name, as a tuple, a list or an array."""
    items = got.tolist() if isinstance(got, np.ndarray) else got
    expect_items(items, len(names), f"({', '.join(names)})", where)
    for name, right, found in zip(names, expected, items, strict=True):
        expect_close(right, found, 1e-9 * max(1, abs(right)), f"{where}, {name}")


def _judge_rows(names: Sequence[str], expected: Sequence[Sequence[float]], got: Any, where: str, row: str) -> None:
    expect(isinstance(got, tuple | list | np.ndarray), f"a list with one triple per {row}", describe(got), where)
    expect(len(got) == len(expected), f"{plural(len(expected), 'triple')}, one per {row}", f"{len(got)}", where)
    for number, (right, found) in enumerate(zip(expected, got, strict=True)):
        _judge_numbers(names, right, found, f"{where}, {row} {number}")


# 12.1: where does the time go


def _on_spans(diagnose: Callable[..., Any], rows: list[Row], window: tuple[float, float]) -> Any:
    return diagnose([Span(*row) for row in rows], window)


def _diagnosis(answer: Answer, case: Case, rng: np.random.Generator, where: str) -> tuple[Any, Any, Any]:
    start = float(rng.integers(0, 50)) / 10
    window = (start, start + float(case.ticks.cumsum()[-1]))
    rows = case.rows(rng, start)
    got = call(answer, rows, window, through=_on_spans, where=where, by_hand=([Span(*row) for row in rows], window))
    losses, cause, rank = expect_items(got, 3, "(losses, cause, rank)", where)
    return losses, cause, rank


def lost_time(answer: Answer, rng: np.random.Generator) -> None:
    cases = [*small(), *((f"random spans on {world} ranks", random(rng, world)) for world in (1, 2, 2, 3, 5, 7, 16))]
    for name, case in cases:
        where = f"{name}, {case}" if case.world <= 2 and case.length < 20 else name
        got, _, _ = _diagnosis(answer, case, rng, where)
        _judge_rows(LOSSES, case.seconds().tolist(), got, f"{where}, in seconds", "rank")


def verdicts(answer: Answer, rng: np.random.Generator) -> str:
    drawn = rng.permutation([cause for cause in CAUSES for _ in range(6)]).tolist()
    steps = [ill(rng, cause, on_rank_0=drawn[:number].count(cause) % 2 == 0) for number, cause in enumerate(drawn)]
    steps += telling()
    for number, case in enumerate(steps):
        where = f"step {number + 1}, losses (transfer, waiting, idle) in ms by rank {case.table().tolist()}"
        _, *got = _diagnosis(answer, case, rng, where)
        expected = case.verdict()
        fits = isinstance(got[0], str) and isinstance(got[1], int) and (got[0], got[1]) == expected
        expect(fits, f"cause and rank {expected}", describe(tuple(got)), where)
    return f"{len(steps)} steps told apart"


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
    # Not the fewest tokens, the longest step, the lowest rate or the first row: the fewest ranks are compared with.
    yield "on few ranks a large batch", [(4, 32_768, 0.25), (2, 98_304, 1.0), (8, 16_384, 1.2)]


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
        columns = ("tokens per second", "efficiency", "MFU")
        _judge_rows(columns, _scaled(runs, parameters, peak), got, where, "run")


# 12.3: bandwidths as nccl-tests counts

NAMES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")


def bandwidths_agree(answer: Answer, rng: np.random.Generator) -> None:
    assert set(NAMES) < set(get_args(Collective))
    for world in (2, 5, 7, 16, 1):
        for name in NAMES:
            handed, seconds = int(rng.integers(1, 10**6)) * 1024 * world, float(rng.uniform(1e-5, 1e-1))
            size = handed * world if name == "all_gather" else handed
            got = call(answer, name, handed, seconds, world)
            expected = algbw(size, seconds), busbw(size, seconds, world, name)  # type: ignore[arg-type]
            _judge_numbers(("algbw", "busbw"), expected, got, "in bytes per second")
