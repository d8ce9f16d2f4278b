"""Decide whether a schedule keeps its promise, by counting contributions.

The interpreter runs over sets of contributors: a bitset per cell and a flag for what went wrong. A contribution
that is added twice is flagged where it happens; the flag travels with the data and is lost where the cell is
overwritten, so only faults that reach a promised result count. The one chunk that fails is then replayed with full
bookkeeping, to say what happened where.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpbook.collectives.algebras.explanation import Fault, explain
from dpbook.collectives.algebras.interpreter import interpret
from dpbook.collectives.schedule.placement import Holding
from dpbook.collectives.schedule.rounds import BoolArray, IntArray, Round
from dpbook.collectives.schedule.schedule import Schedule, check_schedule
from dpbook.core import InvalidArgument, ScheduleError

Bits = NDArray[np.uint64]


@dataclass(frozen=True)
class Verified:
    """Proof that ``schedule`` was replayed and every promised chunk holds each contribution exactly once."""

    schedule: Schedule

    def __repr__(self) -> str:
        return f"verified: {self.schedule!r}"


def verify(schedule: Schedule) -> Verified:
    """Replay ``schedule`` over contributor sets and compare the end with ``schedule.after``.

    Exact for every input: no numbers are involved. Raises `ScheduleError` with the fault's explanation.
    """
    fault = find_fault(schedule)
    if fault is not None:
        raise ScheduleError(f"{schedule.name}: {fault}")
    return Verified(schedule)


def verify_all_reduce(schedule: Schedule, world: int) -> Verified:
    """`verify` that ``schedule`` sums over ``world`` ranks. Raises `InvalidArgument` where it is for something else."""
    check_schedule(schedule)
    if schedule.world != world:
        raise InvalidArgument("schedule", schedule, f"for {world} ranks")
    if not schedule.is_all_reduce:
        raise InvalidArgument("schedule", schedule, "an all-reduce: partial on every rank, then complete on every rank")
    return verify(schedule)


def find_fault(schedule: Schedule) -> Fault | None:
    """The first chunk and rank that does not hold what ``schedule.after`` promises, explained; None if all do.

    Raises `ScheduleError` where the schedule breaks the rules of a round, `InvalidArgument` for what is no schedule.
    """
    check_schedule(schedule)
    cells = _Contributors(schedule)
    deque(interpret(schedule, cells), maxlen=0)
    for chunk, promised in enumerate(schedule.after):
        wrong = cells.ranks_that_differ(chunk, promised)
        if wrong:
            return explain(schedule, chunk, min(wrong))
    return None


class _Contributors:
    """Per cell: the bitset of ranks whose contribution is in it, and a flag that it is no plain sum of those."""

    def __init__(self, schedule: Schedule) -> None:
        self.world, self.n_chunks = schedule.world, schedule.n_chunks
        self.words = -(-self.world // 64)
        self.sets = np.zeros((self.world * self.n_chunks, self.words), np.uint64)
        self.spoilt = np.ones(self.world * self.n_chunks, np.bool_)  # what nobody vouches for must not be added
        self._packed: dict[int, tuple[IntArray, Bits]] = {}
        for chunk, holding in enumerate(schedule.before):
            ranks, sets = self._pack(holding)
            self.sets[ranks * self.n_chunks + chunk] = sets
            self.spoilt[ranks * self.n_chunks + chunk] = False

    def _pack(self, holding: Holding) -> tuple[IntArray, Bits]:
        """The ranks of a holding, shape (ranks,), and their sets as bits, shape (ranks, words).

        Kept by identity, because most chunks share one holding and most ranks of a holding one set.
        """
        if id(holding) not in self._packed:
            sets = {id(whose): whose for whose in holding.values()}
            bits = {key: _bits(whose, self.words) for key, whose in sets.items()}
            rows = [bits[id(whose)] for whose in holding.values()]
            packed = np.array(rows, np.uint64).reshape(len(rows), self.words)
            self._packed[id(holding)] = np.array(list(holding), np.int64), packed
        return self._packed[id(holding)]

    def read(self, part: Round, within: Round) -> tuple[Bits, BoolArray]:
        cell = part.source * self.n_chunks + part.chunk
        return self.sets.take(cell, axis=0, mode="clip"), self.spoilt[cell]

    def add(self, part: Round, payload: tuple[Bits, BoolArray]) -> None:
        sets, spoilt = payload
        cell = part.dest * self.n_chunks + part.chunk
        mine = self.sets.take(cell, axis=0, mode="clip")
        self.spoilt[cell] |= spoilt | (mine & sets).any(axis=1)
        mine |= sets
        self._store(cell, mine)

    def put(self, part: Round, payload: tuple[Bits, BoolArray]) -> None:
        cell = part.dest * self.n_chunks + part.chunk
        self._store(cell, payload[0])
        self.spoilt[cell] = payload[1]

    def _store(self, cell: IntArray, sets: Bits) -> None:
        as_items = f"V{8 * self.words}"  # one item per cell: scattered several times faster than rows
        self.sets.view(as_items).reshape(-1)[cell] = sets.view(as_items).reshape(-1)

    def ranks_that_differ(self, chunk: int, promised: Holding) -> list[int]:
        """The ranks whose copy of ``chunk`` does not hold what was promised."""
        ranks, sets = self._pack(promised)
        cell = ranks * self.n_chunks + chunk
        differs = self.spoilt[cell] | (self.sets[cell] != sets).any(axis=1)
        return [int(rank) for rank in ranks[differs]]


def _bits(members: frozenset[int], words: int) -> Bits:
    flags = np.zeros(64 * words, np.bool_)
    flags[list(members)] = True
    return np.packbits(flags, bitorder="little").view(np.uint64)
