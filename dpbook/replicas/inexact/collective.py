"""Collectives whose messages are rounded: the schedule decides how often, and where.

An algebra for the one interpreter of schedules. Every message is rounded to the wire's format when it is sent, and who
sends a number keeps it as sent, so that two ranks that exchange theirs add the same two. What a collective returns has
the wire's format as well: a rank that completed a sum itself must not know it better than those that it sent it to.
"""

from collections import deque

import numpy as np

from dpbook import collectives
from dpbook.collectives import Round, Schedule
from dpbook.replicas.array import Array
from dpbook.replicas.inexact.precision import Format
from dpbook.replicas.method import gathering


def all_reduce(
    schedule: Schedule,
    rows: Array,
    wire: Format,
    accumulate: Format | None = None,
    rng: np.random.Generator | None = None,
) -> Array:
    """Sum ``rows`` over the ranks by messages in the format ``wire``.

    Args:
        schedule: an all-reduce for the world.
        rows: (world, size), floats.
        accumulate: the format of sums on a rank, rounded to after each addition; by default that of the wire.
        rng: if given, what is sent is rounded up or down at random, without bias.

    Returns:
        float64 (world, size): row r is the sum that rank r computes from what it receives, rounded to ``wire``.
    """
    cells = _Rounded(schedule, rows, wire, accumulate or wire, rng)
    deque(collectives.interpret(schedule, cells), maxlen=0)
    return cells.rows()


def all_gather(rows: Array, wire: Format, rng: np.random.Generator | None = None) -> Array:
    """Send every rank's row of ``rows`` (world, size) round a ring in the format ``wire``: one message, rounded once.

    Returns:
        float64 (world, world, size): item [r, s] is what rank r has of rank s.
    """
    world = len(rows)
    schedule = gathering((rows.shape[1],) * world)
    buffers = np.zeros((world, world, rows.shape[1]))
    buffers[np.arange(world), np.arange(world)] = rows
    cells = _Rounded(schedule, buffers.reshape(world, -1), wire, wire, rng)
    deque(collectives.interpret(schedule, cells), maxlen=0)
    return cells.rows().reshape(buffers.shape)


class _Rounded:
    """Cells of numbers as an array (world, n_chunks, longest chunk), the shorter chunks filled up with zeros."""

    def __init__(
        self, schedule: Schedule, rows: Array, wire: Format, accumulate: Format, rng: np.random.Generator | None
    ) -> None:
        self.wire, self.accumulate, self.rng = wire, accumulate, rng
        lengths = np.diff(schedule.bounds(rows.shape[1], wire.nbytes))
        self.used = np.arange(lengths.max()) < lengths[:, None]
        self.cells = np.zeros((len(rows), *self.used.shape))
        self.cells[:, self.used] = rows

    def read(self, part: Round, within: Round) -> Array:
        sent = part.source, part.chunk
        cells = self.cells[sent]
        self.cells[sent] = self.wire.round(cells, self._noise(cells.shape))
        return self.cells[sent]  # read again: who sends one cell twice sends the same numbers

    def add(self, part: Round, payload: Array) -> None:
        mine = part.dest, part.chunk
        self.cells[mine] = self.accumulate.round(self.cells[mine] + payload)

    def put(self, part: Round, payload: Array) -> None:
        self.cells[part.dest, part.chunk] = payload

    def rows(self) -> Array:
        """Each rank's buffer, rounded once more: with the same noise on all ranks, so that equals stay equal."""
        rounded = self.wire.round(self.cells, self._noise(self.used.shape))
        return rounded[:, self.used]

    def _noise(self, shape: tuple[int, ...]) -> Array | None:
        return None if self.rng is None else self.rng.random(shape)
