"""What the ranks' records of their collectives say when they are compared: who is behind, and where they differ.

The calls of a group are numbered from 1, those that DDP makes included. All ranks make the same calls in the same
order, so the first number at which they differ is where it went wrong; what came before tells who left a
call out.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from dpbook.ranks import failure_files

_OWN_SIZES = ("alltoall", "all_to_all", "gather", "scatter")
"""Collectives in which ranks may have tensors of different sizes."""
_DTYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
    "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool",
}  # fmt: skip
Key = tuple[str, tuple[int, ...]]
"""A group: its backend and name, and its ranks."""


@dataclass(frozen=True)
class Call:
    """One collective of one rank: the ``number``-th of its group.

    ``where``: torch's function and the program's line, as `stacks.call` has them; ``path``: file, function and line of
    the program's frames, the outermost first; ``ended``: whether it came to its end, by success or by an error.
    """

    number: int
    op: str
    sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    where: str
    path: tuple[tuple[str, str, int], ...]
    ended: bool

    @property
    def payload(self) -> str:
        """ "5 × float32", or of several dimensions "(3, 4) × float32"; "" of a barrier."""
        names = [_DTYPES.get(name, name) for name in self.dtypes]
        shapes = [str(size[0]) if len(size) == 1 else str(size) for size in self.sizes]
        return " and ".join(f"{shape} × {name}" for shape, name in zip(shapes, names, strict=False))

    @property
    def what(self) -> str:
        """ "all_reduce of 5 × float32"."""
        return f"{self.op} of {self.payload}" if self.payload else self.op

    @property
    def place(self) -> str:
        """ ", line 40 of main" where the program called it itself, else " in backward, line 34 of step"; or ""."""
        name, comma, line = self.where.partition(", ")
        return f", {line}" if name == self.op else f" in {name}{comma}{line}" if name else ""

    @property
    def alike(self) -> tuple[object, ...]:
        """What is alike on all ranks where nothing is wrong."""
        return (self.op,) if self.op in _OWN_SIZES else (self.op, self.sizes, self.dtypes)


@dataclass(frozen=True)
class Record:
    """The last calls of one rank, of each group that it is in."""

    groups: Mapping[Key, tuple[Call, ...]]

    def last(self, key: Key) -> Call | None:
        """The last call in a group; None where there was none."""
        calls = self.groups.get(key, ())
        return calls[-1] if calls else None

    def number(self, key: Key) -> int:
        """How many calls there were in a group."""
        last = self.last(key)
        return last.number if last else 0

    def get(self, key: Key, number: int) -> Call | None:
        """A call by its number; None where it was not made, or is no longer known."""
        return next((call for call in self.groups.get(key, ()) if call.number == number), None)


@dataclass(frozen=True)
class Difference:
    """The first call of a group in which ranks differ: what each of them called, and which of them left one out."""

    key: Key
    number: int
    calls: Mapping[int, Call]
    skipped: Mapping[int, Call]
    """Of a rank that did not make a call: that call, which others made in its place."""


class Records:
    """The records of the ranks of a launch."""

    def __init__(self, ranks: Mapping[int, Record], world: int) -> None:
        self.ranks, self._world = ranks, world

    @cached_property
    def keys(self) -> list[Key]:
        """The groups, the smallest first."""
        return sorted({key for record in self.ranks.values() for key in record.groups}, key=lambda k: (len(k[1]), k))

    def members(self, key: Key) -> dict[int, Record]:
        """The records of a group's ranks, as far as there are any."""
        return {rank: record for rank, record in self.ranks.items() if rank in key[1]}

    def group(self, key: Key) -> str:
        """ " of the group of ranks 0, 2", or "" where all ranks are in it."""
        return "" if len(key[1]) == self._world else f" of the group of ranks {', '.join(map(str, key[1]))}"

    def awaited(self, rank: int, waiting: Iterable[int]) -> tuple[Key, Call] | None:
        """The call to which a rank has not come although one of ``waiting`` has; None where it is not behind."""
        for key in self.keys:
            members = self.members(key)
            if rank in members:
                number = members[rank].number(key) + 1
                calls = (self.ranks[other].get(key, number) for other in waiting if other in members)
                if call := next(filter(None, calls), None):
                    return key, call
        return None

    def pending(self, rank: int) -> bool:
        """Whether the last call of a rank, in any group, has not come to its end."""
        record = self.ranks.get(rank)
        return record is not None and any(not calls[-1].ended for calls in record.groups.values() if calls)

    def passed(self, rank: int, awaited: tuple[Key, Call] | None, where: str) -> bool:
        """Whether a rank, waiting ``where``, does so in a call after the one to which it has not come."""
        calls = self.ranks[rank].groups.values() if awaited else ()
        return any(awaited and made[-1].where == where and _order(awaited[1], made[-1]) < 0 for made in calls if made)

    def difference(self) -> Difference | None:
        """The first difference that is no success of all: where all went on, it did no harm."""
        for key in self.keys:
            members = self.members(key)
            for number in sorted({call.number for record in members.values() for call in record.groups.get(key, ())}):
                calls = {rank: call for rank, record in members.items() if (call := record.get(key, number))}
                if len({call.alike for call in calls.values()}) > 1 and not _harmless(calls, members, key):
                    return Difference(key, number, calls, _skipped(key, number, calls, members))
        return None


def read(folder: Path, world: int) -> Records:
    """What the ranks of a launch have written down."""
    paths = {rank: folder / failure_files.CALLS.format(rank) for rank in range(world)}
    told = {rank: json.loads(path.read_text(encoding="utf-8")) for rank, path in paths.items() if path.exists()}
    return records(told, world)


def records(told: Mapping[int, Any], world: int) -> Records:
    """The records of what each rank has told: its groups, and its calls as `recorder.told` has them."""
    groups: dict[str, tuple[int, ...]] = {"0": tuple(range(world))}
    for one in told.values():  # a rank that has destroyed a group no longer knows who was in it
        groups |= {name: tuple(ranks) for name, ranks in one["groups"].items()}
    made_by = {}
    for rank, one in told.items():
        calls: dict[Key, list[Call]] = {}
        for call in one["calls"]:
            name = call["group"]  # in which each backend counts its own calls
            calls.setdefault((f"{call['backend']} {name}", groups.get(name, (rank,))), []).append(_call(call))
        made_by[rank] = Record({key: tuple(made) for key, made in calls.items()})
    return Records(made_by, world)


def _call(told: Mapping[str, Any]) -> Call:
    sizes = tuple(tuple(size) for size in told["sizes"])
    path = tuple((file, function, line) for file, function, line in told["path"])
    return Call(told["number"], told["op"], sizes, tuple(told["dtypes"]), told["where"], path, told["ended"])


def _harmless(calls: Mapping[int, Call], members: Mapping[int, Record], key: Key) -> bool:
    """Whether all ranks made a call of the same kind, ended it and went on to another."""
    return (
        len(calls) == len(members)
        and len({call.op for call in calls.values()}) == 1
        and all(call.ended and members[rank].number(key) > call.number for rank, call in calls.items())
    )


def _skipped(key: Key, number: int, calls: Mapping[int, Call], members: Mapping[int, Record]) -> dict[int, Call]:
    """Which ranks left out the call of the others, where what came before leaves no doubt."""
    kinds: dict[tuple[object, ...], list[int]] = {}
    for rank, call in calls.items():
        kinds.setdefault((call.alike, call.where), []).append(rank)
    if len(kinds) != 2:
        return {}
    one, two = kinds.values()
    for made, left in ((one, two), (two, one)):
        call, instead = calls[made[0]], calls[left[0]]
        before = [c for c in members[made[0]].groups[key] if c.number < number]
        sites = [_site(one) for one in before]
        expected = _usual(sites) == _site(call) and (_site(call), _site(instead)) in pairwise(sites)
        few = len(left) <= len(made)  # else it may be one too many of those that made it
        if few and call.where != instead.where and (expected or _passed(before, call, instead)):
            return dict.fromkeys(left, call)
    return {}


def _site(call: Call) -> tuple[object, ...]:
    return call.alike, call.where


def _usual(sites: list[tuple[object, ...]]) -> tuple[object, ...] | None:
    """What came after the same calls the last time: of several such times the one that was alike for longest."""
    best, usual = 0, None
    for i in range(len(sites) - 1):
        alike = 0
        while alike <= i and sites[i - alike] == sites[-1 - alike]:
            alike += 1
        if alike and alike >= best:
            best, usual = alike, sites[i + 1]
    return usual


def _passed(before: list[Call], call: Call, instead: Call) -> bool:
    """Whether who is at ``instead`` has gone past the line of ``call`` in the same function, later than ``before``."""
    at = _order(call, instead)
    return at < 0 and (not before or _order(before[-1], call) < 0)


def _order(a: Call, b: Call) -> float:
    """Negative where a's line comes before b's in the function in which their ways part; 0 or NaN where unknown."""
    for one, other in zip(a.path, b.path, strict=False):
        if one != other:
            return one[2] - other[2] if one[:2] == other[:2] else math.nan
    return 0.0
