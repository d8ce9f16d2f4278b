"""Do all ranks end with the same bits? Decided from the all-reduce alone, for every input.

IEEE addition commutes, a + b is b + a to the last bit, but it does not associate. So the bits of a sum are decided by
the tree of its additions, left and right of each being free. The interpreter runs over such trees: two ranks agree on
every input if they end with the same tree; adding 0 counts for nothing, though it turns a −0 into +0, and the payloads
of NaN are left out. Whether the sums are *right* is another question, which `verify` answers.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpbook.collectives.algebras.interpreter import interpret
from dpbook.collectives.schedule.placement import Placement, complete_everywhere
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
        if isinstance(other, int) and other == 0:  # where `sum` and `zeros_like` begin; x + 0 is x, but for −0
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
        """Write the sum out with its parentheses, at most ``depth`` of them inside one another."""
        if not self.operands:
            return f"x{self.rank}"
        if depth == 0:
            return "…"
        parts = [(part.write(depth - 1), part.operands) for part in self.operands]
        return " + ".join(f"({text})" if operands else text for text, operands in parts)


def contributions(world: int) -> list[Expression]:
    """Return x0, x1, …: one symbol per rank, which may be added to each other."""
    known: dict[frozenset[int], Expression] = {}
    return [Expression(known, (), rank) for rank in range(check_int("world", world, 1))]


@dataclass(frozen=True)
class Agreement:
    """Whether ranks that were promised the same sum compute it by the same additions.

    Attributes:
        name: of the all-reduce.
        sums: (world, chunks), the `Expression` that each rank ends with for each chunk.
        chunk: the first chunk that two ranks compute differently, or None.
        ranks: two ranks that do, or None.
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
        told = ", ".join(f"rank {rank}: {self.sums[rank, self.chunk]!r}" for rank in self.ranks)
        return f"{self.name}: ranks part at chunk {self.chunk}: {told}"


def agreement(all_reduce: Schedule | Callable[[Array], Array], world: int | None = None) -> Agreement:
    """Say whether ``all_reduce`` leaves the same bits on all ranks for every input.

    Two things are left out: payloads of NaN, and the sign of a zero, which is lost where a rank begins with 0 + x.

    Args:
        all_reduce: a schedule of any kind: compared are the ranks to which ``after`` promises the same contributions.
            Or a function from the ranks' buffers (world, size) to their sums, which is run on buffers of symbols: it
            may do nothing but move and add them. Symbols are added one after another, while NumPy adds *adjacent*
            floats by a tree of its own.
        world: number of ranks; needed for a function, which gets buffers of one element per rank.
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
    expected = "a function that moves and adds the ranks' buffers, and nothing else"
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
    """Sum the ranks' buffers (world, size) on every rank, each beginning with its own and going round the circle.

    It passes ``allclose`` and is right to within rounding, but from three ranks on its sums differ in their last bits.
    """
    sums = buffers.copy()
    for distance in range(1, len(buffers)):
        sums = sums + np.roll(buffers, -distance, axis=0)  # row r adds that of rank r + distance
    return sums


class _Symbols:
    """One expression per cell; every rank begins with its own contribution in every chunk."""

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
