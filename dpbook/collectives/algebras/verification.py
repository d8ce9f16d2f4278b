"""Verification: whether a schedule keeps its promise, by counting contributions, and the explanation of a fault.

The interpreter runs over sets of contributors: a bitset per cell, and a flag for a fault. A contribution that is added
twice sets the flag. The flag travels with the data and is lost if the cell is overwritten, so only faults that reach a
promised result count. The one chunk that fails is then replayed message by message, with exact counts and a record of
events, to explain the fault.
"""

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpbook.collectives.algebras.interpreter import interpret
from dpbook.collectives.schedule.chunks import Holding
from dpbook.collectives.schedule.rounds import BoolArray, IntArray, LazyRounds, Round
from dpbook.collectives.schedule.schedule import Schedule, check_schedule
from dpbook.core import InvalidArgument, ScheduleError, ranks_in_words

Kind = Literal["lost", "double", "unknown", "surplus"]


@dataclass(frozen=True)
class Fault:
    """One chunk of one rank whose final content is not the promised one.

    ``kind`` is "lost" (contributions are missing), "double" (some are counted twice), "unknown" (a value without a
    defined content was added), or "surplus" (it has more contributions than promised). ``round`` is the index of the
    round of the fault, or None if a loss has no single round. ``contributors`` are the ranks of the contributions
    concerned. ``str`` gives the explanation, which counts rounds from 1, as the pictures do.
    """

    kind: Kind
    chunk: int
    rank: int
    round: int | None
    contributors: tuple[int, ...]
    explanation: str

    def __str__(self) -> str:
        return self.explanation


class _Event(NamedTuple):
    round: int
    source: int
    dest: int
    ranks: tuple[int, ...]  # the contributors that were doubled or discarded


@dataclass
class _Cell:
    """One rank's copy: the count of each contribution in it, and the first event that spoilt it."""

    counts: Counter[int] = field(default_factory=Counter)
    doubled: _Event | None = None
    unknown: _Event | None = None

    def copy(self) -> "_Cell":
        return _Cell(self.counts.copy(), self.doubled, self.unknown)


class _Ledger:
    """All ranks' copies of one chunk, and every overwrite that discarded contributions."""

    def __init__(self, schedule: Schedule, chunk: int) -> None:
        self.round = -1
        self.overwrites: list[_Event] = []
        before = schedule.before[chunk]
        self.known = [rank in before for rank in range(schedule.world)]
        self.cells = [_Cell(Counter(dict.fromkeys(before.get(rank, ()), 1))) for rank in range(schedule.world)]

    def read(self, part: Round, within: Round) -> list[tuple[_Cell, bool]]:
        return [(self.cells[source].copy(), self.known[source]) for source in part.source]

    def add(self, part: Round, payload: list[tuple[_Cell, bool]]) -> None:
        for message, (sent, known) in zip(part, payload, strict=True):
            mine = self.cells[message.dest]
            twice = tuple(sorted(mine.counts.keys() & sent.counts.keys()))
            if not (known and self.known[message.dest]):
                mine.unknown = mine.unknown or _Event(self.round, message.source, message.dest, ())
            mine.unknown = mine.unknown or sent.unknown
            mine.doubled = mine.doubled or sent.doubled
            if twice and mine.doubled is None:
                mine.doubled = _Event(self.round, message.source, message.dest, twice)
            mine.counts += sent.counts

    def put(self, part: Round, payload: list[tuple[_Cell, bool]]) -> None:
        for message, (sent, known) in zip(part, payload, strict=True):
            discarded = tuple(sorted(self.cells[message.dest].counts.keys() - sent.counts.keys()))
            if discarded:
                self.overwrites.append(_Event(self.round, message.source, message.dest, discarded))
            self.cells[message.dest] = sent
            self.known[message.dest] = known


def explain(schedule: Schedule, chunk: int, rank: int) -> Fault:
    """Explain why ``rank`` does not end with the content of ``chunk`` that ``schedule.after`` promises."""
    ledger = _Ledger(schedule, chunk)
    replay = interpret(_only(schedule, chunk), ledger)
    while True:
        ledger.round += 1
        if next(replay, None) is None:
            break
    cell = ledger.cells[rank]
    promised = schedule.after[chunk][rank]
    missing = tuple(sorted(promised - cell.counts.keys()))
    surplus = tuple(sorted(cell.counts.keys() - promised))
    end = f"rank {rank} ends with chunk {chunk}"
    if cell.doubled is not None:
        e = cell.doubled
        times = ", ".join(f"rank {r}'s {cell.counts[r]} times" for r in e.ranks[:4] if cell.counts[r] > 1)
        return Fault(
            "double", chunk, rank, e.round, e.ranks,
            f"double contribution in round {e.round + 1}: rank {e.source} sends chunk {chunk} to rank {e.dest}, "
            f"which adds it though it already has the contribution of {ranks_in_words(e.ranks)}; "
            f"{end} counting {times}",
        )  # fmt: skip
    if cell.unknown is not None or not ledger.known[rank]:
        e = cell.unknown or _Event(0, rank, rank, ())
        where = f"in round {e.round + 1} rank {e.source} sends chunk {chunk} to rank {e.dest}, which adds it, but"
        reason = f"{where} one of the two holds nothing to rely on" if cell.unknown else "it never gets one"
        return Fault(
            "unknown", chunk, rank, e.round if cell.unknown else None, (), f"{end} without a known sum: {reason}"
        )
    if missing:
        return _explain_loss(ledger, chunk, rank, missing, promised)
    return Fault(
        "surplus", chunk, rank, None, surplus,
        f"{end} holding the contribution of {ranks_in_words(surplus)}, which it should not have",
    )  # fmt: skip


def _explain_loss(ledger: _Ledger, chunk: int, rank: int, missing: tuple[int, ...], promised: frozenset[int]) -> Fault:
    holders = [r for r, cell in enumerate(ledger.cells) if ledger.known[r] and promised <= cell.counts.keys()]
    last = next((e for e in reversed(ledger.overwrites) if set(missing) & set(e.ranks)), None)
    text = (
        f"lost contribution: rank {rank} ends with chunk {chunk} without the contribution of {ranks_in_words(missing)}"
    )
    if last is not None:
        lost = sorted(set(missing) & set(last.ranks))
        text += (
            f"; it was last overwritten in round {last.round + 1}, when rank {last.source} sent the chunk to rank "
            f"{last.dest}, which replaced a copy holding that of {ranks_in_words(lost)}"
        )
    else:
        text += "; no message brings it there"
    if holders:
        text += f"; the complete sum is on {ranks_in_words(holders)}"
    return Fault("lost", chunk, rank, None if last is None else last.round, missing, text)


def _only(schedule: Schedule, chunk: int) -> Schedule:
    """Return the same rounds with the messages of one chunk alone."""

    def make(index: int) -> Round:
        round_ = schedule.rounds[index]
        return round_.select(round_.chunk == chunk)

    return replace(schedule, rounds=LazyRounds(len(schedule.rounds), make))


Bits = NDArray[np.uint64]


@dataclass(frozen=True)
class Verified:
    """Proof that ``schedule`` was replayed and every promised chunk holds each contribution exactly once."""

    schedule: Schedule

    def __repr__(self) -> str:
        return f"verified: {self.schedule!r}"


def verify(schedule: Schedule) -> Verified:
    """Replay ``schedule`` over contributor sets and compare the end with ``schedule.after``.

    The result holds for every input, since no numbers are involved. Raises `ScheduleError`, which explains a fault.
    """
    fault = find_fault(schedule)
    if fault is not None:
        raise ScheduleError(f"{schedule.name}: {fault}")
    return Verified(schedule)


def verify_all_reduce(schedule: Schedule, world: int) -> Verified:
    """Verify that ``schedule`` sums over ``world`` ranks. Raises `InvalidArgument` if it promises anything else."""
    check_schedule(schedule)
    if schedule.world != world:
        raise InvalidArgument("schedule", schedule, f"for {world} ranks")
    if not schedule.is_all_reduce:
        raise InvalidArgument("schedule", schedule, "an all-reduce: partial on every rank, then complete on every rank")
    return verify(schedule)


def find_fault(schedule: Schedule) -> Fault | None:
    """Return the first fault against ``schedule.after``, with its explanation; None if there is none.

    Raises `ScheduleError` if the schedule breaks the rules of a round, `InvalidArgument` if it is no schedule.
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
    """Cells with a bitset of the ranks whose contributions are in it, and a flag that it is no plain sum of these."""

    def __init__(self, schedule: Schedule) -> None:
        self.world, self.n_chunks = schedule.world, schedule.n_chunks
        self.words = -(-self.world // 64)
        self.sets = np.zeros((self.world * self.n_chunks, self.words), np.uint64)
        self.spoilt = np.ones(self.world * self.n_chunks, np.bool_)  # undefined content must not be added
        self._packed: dict[int, tuple[IntArray, Bits]] = {}
        for chunk, holding in enumerate(schedule.before):
            ranks, sets = self._pack(holding)
            self.sets[ranks * self.n_chunks + chunk] = sets
            self.spoilt[ranks * self.n_chunks + chunk] = False

    def _pack(self, holding: Holding) -> tuple[IntArray, Bits]:
        """Return the ranks of a holding, shape (ranks,), and their sets as bits, shape (ranks, words).

        Results are cached by identity, because most chunks share one holding and most ranks of a holding one set.
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
        """Return the ranks whose copy of ``chunk`` does not have the promised contributions."""
        ranks, sets = self._pack(promised)
        cell = ranks * self.n_chunks + chunk
        differs = self.spoilt[cell] | (self.sets[cell] != sets).any(axis=1)
        return [int(rank) for rank in ranks[differs]]


def _bits(members: frozenset[int], words: int) -> Bits:
    flags = np.zeros(64 * words, np.bool_)
    flags[list(members)] = True
    return np.packbits(flags, bitorder="little").view(np.uint64)
