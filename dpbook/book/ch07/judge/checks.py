"""What the tasks of exercise 07 check."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from dpbook.book.ch07.steps import sample
from dpbook.collectives import Link, closed_forms
from dpbook.grading import Answer, call, expect_close, expect_equal, expect_number
from dpbook.overlap import KINDS, Kind, Span, from_json, to_json

Ticks = tuple[Kind, int, int]
"""A kind, and from which millisecond to which it runs."""


# 07.1: exposed time

C: Kind = "computation"
M: Kind = "communication"
LONGEST = 60
"""Milliseconds in the random cases."""
SMALL: dict[str, list[Ticks]] = {
    "a message after computation": [(C, 0, 6), (M, 6, 9)],
    "no message": [(C, 0, 6)],
    "no computation": [(M, 2, 5)],
    "two messages at once": [(C, 0, 6), (M, 4, 8), (M, 5, 9)],
    "a message inside another": [(C, 0, 3), (M, 2, 10), (M, 4, 6)],
    "a message longer than all of computation": [(C, 4, 6), (C, 7, 8), (M, 2, 10)],
    "computation on two streams": [(C, 0, 6), (C, 3, 8), (M, 2, 9)],
    "waiting, a launch and a copy": [(C, 0, 4), ("wait", 3, 6), (M, 6, 8), ("launch", 6, 7), ("copy", 7, 9)],
    "a message that begins where computation ends": [(C, 0, 4), (M, 2, 4), (M, 4, 5), (C, 5, 6), (M, 5, 5)],
}


def _on_spans(exposed: Callable[..., Any], spans: list[Ticks]) -> Any:
    """Spans of rank 0, their times given in milliseconds; every span has a lane of its own."""
    return exposed([Span(kind, 0, f"{kind} {k}", kind, a / 1e3, b / 1e3) for k, (kind, a, b) in enumerate(spans)])


def _ticks(spans: list[Ticks], kind: str) -> Any:
    """Which milliseconds this kind covers."""
    covered = np.zeros(LONGEST, bool)
    for what, start, end in spans:
        if what == kind:
            covered[start:end] = True
    return covered


def _instances(rng: np.random.Generator) -> Iterator[tuple[str, list[Ticks]]]:
    yield from SMALL.items()
    for size in (2, 5, 10, 40):
        bounds = np.sort(rng.integers(0, LONGEST, (size, 2)), axis=1)
        kinds = rng.choice(len(KINDS), size, p=[0.35, 0.35, 0.1, 0.1, 0.1]).tolist()
        yield f"{size} random spans", [(KINDS[k], int(a), int(b)) for k, (a, b) in zip(kinds, bounds, strict=True)]


def exposes(answer: Answer, rng: np.random.Generator) -> None:
    for where, spans in _instances(rng):
        expected = int(np.count_nonzero(_ticks(spans, M) & ~_ticks(spans, C))) / 1e3
        told = where + (f" {spans} in ms; the answer is in s" if len(spans) <= 5 else "")
        got = expect_number(call(answer, spans, through=_on_spans, where=told), told)
        expect_close(expected, got, 1e-9, told)


# 07.2: tokens to hide

WORLDS = (2, 5, 7, 16)
MANY = 2**20
"""Ranks, for which (N − 1)/N may as well be taken for 1."""


def _hidden(answer: Answer, parameters: int, flops: float, bandwidth: float, itemsize: int, world: int) -> None:
    """The tokens are those for which backward takes as long as the ring."""
    within = 2 / MANY if world == MANY else 1e-9
    where = f"tokens_to_hide({parameters:,}, {flops:.3g}, {bandwidth:.3g}, {itemsize}, {world})"
    got = expect_number(call(answer, parameters, flops, bandwidth, itemsize, world, where=where), where)
    ring = closed_forms.ring(world, Link(0.0, bandwidth))(itemsize * parameters)
    expected = ring / (4 * parameters / flops)
    expect_close(expected, got, within * expected, where)


def _machine(rng: np.random.Generator) -> tuple[float, float]:
    """Operations and bytes per second."""
    return float(rng.integers(50, 900) * 1e12), float(rng.integers(10, 450) * 1e9)


def many_ranks(answer: Answer, rng: np.random.Generator) -> None:
    _hidden(answer, 7 * 10**9, 989e12 / 2, 400e9, 2, MANY)
    for _ in range(4):
        machine, parameters = _machine(rng), int(rng.integers(10**6, 10**11))
        for model in (parameters, 2 * parameters):
            _hidden(answer, model, *machine, 2, MANY)


def any_size(answer: Answer, rng: np.random.Generator) -> None:
    parameters = int(rng.integers(10**6, 10**11))
    for world in WORLDS:
        for itemsize in (2, 1, 4):
            _hidden(answer, parameters, *_machine(rng), itemsize, world)
    _hidden(answer, parameters, *_machine(rng), 4, 1)


# 07.3: what is wrong with a step

EACH = 5
"""Steps of each fault in a check."""


def _on_timeline(diagnose: Callable[..., Any], text: str) -> Any:
    return diagnose(from_json(text))


def diagnoses(answer: Answer, rng: np.random.Generator, *, faults: list[str]) -> str:
    """Several steps with each of these faults, in a random order."""
    drawn = rng.permutation([fault for fault in faults for _ in range(EACH)]).tolist()
    for fault in drawn:
        seed = int(rng.integers(10**6))
        where = f'sample("{fault}", {seed})'
        got = call(answer, to_json(sample(fault, seed)), through=_on_timeline, where=where)
        expect_equal(fault, got, where)
    return f"{len(drawn)} steps told apart"


faults_of_messages = partial(diagnoses, faults=["healthy", "blocking hook", "giant bucket"])
faults_around_messages = partial(diagnoses, faults=["healthy", "launch-bound", "straggler", "extra syncs"])
