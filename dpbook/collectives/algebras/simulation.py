"""Simulation: a schedule runs on NumPy buffers in one process."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray

from dpbook.collectives.algebras.interpreter import Cells, interpret
from dpbook.collectives.pricing.schedule_cost import Traffic, count
from dpbook.collectives.schedule.rounds import IntArray, Round
from dpbook.collectives.schedule.schedule import Schedule, check_schedule
from dpbook.core import InvalidArgument, plural

Buffers = Sequence[NDArray[Any]] | NDArray[Any]

SMALL_CHUNK = 4096
"""Bytes. Below this the cost of a message in Python exceeds that of moving its bytes. All messages of a round then move
in one array operation, at the price of one copy into a padded layout."""


@dataclass(frozen=True, eq=False)
class Simulation:
    """Result of a schedule on the buffers of all ranks.

    ``buffers`` has shape (world, size), or is the argument of `simulate` if that was changed in place.
    """

    schedule: Schedule
    buffers: Buffers

    @cached_property
    def traffic(self) -> Traffic:
        """Messages and bytes, counted from the schedule on first use."""
        return count(self.schedule, self.buffers[0].size, self.buffers[0].itemsize)

    @property
    def sent_bytes(self) -> IntArray:
        """Bytes that each rank sent, shape (world,)."""
        return self.traffic.sent_bytes

    def __repr__(self) -> str:
        size, dtype = self.buffers[0].size, self.buffers[0].dtype
        return f"Simulation of {self.schedule.name} on {size} × {dtype}: {self.traffic!r}"


def simulate(schedule: Schedule, buffers: Buffers, *, in_place: bool = False) -> Simulation:
    """Run ``schedule`` on one buffer per rank and return the final buffers.

    ``buffers`` is an array of shape (world, size) or one 1-D array of shape (size,) per rank, of any numeric
    dtype. Sums are taken in the schedule's order and in that dtype, so the result predicts the bits of a real
    run. The buffers are copied unless ``in_place``, which needs them contiguous and writable.
    Raises `InvalidArgument`, and `ScheduleError` if the schedule breaks a rule of schedules.
    """
    rows = check_buffers(schedule, buffers)
    if in_place:
        _check_in_place(buffers)
        result = buffers
    else:
        result = np.stack(rows)
        rows = list(result)
    cells = _cells(schedule, rows)
    deque(interpret(schedule, cells), maxlen=0)
    cells.store()
    return Simulation(schedule, result)


@dataclass(frozen=True, eq=False)
class BufferState:
    """The state after ``index`` rounds: ``buffers`` of shape (world, size), and the last ``round``, if any."""

    index: int
    round: Round | None
    buffers: NDArray[Any]


def frames(schedule: Schedule, buffers: Buffers) -> Iterator[BufferState]:
    """Yield the state before the first round and after each round, computed lazily.

    Every state has a copy of the buffers, which are not changed. Raises `InvalidArgument` for buffers that do not fit.
    """
    rows = list(np.stack(check_buffers(schedule, buffers)))
    cells = _Slices(schedule, rows)
    yield BufferState(0, None, np.stack(rows))
    for index, round_ in enumerate(interpret(schedule, cells), start=1):
        yield BufferState(index, round_, np.stack(rows))


class _Numbers(Cells, Protocol):
    def store(self) -> None:
        """Copy the result back into the rows."""


def _cells(schedule: Schedule, rows: list[NDArray[Any]]) -> _Numbers:
    longest = int(np.diff(schedule.bounds(rows[0].size, rows[0].itemsize)).max())
    padded = schedule.n_chunks * longest
    if longest * rows[0].itemsize < SMALL_CHUNK and 0 < padded <= 4 * (rows[0].size + schedule.n_chunks):
        return _Padded(schedule, rows, longest)
    return _Slices(schedule, rows)


class _Slices:
    """Cells of large chunks: each message is a slice of one row, added to or copied into a slice of another."""

    def __init__(self, schedule: Schedule, rows: list[NDArray[Any]]) -> None:
        offsets = schedule.bounds(rows[0].size, rows[0].itemsize).tolist()
        self.chunks = [[row[a:b] for a, b in pairwise(offsets)] for row in rows]

    def read(self, part: Round, within: Round) -> list[NDArray[Any]]:
        views = [self.chunks[m.source][m.chunk] for m in part]
        return [view.copy() for view in views] if within.reads_what_it_writes() else views

    def add(self, part: Round, payload: list[NDArray[Any]]) -> None:
        for message, values in zip(part, payload, strict=True):
            mine = self.chunks[message.dest][message.chunk]
            np.add(mine, values, out=mine)

    def put(self, part: Round, payload: list[NDArray[Any]]) -> None:
        for message, values in zip(part, payload, strict=True):
            np.copyto(self.chunks[message.dest][message.chunk], values)

    def store(self) -> None:
        """Do nothing: the slices are views of the rows."""


class _Padded:
    """Cells of small chunks, padded to the longest chunk, so that a whole round is one take, add and put.

    A cell is one item of raw bytes, which NumPy gathers and scatters several times faster than short rows.
    """

    def __init__(self, schedule: Schedule, rows: list[NDArray[Any]], longest: int) -> None:
        self.rows, self.n_chunks, self.dtype = rows, schedule.n_chunks, rows[0].dtype
        offsets = schedule.bounds(rows[0].size, rows[0].itemsize)
        lengths = np.diff(offsets)
        # Position in the padded row of each element of a row.
        chunk = np.repeat(np.arange(self.n_chunks), lengths)
        self.position = np.arange(rows[0].size) + (chunk * longest - offsets[:-1][chunk])
        self.padded = np.zeros((len(rows), self.n_chunks * longest), self.dtype)
        for row, wide in zip(rows, self.padded, strict=True):
            wide[self.position] = row
        self.cells = self.padded.view(f"V{longest * self.dtype.itemsize}").reshape(-1)

    def read(self, part: Round, within: Round) -> NDArray[Any]:
        # `walk` has checked the indices; "clip" saves NumPy a second check.
        return self.cells.take(part.source * self.n_chunks + part.chunk, mode="clip")

    def add(self, part: Round, payload: NDArray[Any]) -> None:
        cell = part.dest * self.n_chunks + part.chunk
        mine = self.cells.take(cell, mode="clip")
        numbers = mine.view(self.dtype)
        np.add(numbers, payload.view(self.dtype), out=numbers)
        self.cells[cell] = mine

    def put(self, part: Round, payload: NDArray[Any]) -> None:
        self.cells[part.dest * self.n_chunks + part.chunk] = payload

    def store(self) -> None:
        for row, wide in zip(self.rows, self.padded, strict=True):
            np.take(wide, self.position, out=row, mode="clip")


def check_buffers(schedule: Schedule, buffers: Buffers) -> list[NDArray[Any]]:
    """Return the buffers as arrays. Raises `InvalidArgument` unless they are one per rank, numeric, 1-D, and alike."""
    check_schedule(schedule)
    try:
        rows = [np.asarray(row) for row in buffers]
    except (TypeError, ValueError):  # nothing to iterate over; lists of unequal length
        raise InvalidArgument("buffers", buffers, "one 1-D array per rank") from None
    if len(rows) != schedule.world:
        raise InvalidArgument("buffers", plural(len(rows), "buffer"), f"one buffer per rank, {schedule.world}")
    for rank, row in enumerate(rows):
        if row.ndim != 1:
            raise InvalidArgument(f"buffer of rank {rank}", row, "a 1-D array")
        if row.shape != rows[0].shape or row.dtype != rows[0].dtype:
            expected = f"like that of rank 0, {rows[0].size} × {rows[0].dtype}"
            raise InvalidArgument(f"buffer of rank {rank}", f"{row.size} × {row.dtype}", expected)
    if rows[0].dtype.kind not in "biufc":
        raise InvalidArgument("dtype of buffers", rows[0].dtype, "numeric")
    return rows


def _check_in_place(buffers: Buffers) -> None:
    for rank, row in enumerate(buffers):
        if not (isinstance(row, np.ndarray) and row.flags.writeable and row.flags.c_contiguous):
            raise InvalidArgument(f"buffer of rank {rank}", row, "a writable and contiguous array")
    spans = sorted((*byte_bounds(row), rank) for rank, row in enumerate(buffers))
    for (_, end, rank), (start, _, other) in pairwise(spans):
        if start < end:
            raise InvalidArgument("buffers", f"shared memory in ranks {rank} and {other}", "memory of each rank's own")
