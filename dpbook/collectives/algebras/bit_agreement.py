"""Agreement of bits: whether all ranks end with the same bits for every input, by the all-reduce alone.

IEEE addition is commutative, a + b is b + a to the last bit, but not associative. So the bits of a sum depend on the
tree of its additions, up to exchanging the operands of each. The interpreter runs over such trees: two ranks agree on
every input if they end with the same tree. Adding 0 is ignored, though it turns a −0 into +0, and so are the payloads
of NaN. Whether the sums are *right* is another question, which `verify` answers.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpbook.collectives.algebras.interpreter import interpret
from dpbook.collectives.schedule.chunks import Placement, complete_everywhere
from dpbook.collectives.schedule.rounds import Round
from dpbook.collectives.schedule.schedule import Schedule
from dpbook.core import InvalidArgument, check_int

Array: TypeAlias = NDArray[Any]
SHOWN_DEPTH = 24  # a longer chain of additions is written with an ellipsis


class Expression:
    """A rank's contribution, or the sum of two expressions. Equal sums from one `contributions` are one object."""

    __slots__ = ("_known", "operands", "rank")

    def __init__(
        self, known: dict[frozenset[int], "Expression"], operands: tuple["Expression", ...], rank: int
    ) -> None:
        self._known = known
        self.operands = operands
        self.rank = rank

    def __add__(self, other: object) -> "Expression":
        if isinstance(other, int) and other == 0:  # `sum` and `zeros_like` begin with 0; x + 0 is x, except for −0
            return self
        if not isinstance(other, Expression):
            return NotImplemented
        key = frozenset((id(self), id(other)))  # a set, because addition commutes; the table keeps both alive
        if key not in self._known:
            self._known[key] = Expression(self._known, (self, other), -1)
        return self._known[key]

    __radd__ = __add__

    def __repr__(self) -> str:
        return self.write(SHOWN_DEPTH)

    def write(self, depth: int) -> str:
        """Return the sum with its parentheses, at most ``depth`` of them nested."""
        if not self.operands:
            return f"x{self.rank}"
        if depth == 0:
            return "…"
        parts = [(part.write(depth - 1), part.operands) for part in self.operands]
        return " + ".join(f"({text})" if operands else text for text, operands in parts)


def contributions(world: int) -> list[Expression]:
    """Return x0, x1, …: one symbol per rank. Symbols can be added to each other."""
    known: dict[frozenset[int], Expression] = {}
    return [Expression(known, (), rank) for rank in range(check_int("world", world, 1))]


@dataclass(frozen=True)
class Agreement:
    """Result of comparing the additions of ranks that are promised the same sum by the all-reduce ``name``.

    ``sums``, (world, chunks), are the final `Expression` of each rank and chunk. ``chunk`` is the first one that two
    ``ranks`` compute differently; both are None if there is none.
    """

    name: str
    sums: Array = field(repr=False)
    chunk: int | None
    ranks: tuple[int, int] | None

    @property
    def agrees(self) -> bool:
        return self.chunk is None

    def __repr__(self) -> str:
        if self.ranks is None:
            return f"{self.name}: all ranks end with the same bits"
        details = " and ".join(f"{self.sums[rank, self.chunk]!r} on rank {rank}" for rank in self.ranks)
        return f"{self.name}: chunk {self.chunk} is {details}"


def agreement(all_reduce: Schedule | Callable[[Array], Array], world: int | None = None) -> Agreement:
    """Return whether ``all_reduce`` leaves the same bits on all ranks for every input.

    It ignores payloads of NaN, and the sign of a zero, which is lost if a rank begins with 0 + x.

    Args:
        all_reduce: a schedule of any kind; ranks to which ``after`` promises the same contributions are compared. Or a
            function from the ranks' buffers (world, size) to their sums, which is run on buffers of symbols and may
            only move and add them. Symbols are added one after another, while NumPy adds *adjacent* floats by a
            different tree.
        world: number of ranks; required for a function, which gets buffers of one element per rank.
    """
    if isinstance(all_reduce, Schedule):
        if world not in (None, all_reduce.world):
            raise InvalidArgument("world", world, f"{all_reduce.world}, that of the schedule")
        cells = _Symbols(all_reduce)
        deque(interpret(all_reduce, cells), maxlen=0)
        return _judge(all_reduce.name, cells.sums.reshape(all_reduce.world, -1), all_reduce.after)
    if not callable(all_reduce):
        raise InvalidArgument("all_reduce", all_reduce, "a Schedule, or a function from buffers to sums")
    world = check_int("world", world, 1)
    buffers = np.repeat(np.array(contributions(world), object)[:, None], world, axis=1)
    expected = "a function that only moves and adds the ranks' buffers"
    try:
        sums = all_reduce(buffers.copy())
    except TypeError as error:  # some other operation on symbols
        raise InvalidArgument("all_reduce", all_reduce, f"{expected} ({error})") from error
    alike = isinstance(sums, np.ndarray) and sums.shape == buffers.shape
    if not alike or not all(isinstance(entry, Expression) for entry in sums.flat):
        raise InvalidArgument("all_reduce", all_reduce, expected)
    promised = complete_everywhere(world)
    return _judge(getattr(all_reduce, "__name__", "all_reduce"), sums, (promised,) * world)


def in_own_order(buffers: Array) -> Array:
    """Sum the ranks' buffers (world, size) on every rank, each in ring order from its own buffer.

    The sums pass ``allclose`` and are right within rounding. With three or more ranks they differ in their last bits.
    """
    sums = buffers.copy()
    for distance in range(1, len(buffers)):
        sums = sums + np.roll(buffers, -distance, axis=0)  # row r adds that of rank r + distance
    return sums


class _Symbols:
    """Cells with one expression each; every rank begins with its contribution in every chunk."""

    def __init__(self, schedule: Schedule) -> None:
        self.n_chunks = schedule.n_chunks
        self.sums = np.repeat(np.array(contributions(schedule.world), object), schedule.n_chunks)

    def read(self, part: Round, within: Round) -> Array:
        sums: Array = self.sums[part.source * self.n_chunks + part.chunk]
        return sums

    def add(self, part: Round, payload: Array) -> None:
        cell = part.dest * self.n_chunks + part.chunk
        self.sums[cell] = self.sums[cell] + payload

    def put(self, part: Round, payload: Array) -> None:
        self.sums[part.dest * self.n_chunks + part.chunk] = payload


def _judge(name: str, sums: Array, promised: Placement) -> Agreement:
    for chunk, holding in enumerate(promised):
        first: dict[frozenset[int], int] = {}  # the first rank to which these contributions were promised
        for rank, whose in holding.items():
            other = first.setdefault(whose, rank)
            if sums[rank, chunk] is not sums[other, chunk]:
                return Agreement(name, sums, chunk, (other, rank))
    return Agreement(name, sums, None, None)
