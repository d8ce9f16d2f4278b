"""Checks of exercise 05: a wrong ring, a price read backwards, a schedule, a rank program, a fault."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpbook import collectives
from dpbook.book.ch05 import CASE, broken_ring, fault
from dpbook.classroom import (
    Answer,
    Numbers,
    ParResult,
    Wrong,
    call,
    expect,
    expect_at_most,
    expect_equal,
    expect_items,
    expect_schedule,
    known_mistake,
    value,
)
from dpbook.collectives import Schedule, complete_on, ring

WORLDS = (1, 2, 5, 7, 16)
POWERS_OF_TWO = (1, 2, 4, 8, 16)
PROGRAM_WORLDS = (2, 5, 7, 8, 1)
"""Worlds of rank programs, whose ranks may be processes. One rank has no peer, and would say less about a mistake."""

# 05.1: debug the ring


def _states(function: Callable[..., Any], buffers: list[NDArray[Any]]) -> list[Any] | None:
    """Return the answer's states half-way and at the end: arrays (world, size), or lists if shapes differ."""
    returned = function(buffers)
    if returned is None:
        return returned
    states = []
    for state in returned:
        rows = [np.asarray(row) for row in state]
        states.append(np.stack(rows) if rows and all(row.shape == rows[0].shape for row in rows) else rows)
    return states


def _returned(answer: Answer, buffers: list[NDArray[Any]], where: str, *, unchanged: bool = False) -> Sequence[Any]:
    """Return the answer's two states."""
    got = call(answer, buffers, through=_states, unchanged=unchanged, where=where, by_hand=(buffers,))
    return expect_items(got, 2, "a pair: (half-way, end)", where)


def ring_of(answer: Answer, rng: np.random.Generator, *, sizes: Callable[[int], list[int]]) -> None:
    """Check the ring on each world, with the sizes of ``sizes(world)``."""
    for world in WORLDS:
        for size in sizes(world):
            buffers = [rng.integers(-99, 100, size) for _ in range(world)]
            where = f"world {world}, size {size}"
            got = _returned(answer, buffers, where)
            half = np.asarray(collectives.simulate(collectives.reduce_scatter(world), buffers).buffers)
            end = np.tile(np.sum(buffers, axis=0), (world, 1))
            same = {"Half-way it is already the end: copy the arrays before the second half changes them.": end}
            expect_equal(half, got[0], f"{where}, half-way", axes=("rank", "element"), mistakes=same)
            expect_equal(end, got[1], f"{where}, at the end", axes=("rank", "element"))


ring_of_even_chunks = partial(ring_of, sizes=lambda world: [world, 3 * world])
ring_of_uneven_chunks = partial(ring_of, sizes=lambda world: [3 * world + 1, 10 * world - 1])
ring_of_empty_chunks = partial(ring_of, sizes=lambda world: [1, max(1, world - 1)])


def inputs_stay(answer: Answer, rng: np.random.Generator) -> None:
    """Check that the inputs do not change; other checks judge the result."""
    _returned(answer, [rng.integers(0, 9, 6) for _ in range(3)], "world 3, size 6", unchanged=True)


# 05.2: the price, read backwards


def _price_text(numbers: tuple[int, int]) -> list[str]:
    world, buffer = numbers
    sent, quarter = 2 * (world - 1) * buffer // world, buffer // 4
    return [f"a gradient of {buffer:,} bytes", f"counts {sent:,} bytes sent", f"size={quarter:_}"]


PRICE = Numbers(
    "05.2",
    (16, 256_000_000),
    lambda: [(world, world * m * 10**6) for world in (5, 8, 10, 12, 20, 24, 25, 32, 40) for m in (4, 8, 12, 20)],
    _price_text,
    lambda numbers: (numbers[0], 2 * (numbers[0] - 1)),
)
"""Ranks and bytes of the buffer, which the ranks divide, so that the bytes of a rank are whole."""


def _predicted(answer: Answer, index: int) -> Any:
    return expect_items(value(answer), 2, "two numbers: (ranks, rounds)")[index]


def ranks(answer: Answer, rng: np.random.Generator) -> None:
    world = _predicted(answer, 0)
    right, buffer = PRICE.now
    sent = 2 * (right - 1) * buffer // right
    expect(world == right, f"a world in which every rank sends {sent:,} bytes", f"{world!r}")


def rounds(answer: Answer, rng: np.random.Generator) -> None:
    rounds = _predicted(answer, 1)
    world, _ = PRICE.now
    right = len(ring(world).rounds)
    mistakes = {
        "These are the rounds of one half: reduce-scatter and all-gather have as many each.": right // 2,
        "Each half has a round less than there are ranks: a rank sends nothing to itself.": 2 * world,
    }
    what = "the rounds of both halves of the ring"
    expect(rounds == right, what, f"{rounds!r}", why=known_mistake(rounds, mistakes))


# 05.3: a schedule in log2(N) rounds


def _schedules(answer: Answer) -> Iterator[tuple[int, int, Schedule]]:
    """Yield a world, its log2, and a valid schedule of one chunk with that many rounds."""
    for world in POWERS_OF_TWO:
        where = f"world {world}"
        schedule = expect_schedule(call(answer, world, where=where), world)
        expect(schedule.n_chunks == 1, "one chunk", f"{schedule.n_chunks} chunks", where)
        par = world.bit_length() - 1
        expect_at_most(par, len(schedule.rounds), "round(s)", where)
        yield world, par, schedule


def par_rounds(answer: Answer, rng: np.random.Generator) -> str:
    world, rounds, schedule = list(_schedules(answer))[-1]
    drifts = "; ranks add in different orders, so replicas would drift in their last bits"
    return f"{world} ranks in {rounds} rounds" + ("" if collectives.agreement(schedule).agrees else drifts)


def par_bytes(answer: Answer, rng: np.random.Generator) -> ParResult:
    for world, par, schedule in _schedules(answer):
        sent = collectives.count(schedule, 1, 1).busiest_bytes
        reached = expect_at_most(par, sent, "buffer(s) sent or received by one rank", f"world {world}")
    return replace(reached, of=" for 16 ranks").with_schedule(schedule)


# 05.4: a rank program


def _owning(answer: Answer, sizes: Callable[[int], list[int]]) -> Iterator[tuple[str, int, int, Schedule]]:
    """Yield recordings, after a check that each leaves the right chunk complete on the right rank."""
    for world in PROGRAM_WORLDS:
        for size in sizes(world):
            where = f"world {world}, size {size}"
            by_hand = f"collectives.record(reduce_scatter, {world}, {size})"
            recorded = call(answer, world, size, through=collectives.record, where=where, by_hand=by_hand, once=True)
            # The right placement: rank r ends with the r-th part of the even split, which may be several chunks.
            even: NDArray[np.int64] = np.array_split(np.arange(size), world)  # type: ignore[assignment]
            owner = np.repeat(np.arange(world), [len(part) for part in even])
            after = tuple(complete_on([int(owner[begin])], world) for begin in recorded.bounds(size, 8)[:-1])
            expect_schedule(replace(recorded, after=after), world, after=after, where=where)
            yield where, world, size, recorded


def ownership(answer: Answer, rng: np.random.Generator, *, sizes: Callable[[int], list[int]]) -> None:
    list(_owning(answer, sizes))


owners = partial(ownership, sizes=lambda world: [12 * world])
owners_of_any_size = partial(ownership, sizes=lambda world: [1, 3 * world + 2])


def program_bytes(answer: Answer, rng: np.random.Generator) -> ParResult:
    notes = dict[int, ParResult]()
    for where, world, size, recorded in _owning(answer, lambda world: [world * 12]):
        sent = collectives.count(recorded, size, 8).busiest_bytes
        notes[world] = expect_at_most((world - 1) * 12 * 8, sent, "byte(s) per rank", where)
    world = max(PROGRAM_WORLDS)
    return replace(notes[world], of=f" for {12 * world} numbers on {world} ranks")


# 05.5: find the fault


FAULT = Numbers(
    "05.5",
    CASE,
    lambda: range(20),
    lambda case: ["broken_ring()" if case == CASE else f"broken_ring(case={case})"],
    lambda case: (fault(case)[0] + 1, *_receiver(case)),
)


def _receiver(case: int) -> tuple[int, int]:
    """Return the rank that receives the stored message, and its chunk."""
    number, chunk = fault(case)
    (rank,) = (m.dest for m in ring(5).rounds[number] if m.chunk == chunk)
    return rank, chunk


def _located(answer: Answer) -> tuple[Any, Any, Any]:
    when, rank, chunk = expect_items(value(answer), 3, "three numbers: (round, rank, chunk)")
    return when, rank, chunk


def when(answer: Answer, rng: np.random.Generator) -> None:
    named, number = _located(answer)[0], fault(FAULT.now)[0]
    why = "Are your rounds counted from 1, as the viewer counts them?" if named == number else ""
    expected = "the round whose message is stored, not added; the first is 1"
    expect(named == number + 1, expected, f"round {named!r}", why=why)


LOST_ELSEWHERE = "There a contribution is missing at the end; it was lost on the rank that received the message."


def where(answer: Answer, rng: np.random.Generator) -> None:
    _, rank, chunk = _located(answer)
    if (rank, chunk) != _receiver(FAULT.now):
        lost = collectives.find_fault(broken_ring(FAULT.now))
        why = LOST_ELSEWHERE if lost and (rank, chunk) == (lost.rank, lost.chunk) else ""
        expected = "the rank that receives the message which is stored, and the chunk in it; the first of each is 0"
        raise Wrong(expected, f"rank {rank!r}, chunk {chunk!r}", why=why)
