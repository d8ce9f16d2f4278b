"""Rounds, each a set of messages that travel at the same time."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpbook.core import InvalidArgument, ScheduleError, check_int, plural

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Number = TypeVar("Number", bound=np.generic)


class Message(NamedTuple):
    """One chunk that rank ``source`` sends to rank ``dest``, which adds it (``reduce``) or stores it."""

    source: int
    dest: int
    chunk: int
    reduce: bool


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Round:
    """Messages that travel at the same time, as arrays of equal length.

    ``source``, ``dest`` and ``chunk`` are int64 arrays of shape (messages,). ``reduce`` is one bool for all
    messages or a bool array of the same shape: True adds the chunk to the receiver's, False replaces it.
    Every message reads the state *before* the round. Iterating yields `Message` tuples. The arrays of a round are
    private copies and read-only, so that a check stays valid.
    """

    source: IntArray
    dest: IntArray
    chunk: IntArray
    reduce: bool | BoolArray

    def __init__(self, source: IntArray, dest: IntArray, chunk: IntArray, reduce: bool | BoolArray) -> None:
        vars(self).update(
            source=read_only("source", source),
            dest=read_only("dest", dest),
            chunk=read_only("chunk", chunk),
            reduce=reduce if isinstance(reduce, bool) else read_only("reduce", reduce),
        )

    @classmethod
    def of(cls, source: ArrayLike, dest: ArrayLike, chunk: ArrayLike, reduce: bool | ArrayLike) -> "Round":
        """Build a round from array-likes; scalars are broadcast. Raises `InvalidArgument`."""
        fields = [as_integers(*named) for named in (("source", source), ("dest", dest), ("chunk", chunk))]
        try:
            s, d, c = (np.ascontiguousarray(f) for f in np.broadcast_arrays(*fields))
            op = reduce if isinstance(reduce, bool) else np.broadcast_to(np.asarray(reduce), s.shape)
        except ValueError:
            lengths = [np.size(values) for values in (source, dest, chunk, reduce)]
            raise InvalidArgument("source, dest, chunk and reduce", lengths, "of one length, or scalars") from None
        if not isinstance(op, bool):
            if np.size(reduce) and op.dtype != np.bool_:
                raise InvalidArgument("reduce", reduce, "a bool or an array of bools")
            op = op.astype(np.bool_)  # NumPy reads an empty list as floats
        return cls(s, d, c, op)

    @classmethod
    def from_messages(cls, messages: Sequence[tuple[int, int, int, bool]]) -> "Round":
        """Build a round from (source, dest, chunk, reduce) tuples."""
        source, dest, chunk, reduce = zip(*messages, strict=True) if messages else ((), (), (), ())
        return cls.of(source, dest, chunk, reduce)

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[Message]:
        ops = [self.reduce] * len(self) if isinstance(self.reduce, bool) else self.reduce.tolist()
        yield from map(Message, self.source.tolist(), self.dest.tolist(), self.chunk.tolist(), ops)

    def __reduce__(self) -> tuple[type["Round"], tuple[object, ...]]:
        return Round, (self.source, self.dest, self.chunk, self.reduce)  # a copied array would be writable

    def __repr__(self) -> str:
        arrows = [
            f"{m.source}→{m.dest} {'+' if m.reduce else '='}{m.chunk}" for m, _ in zip(self, range(8), strict=False)
        ]
        more = f", … {len(self)} messages" if len(self) > 8 else ""
        return f"Round({', '.join(arrows)}{more})"

    def select(self, mask: BoolArray, reduce: bool | BoolArray | None = None) -> "Round":
        """Return the messages where ``mask`` is True; ``reduce`` replaces their operation if given."""
        if reduce is None:
            reduce = self.reduce if isinstance(self.reduce, bool) else self.reduce[mask]
        return Round(self.source[mask], self.dest[mask], self.chunk[mask], reduce)

    def parts(self) -> tuple["Round", ...]:
        """Return this round as rounds of one operation each: the messages to add, and those to store."""
        if isinstance(self.reduce, bool):
            return (self,)
        return tuple(self.select(self.reduce == op, reduce=op) for op in (True, False))

    def reads_what_it_writes(self) -> bool:
        """Return whether some (rank, chunk) is both sent and written in this round."""
        written = set(zip(self.dest.tolist(), self.chunk.tolist(), strict=True))
        return not written.isdisjoint(zip(self.source.tolist(), self.chunk.tolist(), strict=True))

    def check(self, index: int, world: int, n_chunks: int) -> None:
        """Raise `ScheduleError` if a message is out of range, or two messages write one (rank, chunk).

        Messages count rounds from 1, as the pictures do; ``index`` is the index of this round in the schedule.
        """
        where = f"round {index + 1}"
        for field, values, limit in (
            ("source", self.source, world),
            ("dest", self.dest, world),
            ("chunk", self.chunk, n_chunks),
        ):
            # As unsigned, a negative number is a very large one, so that one comparison checks both ends.
            outside = values.view(np.uint64) >= limit
            if outside.any():
                raise ScheduleError(f"{where}: {field} {values[outside][0]} is not in 0..{limit - 1}")
        to_self = self.source == self.dest
        if to_self.any():
            raise ScheduleError(f"{where}: rank {self.source[to_self][0]} sends a message to itself")
        cell = np.sort(self.dest * n_chunks + self.chunk)
        twice = cell[1:] == cell[:-1]
        if twice.any():
            rank, chunk = divmod(int(cell[1:][twice][0]), n_chunks)
            senders = self.source[(self.dest == rank) & (self.chunk == chunk)].tolist()
            raise ScheduleError(
                f"{where}: ranks {senders} all write chunk {chunk} of rank {rank}; "
                "a round may write a chunk once, so put the messages in separate rounds"
            )


class LazyRounds(Sequence[Round]):
    """Sequence of ``length`` rounds, made by ``make(index)`` on access, so that a long schedule needs no memory."""

    def __init__(self, length: int, make: Callable[[int], Round]) -> None:
        self._length = check_int("length", length, 0)
        if not callable(make):
            raise InvalidArgument("make", make, "a function from a round's index to the Round")
        self._make = make

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Round: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Round]: ...
    def __getitem__(self, index: int | slice) -> Round | Sequence[Round]:
        if isinstance(index, slice):
            return [self._make(i) for i in range(self._length)[index]]
        if not -self._length <= index < self._length:
            raise IndexError(f"round {index} of a schedule of {plural(self._length, 'round')}")
        return self._make(index % self._length)

    def __iter__(self) -> Iterator[Round]:
        return map(self._make, range(self._length))

    def __reduce__(self) -> tuple[type[tuple[Round, ...]], tuple[tuple[Round, ...]]]:
        return tuple, (tuple(self),)  # the function may not be picklable, but its rounds are


class JoinedRounds(LazyRounds):
    """The rounds of ``first``, then those of ``second``. Joining thousands, one by one, does not nest calls."""

    def __init__(self, first: Sequence[Round], second: Sequence[Round]) -> None:
        self._length = len(first) + len(second)
        self._pair = first, second

    @cached_property
    def _parts(self) -> list[Sequence[Round]]:
        """Sequences that are joined, in order, with nested joins flattened."""
        parts: list[Sequence[Round]] = []
        stack: list[Sequence[Round]] = [self]
        while stack:
            part = stack.pop()
            if isinstance(part, JoinedRounds):
                stack += reversed(part._pair)
            else:
                parts.append(part)
        return parts

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(map(len, self._parts)))

    def __iter__(self) -> Iterator[Round]:
        return chain.from_iterable(self._parts)

    def _make(self, index: int) -> Round:
        part = bisect_right(self._ends, index)
        return self._parts[part][index - self._ends[part]]  # a negative index, from the end of the part


def read_only(name: str, values: NDArray[Number]) -> NDArray[Number]:
    """Return ``values`` if they are read-only and own their memory, otherwise a copy. Raises `InvalidArgument`."""
    if not isinstance(values, np.ndarray):
        raise InvalidArgument(name, values, "an array; Round.of takes numbers and lists as well")
    flags = values.flags
    if not flags.owndata or flags.writeable:  # in this order: NumPy 2.0 warns of `writeable` of a broadcast array
        values = values.copy()
        values.setflags(write=False)
    return values


def as_integers(name: str, values: ArrayLike) -> IntArray:
    """Return ``values`` as int64 of shape (n,); a scalar has n = 1. Raises `InvalidArgument`."""
    try:
        array = np.atleast_1d(np.asarray(values))
    except ValueError:  # rows of unequal length
        array = np.empty((0, 0))
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise InvalidArgument(name, values, "integers in one dimension")
    return array.astype(np.int64)
