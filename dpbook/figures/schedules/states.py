"""States of a schedule after every round: numbers, contributions in them, and descriptions of both in words."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpbook.collectives import Message, Round, Schedule, Traffic, count, frames, interpret
from dpbook.collectives.schedule import BoolArray, check_schedule
from dpbook.core import InvalidArgument, bytes_in_words, check_int, plural

MAX_RANKS = 32
MAX_CHUNKS = 64
MAX_ROUNDS = 1000
MAX_COUNT = 99
"""Contributions that are in a cell more often than this are counted as this."""
MOST_MESSAGES = 8
"""Messages that an alternative text describes one by one."""

Kind = Literal["own", "partial", "complete", "fault", "unknown", "empty"]
"""Content of a cell: one contribution, some, all exactly once, one or more twice or more often, nothing for which the
schedule vouches, or no element at all."""
MEANING: dict[Kind, str] = {
    "own": "one contribution", "partial": "partial sum", "complete": "complete sum", "fault": "counted twice",
    "unknown": "nothing promised", "empty": "no elements",
}  # fmt: skip
PARAMETERS = re.compile(r"\((\w+=[^()]*)\)")
HYPHENATED = re.compile("(all|reduce|halving)_(reduce|scatter|gather|doubling)")
"""Terms in names such as ``reduce_scatter`` that are written with a hyphen."""

Counts = NDArray[np.uint8]


class Phase(NamedTuple):
    """Part of a schedule: its name, the ``round`` in it, counted from 1, and its number of ``rounds``."""

    name: str
    round: int
    rounds: int


@dataclass(frozen=True, eq=False)
class State:
    """State of all ranks after ``index`` rounds.

    ``counts`` says how often the contribution of rank j is in rank r's copy of chunk c, uint8 (world, n_chunks, world).
    ``known`` says whether the schedule defines the content of that copy, bool (world, n_chunks). ``expected`` says
    which contributions a complete sum has, bool (n_chunks, world). ``values`` has a short text per cell. ``messages``
    are those of the last round that carry elements; ``traffic`` counts from the first round on. ``phase`` is the part
    of the schedule to which the last round belongs, if it has two parts.
    """

    schedule: Schedule
    offsets: NDArray[np.int64]
    index: int
    messages: tuple[Message, ...]
    values: list[list[str]]
    counts: Counts
    known: BoolArray
    expected: BoolArray
    traffic: Traffic
    phase: Phase | None = None

    @cached_property
    def kinds(self) -> list[list[Kind]]:
        """Kind of each cell: ``kinds[rank][chunk]``."""
        conditions = {
            "empty": np.broadcast_to(np.diff(self.offsets) == 0, self.known.shape),
            "unknown": ~self.known,
            "fault": (self.counts > 1).any(axis=2),
            "complete": ((self.counts == 1) == self.expected).all(axis=2),
            "own": self.counts.sum(axis=2) == 1,
        }
        kinds: list[list[Kind]] = np.select(list(conditions.values()), list(conditions), "partial").tolist()
        return kinds

    def number_of(self, kind: Kind) -> int:
        """Return the number of cells of one kind."""
        return sum(row.count(kind) for row in self.kinds)


def demonstration(schedule: Schedule, size: int | None = None) -> NDArray[np.int32]:
    """Return buffers (world, size) whose digits show the contributions: rank r contributes ``10**r`` to every element.

    A correct sum of 4 ranks reads 1111 and a double count 1211. If the schedule says that a rank already holds a sum,
    it begins with that sum; if it says nothing of a rank, with 0. The world has up to 9 ranks; by default a buffer has
    one element per chunk.
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
    """Return the states before the first round and after each one.

    ``buffers`` are one 1-D array per rank, by default `demonstration` (from 10 ranks on: zeros). Raises
    `InvalidArgument` for a schedule that is too large to be drawn, and the errors of `simulate`.
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
    """Return the phase of each state if a schedule first adds, then stores; its name says how many ranks have sums."""
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
    """Yield the states of two folds over the same rounds, one over numbers and one over contributors."""
    numbers = frames(schedule, buffers)
    first = next(numbers).buffers
    offsets = schedule.bounds(first.shape[1], first.itemsize)
    contributions = _Contributions(schedule)
    traffic = count(replace(schedule, rounds=[]), first.shape[1], first.itemsize)
    content = contributions.counts.copy(), contributions.known.copy(), contributions.expected
    yield State(schedule, offsets, 0, (), _texts(first, offsets), *content, traffic)
    for frame, round_ in zip(numbers, interpret(schedule, contributions), strict=True):
        sent = count(replace(schedule, rounds=[round_]), first.shape[1], first.itemsize)
        nbytes = traffic.sent_bytes + sent.sent_bytes, traffic.received_bytes + sent.received_bytes
        traffic = Traffic(traffic.rounds + 1, traffic.messages + sent.messages, *nbytes)
        messages = tuple(m for m in round_ if offsets[m.chunk] < offsets[m.chunk + 1])
        content = contributions.counts.copy(), contributions.known.copy(), contributions.expected
        yield State(schedule, offsets, frame.index, messages, _texts(frame.buffers, offsets), *content, traffic)


class _Contributions:
    """Cells for the interpreter that count each rank's contributions."""

    def __init__(self, schedule: Schedule) -> None:
        world, n_chunks = schedule.world, schedule.n_chunks
        self.counts = np.zeros((world, n_chunks, world), np.uint8)
        self.known = np.zeros((world, n_chunks), np.bool_)
        self.expected = np.zeros((n_chunks, world), np.bool_)
        for chunk, holding in enumerate(schedule.before):
            for rank, whose in holding.items():
                self.counts[rank, chunk, sorted(whose)] = 1
                self.known[rank, chunk] = True
                self.expected[chunk, sorted(whose)] = True

    def read(self, part: Round, within: Round) -> tuple[Counts, BoolArray]:
        return self.counts[part.source, part.chunk], self.known[part.source, part.chunk]

    def add(self, part: Round, payload: tuple[Counts, BoolArray]) -> None:
        cell = part.dest, part.chunk
        self.counts[cell] = np.minimum(self.counts[cell] + payload[0], MAX_COUNT)
        self.known[cell] &= payload[1]

    def put(self, part: Round, payload: tuple[Counts, BoolArray]) -> None:
        self.counts[part.dest, part.chunk], self.known[part.dest, part.chunk] = payload


def _texts(buffers: NDArray[Any], offsets: NDArray[np.int64]) -> list[list[str]]:
    return [[_text(row[begin:end]) for begin, end in pairwise(offsets.tolist())] for row in buffers]


def _text(values: NDArray[Any]) -> str:
    """Return the number that all elements equal, or the first one and an ellipsis."""
    if values.size == 0:
        return ""
    first = values[0].item()
    whole = not isinstance(first, complex) and abs(first) < 1e9 and first == int(first)
    shown = str(int(first)) if whole else f"{first:.3g}" if isinstance(first, float | complex) else str(first)
    return shown if (values == values[0]).all() else f"{shown} …"


def kind_name(schedule: Schedule) -> str:
    """Return the name of a schedule without its size: ``parameter_server(world=8)`` is "parameter server"."""

    def without_world(match: re.Match[str]) -> str:
        others = [part.replace("=", " ") for part in match[1].split(", ") if not part.startswith("world=")]
        return f" ({', '.join(others)})" if others else ""

    return HYPHENATED.sub(r"\1-\2", PARAMETERS.sub(without_world, schedule.name)).replace("_", " ").strip()


def schedule_name(schedule: Schedule) -> str:
    """Return a schedule's name and size, "parameter server, 8 ranks"; a name without parameters stays as it is."""
    size = f", {plural(schedule.world, 'rank')}" if PARAMETERS.search(schedule.name) else ""
    return kind_name(schedule) + size


def sentence(words: str) -> str:
    """Return ``words`` with a capital at the beginning."""
    return words[:1].upper() + words[1:]


def chunk_name(chunk: int, n_chunks: int) -> str:
    """Return a chunk's letter, which cannot be mistaken for a rank, or its number if there are over 26 chunks."""
    return chr(ord("a") + chunk) if n_chunks <= 26 else str(chunk)


def headline(state: State) -> str:
    """Return the title of the picture. Rounds are counted from 1, as in "all-gather, round 1 of 3"."""
    total, index = len(state.schedule.rounds), state.index
    if state.phase:
        name, number, rounds = state.phase
        return f"{name.capitalize()}, round {number} of {rounds}: {_finding(state)}"
    position = f"Round {index} of {total}" if index else f"Before round 1 of {total}" if total else "No rounds"
    return f"{position}: {_finding(state)}"


def _finding(state: State) -> str:
    cells = sum(len(row) for row in state.kinds) - state.number_of("empty")
    complete, fault = state.number_of("complete"), state.number_of("fault")
    if not cells:
        return "the buffers are empty"
    if cells == 1:
        finding = "the only cell is complete" if complete else "the only cell is not complete"
    elif complete in (0, cells):
        finding = f"all {cells} cells are complete" if complete else "no cell is complete"
    else:
        finding = f"{complete} of {cells} cells are complete"
    if fault:
        finding += f"; {fault} {'counts' if fault == 1 else 'count'} a contribution twice"
    return finding


def moves(state: State) -> str:
    """Describe the last round in one line."""
    if state.index == 0:
        return "nothing has been sent"
    if not state.messages:
        return "nothing is sent"
    if len(state.messages) == 1:
        return describe_message(state.messages[0], state.schedule.n_chunks)
    added = sum(m.reduce for m in state.messages)
    uses = (added, "added"), (len(state.messages) - added, "stored")
    return ", ".join(f"{plural(n, 'chunk')} {'is' if n == 1 else 'are'} sent and {verb}" for n, verb in uses if n)


def describe_message(message: Message, n_chunks: int) -> str:
    """Describe one message in a sentence."""
    name, verb = chunk_name(message.chunk, n_chunks), "adds" if message.reduce else "stores"
    return f"rank {message.source} sends chunk {name} to rank {message.dest}, which {verb} it"


def alt_text(state: State) -> str:
    """Return the alternative text of the picture: title, messages, totals."""
    messages = [describe_message(m, state.schedule.n_chunks) for m in state.messages[:MOST_MESSAGES]]
    if len(state.messages) > MOST_MESSAGES:
        messages.append(f"{len(state.messages)} messages in all")
    sent = "; ".join(messages) or moves(state)
    name = sentence(schedule_name(state.schedule))
    return f"{name}. {headline(state)}. {sentence(sent)}. {totals(state)}."


def totals(state: State) -> str:
    """Count messages and bytes from the first round on."""
    sent = state.traffic.sent_bytes.tolist()
    messages = plural(state.traffic.messages, "message", ",")
    whole, most = bytes_in_words(sum(sent)), bytes_in_words(max(sent))
    per_rank = f"each rank has sent {most}" if len(set(sent)) == 1 else f"no rank has sent more than {most}"
    return f"So far {messages} and {whole} in all; {per_rank}"


def description(state: State) -> str:
    """Describe every cell, rank by rank."""
    n_chunks = state.schedule.n_chunks
    names = [chunk_name(chunk, n_chunks) for chunk in range(n_chunks)]
    ranks = []
    for rank, row in enumerate(zip(state.values, state.kinds, strict=True)):
        cells = (f"{name} {value or '–'} ({MEANING[kind]})" for name, value, kind in zip(names, *row, strict=True))
        ranks.append(f"Rank {rank}: {'; '.join(cells)}.")
    return " ".join(ranks)
