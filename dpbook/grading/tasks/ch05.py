"""Exercise 05: a wrong ring, a price, a schedule, a rank program."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpbook.collectives import Round, Schedule, complete_on, count, record, reduce_scatter, ring, simulate
from dpbook.grading import (
    Answer,
    Check,
    Task,
    call,
    expect,
    expect_at_most,
    expect_equal,
    expect_schedule,
    value,
)

WORLDS = (1, 2, 5, 7, 16)
POWERS_OF_TWO = (1, 2, 4, 8, 16)

# 05.1: debug the ring


def _states(function: Callable[..., Any], buffers: list[NDArray[Any]]) -> list[Any]:
    """Half-way and at the end: an array (world, size) each, or a list where the rows do not make one."""
    states = []
    for state in function(buffers):
        rows = [np.asarray(row) for row in state]
        states.append(np.stack(rows) if rows and all(row.shape == rows[0].shape for row in rows) else rows)
    return states


def _judge_ring(answer: Answer, buffers: list[NDArray[Any]], **options: Any) -> None:
    world = len(buffers)
    where = f"world {world}, size {len(buffers[0])}"
    got = call(answer, buffers, through=_states, where=where, **options)
    expect(len(got) == 2, "a pair: (half-way, end)", f"{len(got)} values", where)
    half = np.asarray(simulate(reduce_scatter(world), buffers).buffers)
    expect_equal(half, got[0], f"{where}, half-way", axes=("rank", "element"))
    end = np.tile(np.sum(buffers, axis=0), (world, 1))
    expect_equal(end, got[1], f"{where}, at the end", axes=("rank", "element"))


def _ring_of(sizes: Callable[[int], list[int]]) -> Callable[[Answer, np.random.Generator], None]:
    """A check of the ring on each world, with the sizes that ``sizes(world)`` gives."""

    def run(answer: Answer, rng: np.random.Generator) -> None:
        for world in WORLDS:
            for size in sizes(world):
                _judge_ring(answer, [rng.integers(-99, 100, size) for _ in range(world)])

    return run


def _inputs_stay(answer: Answer, rng: np.random.Generator) -> None:
    _judge_ring(answer, [rng.integers(0, 9, 6) for _ in range(3)], unchanged=True)


# 05.2: predict the price

PRICED_WORLD, PRICED_BYTES = 64, 256_000_000


def _predicted(answer: Answer, index: int) -> Any:
    got = value(answer)
    expect(isinstance(got, tuple | list) and len(got) == 2, "two numbers: (rounds, bytes)", repr(got))
    return got[index]


def _rounds(answer: Answer, rng: np.random.Generator) -> None:
    rounds = _predicted(answer, 0)
    expect(rounds == 2 * (PRICED_WORLD - 1), "the rounds of both halves of the ring", f"{rounds}")


def _bytes(answer: Answer, rng: np.random.Generator) -> None:
    nbytes = _predicted(answer, 1)
    expected = 2 * (PRICED_WORLD - 1) * PRICED_BYTES // PRICED_WORLD
    expect(nbytes == expected, "one chunk of the buffer per round", f"{nbytes}")


# 05.3: a schedule in log2(N) rounds


def _schedules(answer: Answer) -> Iterator[tuple[int, int, Schedule]]:
    """World, log2 of it, and a schedule of one chunk and that many rounds that keeps its promise."""
    for world in POWERS_OF_TWO:
        where = f"world {world}"
        schedule = expect_schedule(call(answer, world, where=where), world)
        expect(schedule.n_chunks == 1, "one chunk", f"{schedule.n_chunks} chunks", where)
        par = world.bit_length() - 1
        expect_at_most(par, len(schedule.rounds), "rounds", where)
        yield world, par, schedule


def _par_rounds(answer: Answer, rng: np.random.Generator) -> str:
    return "16 ranks in {1} rounds".format(*list(_schedules(answer))[-1])


def _par_bytes(answer: Answer, rng: np.random.Generator) -> str:
    note = ""
    for world, par, schedule in _schedules(answer):
        sent = count(schedule, 1, 1).busiest_bytes
        note = expect_at_most(par, sent, "buffers sent or received by one rank", f"world {world}")
    return note + " for 16 ranks"


# 05.4: a rank program


def _programs(answer: Answer, sizes: Callable[[int], list[int]]) -> Iterator[tuple[str, int, int, Schedule]]:
    for world in (*WORLDS[1:], 1):  # one rank alone has nobody to send to, and would say less about a mistake
        for size in sizes(world):
            where = f"world {world}, size {size}"
            yield where, world, size, call(answer, world, size, through=record, where=where)


def _owners(schedule: Schedule, world: int, size: int) -> tuple[Any, ...]:
    """Rank r must end with the r-th chunk of the even split; a recording may be cut more finely than that."""
    even: NDArray[np.int64] = np.array_split(np.arange(size), world)  # type: ignore[assignment]
    owner = np.repeat(np.arange(world), [len(part) for part in even])
    return tuple(complete_on([int(owner[begin])], world) for begin in schedule.bounds(size, 8)[:-1])


def _owning(answer: Answer, sizes: Callable[[int], list[int]]) -> Iterator[tuple[str, int, int, Schedule]]:
    """As `_programs`, and each leaves the right chunk complete on the right rank."""
    for where, world, size, recorded in _programs(answer, sizes):
        after = _owners(recorded, world, size)
        expect_schedule(replace(recorded, after=after), world, after=after, where=where)
        yield where, world, size, recorded


def _ownership(sizes: Callable[[int], list[int]]) -> Callable[[Answer, np.random.Generator], None]:
    def run(answer: Answer, rng: np.random.Generator) -> None:
        deque(_owning(answer, sizes), maxlen=0)

    return run


def _program_bytes(answer: Answer, rng: np.random.Generator) -> str:
    note = ""
    for where, world, size, recorded in _owning(answer, lambda world: [world * 12]):
        note = expect_at_most((world - 1) * 12 * 8, count(recorded, size, 8).busiest_bytes, "bytes per rank", where)
    return note + " for 192 numbers on 16 ranks"


# 05.5: find the fault


BROKEN_ROUND, BROKEN_CHUNK = 2, 4


def broken_ring() -> Schedule:
    """A ring of five ranks in which one message is stored where it should be added."""
    rounds = [list(round_) for round_ in ring(5).rounds]
    rounds[BROKEN_ROUND] = [m._replace(reduce=m.chunk != BROKEN_CHUNK) for m in rounds[BROKEN_ROUND]]
    return Schedule(5, 5, [Round.from_messages(messages) for messages in rounds], name="a broken ring")


def _located(answer: Answer) -> tuple[Any, Any, Any]:
    got = value(answer)
    expect(isinstance(got, tuple | list) and len(got) == 3, "three numbers: (round, rank, chunk)", repr(got))
    return got[0], got[1], got[2]


def _when(answer: Answer, rng: np.random.Generator) -> None:
    expect(_located(answer)[0] == BROKEN_ROUND + 1, "another round", f"round {_located(answer)[0]}")


def _where(answer: Answer, rng: np.random.Generator) -> None:
    _, rank, chunk = _located(answer)
    (receiver,) = (m.dest for m in ring(5).rounds[BROKEN_ROUND] if m.chunk == BROKEN_CHUNK)
    expect((rank, chunk) == (receiver, BROKEN_CHUNK), "another rank or chunk", f"rank {rank}, chunk {chunk}")


TASKS = (
    Task(
        id="05.1",
        title="Mend the published ring",
        answer="ring_all_reduce",
        checks=[
            Check(
                "sizes that divide",
                1,
                "A chunk must be added to the same chunk: anything else mixes gradients of different parameters.",
                _ring_of(lambda world: [world, 3 * world]),
            ),
            Check(
                "sizes that do not divide",
                1,
                "Real gradients have no reason to divide by the number of ranks; a tail that is left out stays local.",
                _ring_of(lambda world: [3 * world + 1, 10 * world - 1]),
            ),
            Check(
                "fewer elements than ranks",
                1,
                "A bias of ten elements on sixteen ranks is an everyday case.",
                _ring_of(lambda world: [1, max(1, world - 1)]),
            ),
            Check("inputs unchanged", 1, "The caller may still need the local gradients.", _inputs_stay),
        ],
        hints=[
            "Print the state after the first round of four ranks, and compare it with chapter 05.",
            "Which chunk is sent, and to which chunk is it added? Both must have the same number.",
            "`len(buffer) // n` forgets what is left over: `np.array_split` and `collectives.chunk_bounds` do not.",
        ],
    ),
    Task(
        id="05.2",
        title="Predict the price",
        answer="prediction",
        checks=[
            Check("rounds", 1, "Each round costs a latency; with many ranks that is what hurts.", _rounds),
            Check("bytes", 1, "The bytes of one rank hardly grow with the world: why the ring scales.", _bytes),
        ],
        hints=[
            "Both halves of the ring have the same number of rounds.",
            "In each round a rank sends one chunk, one 64th of the buffer.",
        ],
    ),
    Task(
        id="05.3",
        title="Halve the tree's rounds",
        answer="all_reduce",
        checks=[
            Check("log2(N) rounds", 2, "For small buffers the number of rounds is the price.", _par_rounds),
            Check("bytes", 1, "Rounds can be bought with bytes; here the price is fixed.", _par_bytes),
        ],
        hints=[
            "In each round of a tree half of the ranks or more are idle. Let all of them exchange in pairs.",
            "After the first round each pair agrees; after the second each group of four. Who is whose partner?",
            "In round s rank r exchanges with rank `r ^ 2**s`, and both add.",
        ],
    ),
    Task(
        id="05.4",
        title="A reduce-scatter with PyTorch's owners",
        answer="reduce_scatter",
        checks=[
            Check(
                "rank r owns chunk r",
                1,
                "Two halves of an all-reduce fit together only where they agree on the owners.",
                _ownership(lambda world: [world, 4 * world]),
            ),
            Check(
                "any size",
                1,
                "Uneven and empty chunks are the rule, and a hang or a lost tail is how they show.",
                _ownership(lambda world: [1, 3 * world + 2]),
            ),
            Check("bytes", 1, "Sending whole buffers gives the right sum at N times the price.", _program_bytes),
        ],
        hints=[
            "Begin with the chapter's program. After its first half rank r owns chunk r + 1; by how much are you off?",
            "Let every rank send the chunk before the one that it sends in the chapter.",
            "Use `comm.sendrecv`: a circle in which everyone sends first waits for ever.",
        ],
    ),
    Task(
        id="05.5",
        title="Find the fault",
        answer="fault",
        checks=[
            Check("round", 1, "When: every state before that round is right.", _when),
            Check("rank and chunk", 1, "Where: the other chunks and ranks are not to blame.", _where),
        ],
        hints=[
            "Which contribution is missing at the end, and of which chunk?",
            "A chunk travels round the ring once. Follow that chunk, round by round, in the picture or in the viewer.",
            "`collectives.find_fault(broken)` says it all.",
        ],
    ),
)
