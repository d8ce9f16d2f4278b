"""Why a chunk ends wrong: one chunk replayed message by message, with exact counts and a memory of events."""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from dpbook.collectives.algebras.interpreter import interpret
from dpbook.collectives.schedule.placement import ranks_in_words
from dpbook.collectives.schedule.rounds import LazyRounds, Round
from dpbook.collectives.schedule.schedule import Schedule

Kind = Literal["lost", "double", "unknown", "surplus"]


@dataclass(frozen=True)
class Fault:
    """One chunk of one rank that ends without what was promised.

    ``kind``: "lost" (contributions are missing), "double" (some are counted twice), "unknown" (something was added
    that no rank vouches for), "surplus" (more is in it than was promised). ``round`` is the index of the round in which
    it happened, or None where a loss has no single round; ``contributors`` are the ranks whose contributions are
    concerned. ``str`` gives the explanation, in which rounds are counted from 1, as in the pictures.
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
    """One rank's copy: how often each contribution is in it, and the first event that spoilt it."""

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
    """Say why ``rank`` does not end with what ``schedule.after`` promises of ``chunk``."""
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
    """The same rounds with the messages of one chunk alone."""

    def make(index: int) -> Round:
        round_ = schedule.rounds[index]
        return round_.select(round_.chunk == chunk)

    return replace(schedule, rounds=LazyRounds(len(schedule.rounds), make))
