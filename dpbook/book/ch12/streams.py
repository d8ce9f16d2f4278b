"""Checks of task 12.3: programs of a host and its streams, and the first value that is read too early.

The oracle is a simulated device, not an order of events: each kernel in turn takes for ever and all others no time.
A value that is then read before its kernel has ended is read too early.
"""

from collections.abc import Sequence
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np

from dpbook.classroom import Answer, call, describe, expect

Line = tuple[Any, ...]
FOR_EVER = 1.0


def _reads(line: Line) -> Sequence[str]:
    return line[3] if line[0] == "kernel" else [line[1]] if line[0] == "read" else []


def _early_if_slow(program: Sequence[Line], slow: int) -> int | None:
    """Return the first line that reads the value of the kernel in line ``slow`` before it has ended, if any does."""
    host, ready, recorded = 0.0, dict[str, float](), dict[str, float]()
    ended, value = 0.0, program[slow][2]
    for number, line in enumerate(program):
        begins = host
        if line[0] == "kernel":
            begins = max(host, ready.get(line[1], 0.0))
            ready[line[1]] = begins + (FOR_EVER if number == slow else 0.0)
            ended = ready[line[1]] if number == slow else ended
        elif line[0] == "record":
            recorded[line[2]] = max(host, ready.get(line[1], 0.0))
        elif line[0] == "wait":
            ready[line[1]] = max(ready.get(line[1], 0.0), recorded.get(line[2], 0.0))
        elif line[0] == "synchronize":
            host = max(host, ready.get(line[1], 0.0))
        if number > slow and value in _reads(line) and begins < ended:
            return number
    return None


def first_early_read(program: Sequence[Line]) -> tuple[int, str] | None:
    """Return the number of the first line that reads a value too early, and the value; None if no line does.

    Where a line reads several values too early, it is the first that the line names.
    """
    early = [
        (line, list(_reads(program[line])).index(program[slow][2]), program[slow][2])
        for slow in range(len(program))
        if program[slow][0] == "kernel" and (line := _early_if_slow(program, slow)) is not None
    ]
    first = min(early, default=None)
    return None if first is None else (first[0], first[2])


def _parsed(text: str) -> tuple[Line, ...]:
    """Return the program of a text; a kernel has stream, value, and the values that it reads."""
    lines = [tuple(line.split()) for line in text.split("; ")]
    return tuple((*line[:3], list(line[3:])) if line[0] == "kernel" else line for line in lines)


SHORT_PROGRAMS = """\
kernel a x; kernel a y x
kernel a x; kernel b y x
kernel a x; read x
kernel a x; record a e; wait b e; kernel b y x
kernel c w; kernel a x; record a e; wait b e; kernel c y x
kernel a x; record a e; wait b e; read x
record a e; kernel a x; wait b e; kernel b y x
kernel a x; wait b e; record a e; kernel b y x
kernel a x; synchronize a; kernel b y x
record a e; kernel a x; record a e; wait b e; kernel b y x
kernel a x; synchronize b; read x
kernel a x; record a e; wait b e; record b f; wait c f; kernel c y x; synchronize c; read x; read y
record a e; kernel a x; wait b e; record a e; kernel b y; kernel b z y x
kernel a x; kernel b y; kernel c z y x
kernel a x; record a e; record b e; wait c e; kernel c y x
kernel a x; record a e; wait b e; synchronize b; read x
kernel a x; kernel b y; synchronize a; synchronize b; read x
"""
"""The fewest lines that show each rule, and each of the known mistakes."""
FIXED = [_parsed(program) for program in SHORT_PROGRAMS.splitlines()]


KINDS = {"kernel": 0.35, "record": 0.22, "wait": 0.28, "synchronize": 0.08, "read": 0.07}
"""Shares of the kinds of lines in a program that is drawn."""


def _drawn(rng: np.random.Generator, lines: int) -> tuple[Line, ...]:
    """Draw a program on three streams, in which each value is written once, and read later if at all."""
    program: list[Line] = []
    written: list[str] = []
    kinds = rng.choice(list(KINDS), lines, p=list(KINDS.values())).tolist()
    streams, events = rng.choice(list("abc"), lines).tolist(), rng.choice(list("ef"), lines).tolist()
    for number, (kind, stream, event) in enumerate(zip(kinds, streams, events, strict=True)):
        if kind == "kernel":
            reads = rng.permutation(written)[: rng.integers(0, 3)].tolist()
            program.append((kind, stream, f"v{number}", reads))
            written.append(f"v{number}")
        elif kind == "read" and written:
            program.append((kind, written[rng.integers(len(written))]))
        elif kind == "synchronize":
            program.append((kind, stream))
        elif kind != "read":
            program.append((kind, stream, event))
    return tuple(program)


def judge_programs(answer: Answer, rng: np.random.Generator, *, early: bool) -> str:
    """Try programs that read a value too early, or programs that never do, behind one that does."""
    programs = chain(FIXED, (_drawn(rng, lines) for lines in rng.integers(4, 16, 300).tolist()))
    tried = list(islice((program for program in programs if (first_early_read(program) is not None) == early), 100))
    tried = tried if early else [FIXED[1], *tried]
    for program in tried:
        got, right = call(answer, list(program), unchanged=True), first_early_read(program)
        if right is None:
            expect(got is None, "None: no value is read too early", describe(got))
        else:
            fits = isinstance(got, tuple | list) and tuple(got) == right
            expect(fits, f"{right}: line {right[0]} may read {right[1]} too early", describe(got))
    return f"{len(tried)} programs"


too_early, in_time = partial(judge_programs, early=True), partial(judge_programs, early=False)
