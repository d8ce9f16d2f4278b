"""Checks of exercise 09: a mean made of messages, and the rank at fault."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpbook.book.ch09 import KINDS, Log, LoggedStep, draw, like_the_next
from dpbook.classroom import (
    Answer,
    ParResult,
    call,
    expect,
    expect_at_most,
    expect_close,
    expect_equal,
    expect_items,
    expect_schedule,
)
from dpbook.collectives import Comm, Program, Schedule, count, record, run
from dpbook.collectives.programs import Op, line_of_caller
from dpbook.ranks import start

# 09.1: a mean made of messages

WORLDS = (2, 3, 5, 7, 1)
"""Worlds that are tried. One rank comes last: it has no peer, and would say less about a mistake."""
POWERS_OF_TWO = (2, 4, 8)  # worlds in which dividing by N and multiplying by N give back the same bits
PROCESSES = 3
PROGRAM_SECONDS = 30.0  # time limit for the messages, on a busy machine
BOUND = 1e-12


class OneWay:
    """A `Comm` that can send and receive, but not both at once; the wrapped one no longer can either."""

    OFFERS = ("rank", "world_size", "send", "recv", "sendrecv")

    def __init__(self, comm: Comm) -> None:
        self.rank, self.world_size = comm.rank, comm.world_size
        self.send, self.recv = comm.send, comm.recv
        comm.sendrecv = self.sendrecv  # type: ignore[method-assign]  # comm.send.__self__ would give access

    def sendrecv(self, send: object, to: int, recv: object, source: int, op: Op = "copy") -> None:
        error = TypeError("this task is about send and recv: sendrecv is not to be used")
        error.line = line_of_caller(1)  # type: ignore[attr-defined]  # of the answer, not this one
        raise error


def _together(answer: Program, rows: NDArray[Any]) -> list[NDArray[Any]]:
    return run(lambda comm, x: answer(OneWay(comm), x), list(rows))


def _recorded(answer: Program, world: int, size: int) -> Schedule:
    """Record the messages. Recording compares them with the buffer, so the mean becomes a sum again."""

    def total(comm: Comm, x: NDArray[Any]) -> None:
        answer(OneWay(comm), x)
        x *= comm.world_size

    return record(total, world, size)


def _on_this_rank(answer: Program, x: NDArray[Any]) -> NDArray[Any]:
    from dpbook.ranks import ProcessComm

    answer(OneWay(ProcessComm()), x)
    return x


def _in_processes(answer: Program, rows: NDArray[Any]) -> list[NDArray[Any]]:
    return start(_on_this_rank, [(answer, row) for row in rows], timeout=PROGRAM_SECONDS, echo=False)


def _mean(answer: Answer, rng: np.random.Generator, world: int, size: int) -> tuple[NDArray[Any], list[NDArray[Any]]]:
    """Draw one row per rank, check the ranks' results in one process, their mean, and return both."""
    rows, where = rng.normal(size=(world, size)), f"world {world}, size {size}"
    got: list[NDArray[Any]] = call(answer, rows, through=_together, where=where)
    for rank, result in enumerate(got):
        expect_close(rows.mean(axis=0), result, BOUND, f"{where}, rank {rank}", axes=("element",))
    return rows, got


def any_world(answer: Answer, rng: np.random.Generator) -> ParResult:
    for world in WORLDS:
        for size in (3 * world + 2, 1):
            _mean(answer, rng, world, size)
    for world in POWERS_OF_TWO:
        size, where = 12 * world, f"world {world}, size {12 * world}, recorded"
        recorded = expect_schedule(call(answer, world, size, through=_recorded, where=where), world, where=where)
        par = 2 * (world - 1) * 12 * 8
        reached = expect_at_most(par, count(recorded, size, 8).busiest_bytes, "byte(s) per rank", where)
    return replace(reached, of=", on 8 ranks").with_schedule(recorded)


def processes(answer: Answer, rng: np.random.Generator) -> str:
    """Check processes; one process first, since processes start slowly and say less about a mistake."""
    rows, expected = _mean(answer, rng, PROCESSES, 100)
    where = f"{PROCESSES} real processes"
    got = (
        expected
        if answer.ranks_are_processes
        else call(answer, rows, through=_in_processes, seconds=math.inf, where=where)
    )
    for rank in range(PROCESSES):
        expect_equal(expected[rank], got[rank], f"{where} against one, rank {rank}", axes=("element",))
    return f"{PROCESSES} processes, and the bits of one"


# 09.2: the rank at fault

DRAWN_PER_KIND = 8


def shown(case: LoggedStep) -> str:
    """Describe the calls of the rank at fault and of one other rank from the fault on; without a fault, one log."""
    if case.fault is None:
        return f"each with {_listed(case.logs[0])}; the lines differ"
    rank, position, _ = case.fault
    faulty, other = (_listed(case.logs[r][position : position + 2]) for r in (rank, (rank + 1) % len(case.logs)))
    return f"from call {position} on rank {rank} has {faulty}; the others have {other}"


def _listed(log: Log) -> str:
    calls = [
        f"{call['call']} {call['shape']} {call['dtype']}"
        + ("" if call["source"] is None else f" from {call['source']}")
        for call in log
    ]
    return ", ".join(calls) or "nothing more"


def _diagnosed(answer: Answer, rng: np.random.Generator) -> Iterator[tuple[str, tuple[int, int, str], Any]]:
    """Yield the faults of random logs with the answer's three values, and check None for logs without a fault."""
    kinds = [kind for kind in (*KINDS, None) for _ in range(DRAWN_PER_KIND)]
    drawn = [draw(rng, int(rng.choice([3, 5, 7])), k, n % DRAWN_PER_KIND == 0) for n, k in enumerate(kinds)]
    for case in (*drawn, like_the_next(rng, 3)):
        where = f"{len(case.logs)} ranks, {shown(case)}"
        got = call(answer, case.logs, where=where, unchanged=True)
        if case.fault is None:
            expect(got is None, "None: all ranks make the same calls", repr(got), where)
        else:
            yield where, case.fault, expect_items(got, 3, "a rank, a position and what is wrong", where)


def where_it_differs(answer: Answer, rng: np.random.Generator) -> None:
    for where, (rank, position, kind), got in _diagnosed(answer, rng):
        expected = f"rank {rank}, position {position} ({kind})"
        expect((got[0], got[1]) == (rank, position), expected, f"rank {got[0]}, position {got[1]}", where)


def what_is_wrong(answer: Answer, rng: np.random.Generator) -> str:
    cases = 0
    for where, fault, got in _diagnosed(answer, rng):
        expect(tuple(got) == fault, repr(fault), repr(tuple(got)), where)
        cases += 1
    return f"{cases} faults diagnosed"
