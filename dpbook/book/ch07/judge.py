"""Checks of exercise 07: exposed time, the cuts of a step that hide a sync, and the fault of a step."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from dpbook.book.ch07 import sample
from dpbook.classroom import Answer, call, expect_close, expect_equal, expect_number
from dpbook.collectives import Link, closed_forms
from dpbook.overlap import KINDS, Kind, Span, Timeline

Ticks = tuple[Kind, int, int]  # a kind of span, with its first tick and its end


# 07.1: exposed time

C: Kind = "computation"
M: Kind = "communication"
LONGEST = 60  # ticks in the random cases
MILLISECONDS = tuple(k / 1e3 for k in range(LONGEST + 1))  # the ticks of the small cases, in seconds
SMALL: dict[str, list[Ticks]] = {
    "a call after computation": [(C, 0, 6), (M, 6, 9)],
    "no call": [(C, 0, 6)],
    "no computation": [(M, 2, 5)],
    "two calls at once": [(C, 0, 6), (M, 4, 8), (M, 5, 9)],
    "a call inside another": [(C, 0, 3), (M, 2, 10), (M, 4, 6)],
    "a call longer than all of computation": [(C, 4, 6), (C, 7, 8), (M, 2, 10)],
    "computation on two streams": [(C, 0, 6), (C, 3, 8), (M, 2, 9)],
    "waiting, a launch and a copy": [(C, 0, 4), ("wait", 3, 6), (M, 6, 8), ("launch", 6, 7), ("copy", 7, 9)],
    "a kernel inside a longer one": [(C, 0, 8), (C, 1, 2), (M, 5, 10)],
    "a wait during a call": [(C, 0, 3), (M, 2, 8), ("wait", 4, 6)],
    "a call that begins where computation ends": [(C, 0, 4), (M, 2, 4), (M, 4, 5), (C, 5, 6), (M, 5, 5)],
}


def _on_spans(exposed: Callable[..., Any], spans: list[Ticks], times: Sequence[float]) -> Any:
    return exposed(_spans(spans, times))


def _spans(spans: list[Ticks], times: Sequence[float]) -> list[Span]:
    """Return spans of rank 0, each in its own lane; ``times`` are the seconds at which ticks begin."""
    return [Span(kind, 0, f"{kind} {k}", kind, times[a], times[b]) for k, (kind, a, b) in enumerate(spans)]


def _ticks(spans: list[Ticks], kind: str) -> Any:
    """Return the ticks that spans of this kind cover."""
    covered = np.zeros(LONGEST, bool)
    for span_kind, start, end in spans:
        if span_kind == kind:
            covered[start:end] = True
    return covered


def _instances(rng: np.random.Generator) -> Iterator[tuple[str, list[Ticks], Sequence[float]]]:
    """Yield spans and the seconds of their ticks; those of random spans are on no grid, as in a profile."""
    for where, small in SMALL.items():
        yield where, small, MILLISECONDS
    for size in (2, 5, 10, 40):
        bounds = np.sort(rng.integers(0, LONGEST, (size, 2)), axis=1)
        kinds = rng.choice(len(KINDS), size, p=[0.35, 0.35, 0.1, 0.1, 0.1]).tolist()
        spans = [(KINDS[k], int(a), int(b)) for k, (a, b) in zip(kinds, bounds, strict=True)]
        yield f"{size} random spans", spans, np.cumsum(rng.integers(1, 10**6, LONGEST + 1) / 1e9).round(9).tolist()


def exposes(answer: Answer, rng: np.random.Generator) -> None:
    for where, spans, times in _instances(rng):
        got = call(answer, spans, times, through=_on_spans, where=where, by_hand=(_spans(spans, times),))
        seconds, communicates, computes = np.diff(times), _ticks(spans, M), _ticks(spans, C)
        expected = float(seconds[communicates & ~computes].sum())
        communication = float(seconds[communicates].sum())
        of_calls = [_ticks([span], M) & ~computes for span in spans if span[0] == M]
        mistakes = {
            "This is all communication. What computation hides is not exposed.": communication,
            "Calls that overlap are counted twice: a moment is exposed once, however many calls are under way.": (
                sum(float(seconds[covered].sum()) for covered in of_calls)
            ),
            "This is communication less computation. Computation hides only what goes on at the same time.": (
                max(0.0, communication - float(seconds[computes].sum()))
            ),
            "Waiting is counted as communication: on a timeline it is a kind of its own.": (
                float(seconds[(communicates | _ticks(spans, "wait")) & ~computes].sum())
            ),
        }
        expect_close(expected, expect_number(got, where), 1e-9, f"{where}, in seconds", mistakes=mistakes)


# 07.2: the number of micro-batches of a step

WORLDS = (2, 5, 7, 16, 1024)
SEQUENCES = (12, 16, 30, 60, 7)  # sequences of a GPU in a step; most of their divisors are far apart


def _cut(
    answer: Answer,
    rng: np.random.Generator,
    pieces: int,
    sequences: int,
    per_active: int,
    itemsize: int,
    world: int,
    within: float | None = None,
) -> None:
    """Check a step whose ring takes ``within`` of the backward of one of ``pieces``, and with 0 more than all of it."""
    total, context = int(rng.integers(10**9, 10**11)) * per_active, int(rng.choice([2048, 4096, 8192]))
    flops, within = float(rng.integers(50, 900) * 1e12), within or float(rng.uniform(0.93, 0.99))
    backward = 4 * (total // per_active) * context * sequences / max(pieces, 1) / flops
    one = closed_forms.ring(world, Link(0.0, 1e9))(itemsize * total) * 1e9
    bandwidth = one / (backward * (within if pieces else 1.02)) if world > 1 else 50e9
    given = total, total // per_active, sequences, context, flops, bandwidth, itemsize, world
    expect_equal(pieces, call(answer, *given))


def _divisors(number: int) -> list[int]:
    return [piece for piece in range(1, number + 1) if number % piece == 0]


def dense(answer: Answer, rng: np.random.Generator) -> None:
    for sequences in SEQUENCES:
        for pieces in (0, *_divisors(sequences)):
            _cut(answer, rng, pieces, sequences, 1, 2, 1024)
    for within in (0.6, 0.8):  # 4 of 16 would do, and so would 5 or 6, if they divided
        _cut(answer, rng, 4, 16, 1, 2, 1024, within)
    _cut(answer, rng, 12, 12, 1, 2, 1)
    # "or longer": 4 · 2³⁰ · 2¹² · 4 operations at 2⁴⁸ a second take as long as 2³¹ bytes at 2³³ a second
    expect_equal(4, call(answer, 2**30, 2**30, 16, 2**12, 2.0**48, 2.0**33, 2, 2))


def any_model(answer: Answer, rng: np.random.Generator) -> None:
    for world in WORLDS:
        for itemsize in (2, 4, 1):
            for per_active in (1, 3, 18):
                sequences = int(rng.choice(SEQUENCES))
                _cut(answer, rng, int(rng.choice([0, *_divisors(sequences)])), sequences, per_active, itemsize, world)


# 07.3: the fault of a step

STEPS_PER_FAULT = 5


@lru_cache(maxsize=512)  # all submissions of a class get the same steps
def _plain(fault: str, seed: int) -> tuple[list[tuple[Any, ...]], tuple[float, float]]:
    step = sample(fault, seed)
    return [tuple(span) for span in step.spans], (step.start, step.end)


def _on_timeline(diagnose: Callable[..., Any], spans: Sequence[Sequence[Any]], window: tuple[float, float]) -> Any:
    return diagnose(Timeline(tuple(Span(*fields) for fields in spans), window))


def diagnoses(answer: Answer, rng: np.random.Generator, *, faults: list[str]) -> str:
    """Check several steps with each of these faults, in random order."""
    drawn = rng.permutation([fault for fault in faults for _ in range(STEPS_PER_FAULT)]).tolist()
    for fault in drawn:
        seed = int(rng.integers(10**6))
        by_hand = f'diagnose(sample("{fault}", {seed}))'
        expect_equal(fault, call(answer, *_plain(fault, seed), through=_on_timeline, by_hand=by_hand))
    return f"{len(drawn)} steps diagnosed"


faults_of_calls = partial(diagnoses, faults=["healthy", "blocking hook", "giant bucket"])
faults_around_calls = partial(diagnoses, faults=["healthy", "launch-bound", "straggler", "extra syncs"])
