"""What every rank holds after every round: the numbers, and whose contributions are in them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpbook.collectives import Message, Round, Schedule, Traffic, count, frames, interpret
from dpbook.collectives.schedule import BoolArray, check_schedule
from dpbook.core import InvalidArgument, check_int

MAX_RANKS = 32
MAX_CHUNKS = 64
MAX_ROUNDS = 1000
MANY = 99  # a contribution that is in a cell more often than this counts as this

Kind = Literal["own", "partial", "complete", "fault", "unknown", "empty"]
"""What is in a cell: one contribution, some, each exactly once, some of them twice or more, nothing that the schedule
vouches for, or no element at all."""

Counts = NDArray[np.uint8]


class Phase(NamedTuple):
    """A part of a schedule by its name, the ``round`` in it, from 1, and its number of ``rounds``."""

    name: str
    round: int
    rounds: int


@dataclass(frozen=True, eq=False)
class State:
    """All ranks after ``index`` rounds.

    ``held``: how often the contribution of rank j is in rank r's copy of chunk c, uint8 (world, n_chunks, world).
    ``known``: whether the schedule says what is in it, bool (world, n_chunks). ``values``: a short text per cell.
    ``messages`` are those of the last round that carry something; ``traffic`` counts from the first round on.
    ``phase`` is the part of the schedule to which the last round belongs, where it has two.
    """

    schedule: Schedule
    offsets: NDArray[np.int64]
    index: int
    messages: tuple[Message, ...]
    values: list[list[str]]
    held: Counts
    known: BoolArray
    everyone: BoolArray
    traffic: Traffic
    phase: Phase | None = None

    @cached_property
    def kinds(self) -> list[list[Kind]]:
        """The kind of each cell: ``kinds[rank][chunk]``."""
        conditions = {
            "empty": np.broadcast_to(np.diff(self.offsets) == 0, self.known.shape),
            "unknown": ~self.known,
            "fault": (self.held > 1).any(axis=2),
            "complete": ((self.held == 1) == self.everyone).all(axis=2),
            "own": self.held.sum(axis=2) == 1,
        }
        kinds: list[list[Kind]] = np.select(list(conditions.values()), list(conditions), "partial").tolist()
        return kinds

    def number_of(self, kind: Kind) -> int:
        """How many cells are of one kind."""
        return sum(row.count(kind) for row in self.kinds)


def demonstration(schedule: Schedule, size: int | None = None) -> NDArray[np.int32]:
    """Buffers (world, size) in which a number shows what is in it: rank r contributes 10**r to every element.

    A right sum of 4 ranks reads 1111 and a double count 1211. A rank of which the schedule says that it already holds
    a sum begins with that sum, and one of which it says nothing with 0. Up to 9 ranks. ``size``: one element per chunk.
    """
    check_schedule(schedule)
    check_int("world", schedule.world, 1, 9)
    offsets = schedule.bounds(_size(schedule, size), 4)
    buffers = np.zeros((schedule.world, int(offsets[-1])), np.int32)
    for holding, (begin, end) in zip(schedule.before, pairwise(offsets.tolist()), strict=True):
        for rank, whose in holding.items():
            buffers[rank, begin:end] = sum(10**r for r in whose)
    return buffers


def replay(schedule: Schedule, buffers: Any = None, size: int | None = None) -> list[State]:
    """The states before the first round and after each one.

    ``buffers`` are one 1-D array per rank, by default `demonstration` (from 10 ranks on: zeros). Raises
    `InvalidArgument` for a schedule that is too large to be drawn, and what `simulate` raises.
    """
    check_schedule(schedule)
    sizes = {"world": schedule.world, "n_chunks": schedule.n_chunks, "number of rounds": len(schedule.rounds)}
    for (name, value), most in zip(sizes.items(), (MAX_RANKS, MAX_CHUNKS, MAX_ROUNDS), strict=True):
        if value > most:
            raise InvalidArgument(name, value, f"at most {most} to be drawn (verify and count have no such limit)")
    if buffers is not None and size is not None:
        raise InvalidArgument("size", size, "left out where buffers are given")
    if buffers is None and schedule.world <= 9:
        buffers = demonstration(schedule, size)
    elif buffers is None:
        buffers = np.zeros((schedule.world, _size(schedule, size)), np.int32)
    states = list(_states(schedule, buffers))
    return [replace(state, phase=phase) for state, phase in zip(states, _phases(states), strict=True)]


def _phases(states: list[State]) -> list[Phase | None]:
    """Where first sums are made and then stored elsewhere: two phases, named by where the sums are in between."""
    rounds = len(states) - 1
    stores = [any(not m.reduce for m in state.messages) for state in states]
    split = stores.index(True) - 1 if True in stores else 0
    if split < 1 or any(m.reduce for state in states[split + 1 :] for m in state.messages):
        return [None] * len(states)
    kinds = np.array(states[split].kinds)
    chunks = kinds[:, (kinds != "empty").any(axis=0)]
    holders = {rank for rank, row in enumerate(chunks) if "complete" in row}
    if ((chunks == "complete").sum(axis=0) != 1).any():
        return [None] * len(states)
    names = ("reduce", "broadcast") if len(holders) == 1 else ("reduce-scatter", "all-gather")
    first = [Phase(names[0], n, split) for n in range(1, split + 1)]
    return [None, *first, *(Phase(names[1], n, rounds - split) for n in range(1, rounds - split + 1))]


def _size(schedule: Schedule, size: int | None) -> int:
    if size is not None:
        return check_int("size", size, 0)
    return schedule.n_chunks if schedule.bounds.size is None else schedule.bounds.size


def _states(schedule: Schedule, buffers: Any) -> Iterator[State]:
    """Two folds over the same rounds, one over numbers and one over contributors, side by side."""
    numbers = frames(schedule, buffers)
    first = next(numbers).buffers
    offsets = schedule.bounds(first.shape[1], first.itemsize)
    contributions = _Contributions(schedule)
    traffic = count(_of_rounds(schedule, []), first.shape[1], first.itemsize)
    holds = contributions.held.copy(), contributions.known.copy(), contributions.everyone
    yield State(schedule, offsets, 0, (), _texts(first, offsets), *holds, traffic)
    for frame, round_ in zip(numbers, interpret(schedule, contributions), strict=True):
        sent = count(_of_rounds(schedule, [round_]), first.shape[1], first.itemsize)
        bytes_ = traffic.sent_bytes + sent.sent_bytes, traffic.received_bytes + sent.received_bytes
        traffic = Traffic(traffic.rounds + 1, traffic.messages + sent.messages, *bytes_)
        messages = tuple(m for m in round_ if offsets[m.chunk] < offsets[m.chunk + 1])
        holds = contributions.held.copy(), contributions.known.copy(), contributions.everyone
        yield State(schedule, offsets, frame.index, messages, _texts(frame.buffers, offsets), *holds, traffic)


class _Contributions:
    """Cells of the interpreter: how often each rank's contribution is in them."""

    def __init__(self, schedule: Schedule) -> None:
        world, n_chunks = schedule.world, schedule.n_chunks
        self.held = np.zeros((world, n_chunks, world), np.uint8)
        self.known = np.zeros((world, n_chunks), np.bool_)
        self.everyone = np.zeros((n_chunks, world), np.bool_)
        for chunk, holding in enumerate(schedule.before):
            for rank, whose in holding.items():
                self.held[rank, chunk, sorted(whose)] = 1
                self.known[rank, chunk] = True
                self.everyone[chunk, sorted(whose)] = True

    def read(self, part: Round, within: Round) -> tuple[Counts, BoolArray]:
        return self.held[part.source, part.chunk], self.known[part.source, part.chunk]

    def add(self, part: Round, payload: tuple[Counts, BoolArray]) -> None:
        cell = part.dest, part.chunk
        self.held[cell] = np.minimum(self.held[cell] + payload[0], MANY)
        self.known[cell] &= payload[1]

    def put(self, part: Round, payload: tuple[Counts, BoolArray]) -> None:
        self.held[part.dest, part.chunk], self.known[part.dest, part.chunk] = payload


def _of_rounds(schedule: Schedule, rounds: list[Round]) -> Schedule:
    return Schedule(schedule.world, schedule.n_chunks, rounds, schedule.bounds, schedule.before, schedule.after)


def _texts(buffers: NDArray[Any], offsets: NDArray[np.int64]) -> list[list[str]]:
    return [[_text(row[begin:end]) for begin, end in pairwise(offsets.tolist())] for row in buffers]


def _text(values: NDArray[Any]) -> str:
    """The number that all elements are, or the first one and an ellipsis."""
    if values.size == 0:
        return ""
    first = values[0].item()
    whole = not isinstance(first, complex) and abs(first) < 1e9 and first == int(first)
    shown = str(int(first)) if whole else f"{first:.3g}" if isinstance(first, float | complex) else str(first)
    return shown if (values == values[0]).all() else f"{shown} …"
