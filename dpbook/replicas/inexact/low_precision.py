"""Gradients in fewer bits: number formats, collectives whose messages are rounded, and the method that uses them.

A format has the values m · 2^q with |m| < 2^digits and q at least ``lowest``, up to its largest. A scaled format gives
its numbers in units of a power of two that is sent with them.

The collectives are an algebra for the one interpreter of schedules, so the schedule decides how often and where a sum
is rounded: once per hop of a ring, twice in all with `dpbook.collectives.two_phase`. Every message is rounded to the
wire's format when it is sent. The sender keeps the rounded number, so that two ranks that exchange numbers add the same
two. The result of a collective has the wire's format too: a rank that completed a sum must not have a more precise one
than the ranks that it sent it to.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from dpbook import collectives
from dpbook.collectives import Round, Schedule
from dpbook.core import InvalidArgument, check_one_of, check_type
from dpbook.replicas.four_phases import check_all_reduce, update
from dpbook.replicas.method import Method, RankGroup, Step, gathering
from dpbook.replicas.networks import Array

SCALE_BYTES, BLOCK_SCALE_BYTES = 4, 1
"""Bytes of a message's scale, a float32, and of a block's, the exponent of a power of two as in OCP's MX formats."""
_EXPONENT = np.int64(0x7FF << 52)  # the bits of a float64 that are left of 2^e ≤ |x| < 2^(e+1) if only 2^e is kept


@dataclass(frozen=True)
class Format:
    """A number format of few bits.

    Attributes:
        name: key in `FORMATS`.
        nbytes: bytes of a number on the wire.
        digits: significant binary digits, the leading one included.
        lowest: the smallest value above 0 is 2^lowest.
        largest: the largest finite value. Larger ones are clipped to it if the format has no infinities.
        infinite: whether larger values become infinite instead.
        scaled: whether every message has a scale, the smallest power of two that makes its largest number fit. That
            costs up to a factor of 2 in resolution against an arbitrary scale, and nothing else: rounded numbers do not
            change when they are rounded and sent again.
        block: numbers that share a scale, as the 32 of OCP's MX formats; by default all numbers of a message do.
    """

    name: str
    nbytes: int
    digits: int
    lowest: int
    largest: float
    infinite: bool = False
    scaled: bool = False
    block: int | None = None

    @property
    def header(self) -> int:
        """Bytes besides the numbers, of a message or, if the format has one, of each ``block`` of it."""
        return 0 if not self.scaled else SCALE_BYTES if self.block is None else BLOCK_SCALE_BYTES

    def round(self, values: ArrayLike) -> Array:
        """Return float64 ``values`` rounded to the nearest of this format, ties to an even last digit.

        The last axis is one message, which has one scale, or one for each block, if the format is scaled.
        """
        exact = np.asarray(values, np.float64)
        if self.scaled and self.block is not None:
            size = exact.shape[-1]
            padding = [(0, 0)] * (exact.ndim - 1) + [(0, -size % self.block)]
            blocks = np.pad(exact, padding).reshape(*exact.shape[:-1], -1, self.block)
            rounded: Array = replace(self, block=None).round(blocks).reshape(*exact.shape[:-1], -1)[..., :size]
            return rounded
        scale = self._scale(exact) if self.scaled else 1.0
        return scale * self._round(exact / scale)

    def _round(self, values: Array) -> Array:
        power = (values.view(np.int64) & _EXPONENT).view(np.float64)
        step = np.clip(power * 2.0 ** (1 - self.digits), 2.0**self.lowest, 2.0**1000)
        limit = np.inf if self.infinite else self.largest
        rounded = np.rint(values / step) * step
        result: Array = np.where(np.abs(rounded) > self.largest, np.copysign(limit, rounded), rounded)
        return result

    def _scale(self, values: Array) -> Array:
        """Return the smallest powers of two (…, 1) that bring all numbers of a message within the format's largest.

        The scale is NaN if a number is not finite. Then the whole message becomes NaN, so that the fault is visible.
        """
        most = np.abs(values).max(axis=-1, keepdims=True, initial=0.0)
        fraction, exponent = np.frexp(most / self.largest)
        scale: Array = np.where(np.isfinite(most), np.ldexp(1.0, exponent - (fraction == 0.5)), np.nan)
        return scale


FORMATS = {
    format.name: format
    for format in (
        Format("fp32", 4, 24, -149, (2 - 2.0**-23) * 2.0**127, infinite=True),
        Format("bf16", 2, 8, -133, (2 - 2.0**-7) * 2.0**127, infinite=True),
        Format("fp16", 2, 11, -24, 65504.0, infinite=True),
        Format("e4m3", 1, 4, -9, 448.0, scaled=True),
        Format("e5m2", 1, 3, -16, 57344.0, scaled=True),
        Format("int8", 1, 8, 0, 127.0, scaled=True),
    )
}
"""Formats by name: IEEE 754's binary32 and binary16, bfloat16, the two FP8 formats of Micikevicius et al., "FP8 Formats
for Deep Learning" (2022), and integers from −127 to 127. Formats of 8 bits are scaled, and saturate."""


def format_of(wire: "str | Format") -> Format:
    """Return the format that ``wire`` is or names. Raises `InvalidArgument`."""
    if isinstance(wire, Format):
        return wire
    if not isinstance(wire, str):
        raise InvalidArgument("wire", wire, f"a Format, or one of {', '.join(FORMATS)}")
    check_one_of("wire", wire, FORMATS)
    return FORMATS[wire]


def bf16(values: ArrayLike) -> Array:
    """Return ``values`` rounded to the nearest bfloat16, ties to even, as an array of float32.

    Values are rounded to float32 first. Raises `InvalidArgument` if one is not finite.
    """
    array = np.asarray(values, np.float32)
    if not np.isfinite(array).all():
        raise InvalidArgument("values", array, "finite numbers")
    return FORMATS["bf16"].round(array).astype(np.float32)


def all_reduce(schedule: Schedule, rows: Array, wire: Format, accumulate: Format | None = None) -> Array:
    """Sum ``rows``, floats (world, size), by messages of ``schedule``, an all-reduce, in the format ``wire``.

    Sums on a rank are rounded to ``accumulate`` (default: the wire's) after each addition. Row r of the result, float64
    (world, size), is the sum that rank r computes from its messages, rounded to ``wire``.
    """
    cells = _RoundedCells(schedule, rows, wire, accumulate or wire)
    deque(collectives.interpret(schedule, cells), maxlen=0)
    return cells.rows()


def all_gather(rows: Array, wire: Format) -> Array:
    """Send every rank's row of ``rows`` (world, size) round a ring in the format ``wire``, rounded once.

    Item [r, s] of the result, float64 (world, world, size), is the row of rank s on rank r.
    """
    world = len(rows)
    schedule = gathering((rows.shape[1],) * world)
    buffers = np.zeros((world, world, rows.shape[1]))
    buffers[np.arange(world), np.arange(world)] = rows
    cells = _RoundedCells(schedule, buffers.reshape(world, -1), wire, wire)
    deque(collectives.interpret(schedule, cells), maxlen=0)
    return cells.rows().reshape(buffers.shape)


class _RoundedCells:
    """Cells of numbers as an array (world, n_chunks, longest chunk); shorter chunks are padded with zeros."""

    def __init__(self, schedule: Schedule, rows: Array, wire: Format, accumulate: Format) -> None:
        self.wire, self.accumulate = wire, accumulate
        lengths = np.diff(schedule.bounds(rows.shape[1], wire.nbytes))
        self.used = np.arange(lengths.max()) < lengths[:, None]
        self.cells = np.zeros((len(rows), *self.used.shape))
        self.cells[:, self.used] = rows

    def read(self, part: Round, within: Round) -> Array:
        index = part.source, part.chunk
        self.cells[index] = self.wire.round(self.cells[index])
        return self.cells[index]  # read again, so that a cell sent twice in a round has the same numbers both times

    def add(self, part: Round, payload: Array) -> None:
        index = part.dest, part.chunk
        self.cells[index] = self.accumulate.round(self.cells[index] + payload)

    def put(self, part: Round, payload: Array) -> None:
        self.cells[part.dest, part.chunk] = payload

    def rows(self) -> Array:
        """Return each rank's buffer, rounded to the wire's format."""
        return self.wire.round(self.cells)[:, self.used]


@dataclass(frozen=True, repr=False)
class LowPrecision(Method):
    """The exact loop with an all-reduce whose messages are in the format ``wire``; ranks add in fp32.

    Every partial sum is rounded again when it is sent, so the run's schedule decides the number of roundings. ``wire``
    is a name from `FORMATS` or a `Format`.
    """

    wire: str | Format

    def __post_init__(self) -> None:
        format_of(self.wire)

    def steps(self, params: Array, group: RankGroup) -> Iterator[Step]:
        wire = format_of(self.wire)
        schedule = check_type("all_reduce", group.all_reduce, Schedule, "a Schedule, to round each of its messages")
        check_all_reduce(schedule, group.world)
        while True:
            sums = all_reduce(schedule, group.gradients(params), wire, FORMATS["fp32"])
            group.count(schedule, params.shape[1], wire.nbytes, wire.header, wire.block)
            averaged = (sums / group.world).astype(params.dtype)
            params = update(params, averaged, group.optimizers)
            yield Step(params, averaged)
