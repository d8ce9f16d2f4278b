"""Collectives that the ranks called, compared: the first mismatch, the ranks that are behind, and both in words.

The calls of a group are numbered from 1, and those that DDP makes in C++ are included. All ranks must call the same
collectives in the same order. The first number at which they differ is therefore the fault, and the calls before it
show which rank skipped one.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from dpbook.core import plural, ranks_in_words
from dpbook.ranks import failure_files

_UNEVEN_COLLECTIVES = ("alltoall", "all_to_all", "gather", "scatter")
"""Collectives in which the ranks' tensors may differ in size."""
_DTYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
    "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool",
}  # fmt: skip
GroupKey = tuple[str, tuple[int, ...]]
"""A process group: its backend and name, and its ranks."""
Site = tuple[object, ...]
"""The signature of a call, and the line of the program that made it."""


@dataclass(frozen=True)
class RecordedCall:
    """One collective of one rank: the ``number``-th of its ``group``.

    ``call_site``: torch's function and the program's line, as `stacks.waiting_call` returns them. ``frames``: file,
    function and line of the program's frames, the outermost first. ``completed``: whether the collective ended, with
    success or with an error.
    """

    group: GroupKey
    number: int
    op: str
    sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    call_site: str
    frames: tuple[tuple[str, str, int], ...]
    completed: bool

    @property
    def payload(self) -> str:
        """Return "5 × float32", "(3, 4) × float32" or "scalar float32", by dimensions; or "" for a barrier."""
        names = [_DTYPES.get(name, name) for name in self.dtypes]
        shapes = [f"{size[0] if len(size) == 1 else size} ×" if size else "scalar" for size in self.sizes]
        return " and ".join(f"{shape} {name}" for shape, name in zip(shapes, names, strict=False))

    @property
    def description(self) -> str:
        """Return "all_reduce of 5 × float32"."""
        return f"{self.op} of {self.payload}" if self.payload else self.op

    @property
    def location(self) -> str:
        """Return ", train.py:40 in main" for a direct call, " in backward, train.py:34" for one of DDP's; or ""."""
        name, comma, line = self.call_site.partition(", ")
        return f", {line}" if name == self.op else f" in {name}{comma}{line}" if name else ""

    @property
    def signature(self) -> tuple[object, ...]:
        """Return what must be equal on all ranks: the operation and, for most collectives, sizes and dtypes."""
        return (self.op,) if self.op in _UNEVEN_COLLECTIVES else (self.op, self.sizes, self.dtypes)


@dataclass(frozen=True)
class RankCalls:
    """The last ``calls`` of one rank, oldest first."""

    calls: tuple[RecordedCall, ...]

    @cached_property
    def last(self) -> dict[GroupKey, RecordedCall]:
        """Return the last call in each group."""
        return {call.group: call for call in self.calls}

    @cached_property
    def pending(self) -> dict[GroupKey, RecordedCall]:
        """Return the last call in each group in which that is not completed."""
        return {key: call for key, call in self.last.items() if not call.completed}

    def count(self, key: GroupKey) -> int:
        """Return the number of calls in a group, those included that are no longer recorded."""
        return self.last[key].number if key in self.last else 0

    def get(self, key: GroupKey, number: int) -> RecordedCall | None:
        """Return a call by its number; None if it was not made or is no longer recorded."""
        return next((call for call in self.calls if (call.group, call.number) == (key, number)), None)


class CallMismatch(NamedTuple):
    """The first call of a group in which ranks differ: the call of each rank.

    ``skipped``: for each rank that skipped a call, that call as the other ranks made it.
    """

    calls: Mapping[int, RecordedCall]
    skipped: Mapping[int, RecordedCall]


class CallRecords:
    """The collectives of all ranks of a run, as far as they were recorded."""

    def __init__(self, ranks: Mapping[int, RankCalls], world: int) -> None:
        self.ranks, self._world = ranks, world
        keys = {key for calls in ranks.values() for key in calls.last}
        self.keys = sorted(keys, key=lambda key: (len(key[1]), key))
        """The groups, the smallest first."""

    def members(self, key: GroupKey) -> dict[int, RankCalls]:
        """Return the calls of those ranks of a group that have a record."""
        return {rank: calls for rank, calls in self.ranks.items() if rank in key[1]}

    def group_suffix(self, key: GroupKey) -> str:
        """Return " of the group of ranks 0, 2", or "" for that of all ranks; " over gloo" if both have calls."""
        (backend, _, name), ranks = key[0].rpartition(" "), key[1]
        several = any(other[0].endswith(f" {name}") and other != key and other[1] == ranks for other in self.keys)
        group = "" if len(ranks) == self._world else f" of the group of {ranks_in_words(ranks)}"
        return f"{group} over {backend}" if several else group

    def missed_call(self, rank: int, waiting: Iterable[int]) -> RecordedCall | None:
        """Return the first call that ``rank`` has not made and one of ``waiting`` has; None if it is not behind."""
        for key in self.keys:
            members = self.members(key)
            if rank in members:
                number = members[rank].count(key) + 1
                calls = (self.ranks[other].get(key, number) for other in waiting if other in members)
                if call := next(filter(None, calls), None):
                    return call
        return None

    def is_past(self, rank: int, missed: RecordedCall | None, call_site: str) -> bool:
        """Return True if ``rank``, which waits at ``call_site``, does so in a call after the ``missed`` one."""
        if missed is None:
            return False
        last = self.ranks[rank].last.values()
        return any(call.call_site == call_site and _line_difference(missed, call) < 0 for call in last)

    def first_mismatch(self) -> CallMismatch | None:
        """Return the first mismatch that did harm. Where all ranks completed the call and went on, it did none."""
        for key in self.keys:
            members = self.members(key)
            made = (call for ranks in members.values() for call in ranks.calls if call.group == key)
            for number in sorted({call.number for call in made}):
                calls = {rank: call for rank, ranks in members.items() if (call := ranks.get(key, number))}
                if len({call.signature for call in calls.values()}) > 1 and not _is_harmless(calls, members):
                    return CallMismatch(calls, _skipped_calls(calls, members))
        return None


def read_calls(folder: Path, world: int) -> CallRecords:
    """Read the calls that the ranks of a launch left in ``folder``."""
    paths = {rank: folder / failure_files.CALLS_FILE.format(rank) for rank in range(world)}
    dumps = {rank: json.loads(path.read_text(encoding="utf-8")) for rank, path in paths.items() if path.exists()}
    return call_records(dumps, world)


def call_records(dumps: Mapping[int, Any], world: int) -> CallRecords:
    """Return the records of ``world`` ranks from each rank's "groups" and "calls".

    The ranks of a group are listed by its name; calls, oldest first, are as `flight_recorder.call_record` returns them.
    """
    groups: dict[str, tuple[int, ...]] = {"0": tuple(range(world))}
    for dump in dumps.values():  # a rank that has destroyed a group no longer knows its ranks
        groups |= {name: tuple(ranks) for name, ranks in dump["groups"].items()}
    by_rank = {}
    for rank, dump in dumps.items():
        calls = []
        for record in dump["calls"]:
            name = record["group"]  # each backend of a group numbers its own calls
            key = (f"{record['backend']} {name}", groups.get(name, (rank,)))
            sizes, frames = (tuple(map(tuple, record[part])) for part in ("sizes", "frames"))
            plain = {field: record[field] for field in ("number", "op", "call_site", "completed")}
            calls.append(RecordedCall(key, sizes=sizes, dtypes=tuple(record["dtypes"]), frames=frames, **plain))
        by_rank[rank] = RankCalls(tuple(calls))
    return CallRecords(by_rank, world)


def _is_harmless(calls: Mapping[int, RecordedCall], members: Mapping[int, RankCalls]) -> bool:
    """Return True if all ranks made a call of the same kind, completed it and went on to another."""
    return (
        len(calls) == len(members)
        and len({call.op for call in calls.values()}) == 1
        and all(call.completed and members[rank].count(call.group) > call.number for rank, call in calls.items())
    )


def _skipped_calls(calls: Mapping[int, RecordedCall], members: Mapping[int, RankCalls]) -> dict[int, RecordedCall]:
    """Return the call that each rank skipped, if the earlier calls leave no doubt that it did.

    Example: a loop calls all_reduce in backward (B) and then all_reduce of the loss (L), and the calls before were
    B L B L B. Ranks 0 and 2 now call L, and rank 1 calls B. After B the usual next call is L, and B has followed L
    before, so rank 1 skipped L. Without such a history a rank has skipped a call if it is already at a later line of
    the same function. In all other cases the call may be one too many on the ranks that made it.
    """
    sites: dict[Site, list[int]] = {}
    for rank, call in calls.items():
        sites.setdefault(_site(call), []).append(rank)
    if len(sites) != 2:
        return {}
    first, second = sites.values()
    for callers, others in ((first, second), (second, first)):
        call, instead = calls[callers[0]], calls[others[0]]
        earlier = (made for made in members[callers[0]].calls if made.group == call.group)
        before = [made for made in earlier if made.number < call.number]
        history = [_site(made) for made in before]
        expected = _usual_next(history) == _site(call) and (_site(call), _site(instead)) in pairwise(history)
        above = not before or _line_difference(before[-1], call) < 0
        went_past = above and _line_difference(call, instead) < 0
        few = len(others) <= len(callers)  # else the callers may have made one call too many
        if few and call.call_site != instead.call_site and (expected or went_past):
            return dict.fromkeys(others, call)
    return {}


def _site(call: RecordedCall) -> Site:
    return call.signature, call.call_site


def _usual_next(history: list[Site]) -> Site | None:
    """Return the call that usually follows the end of ``history``; None if its last call was never made before.

    It is the call that followed the longest earlier stretch equal to the end of ``history``; of several such stretches
    the latest counts. Example: A B B A B B A B ends with A B B A B, and so do its first five calls. B followed those.
    """
    longest, usual = 0, None
    for i in range(len(history) - 1):
        equal = 0
        while equal <= i and history[i - equal] == history[-1 - equal]:
            equal += 1
        if equal and equal >= longest:
            longest, usual = equal, history[i + 1]
    return usual


def _line_difference(a: RecordedCall, b: RecordedCall) -> float:
    """Return how many lines ``a`` is after ``b`` in the function in which their stacks part; 0 or NaN if unknown."""
    for frame, other in zip(a.frames, b.frames, strict=False):
        if frame != other:
            return frame[2] - other[2] if frame[:2] == other[:2] else math.nan
    return 0.0


def name_call(records: CallRecords, call: RecordedCall) -> str:
    """Return "collective 14 (all_reduce of 10 × float32)"."""
    return f"collective {call.number}{records.group_suffix(call.group)} ({call.description})"


def locate_call(records: CallRecords, call: RecordedCall) -> str:
    """Return "collective 14 (all_reduce of 10 × float32, train.py:40 in main)"."""
    return f"{name_call(records, call)[:-1]}{call.location})"


def describe_mismatch(records: CallRecords) -> str:
    """Describe the first call in which the ranks differ, in its tensors or because one skipped it; or return ""."""
    mismatch = records.first_mismatch()
    if not mismatch:
        return ""
    calls, skipping = mismatch
    first = next(iter(calls.values()))
    number = f"collective {first.number}{records.group_suffix(first.group)}"
    if skipping:
        rank, call = next(iter(skipping.items()))
        skipped = f"{ranks_in_words(skipping)} skipped {number} ({call.description}{call.location})"
        instead = f"{calls[rank].description}{calls[rank].location}"
        return f"the ranks called different collectives: {skipped} and called {instead}"
    if all((call.op, call.call_site) == (first.op, first.call_site) for call in calls.values()):
        tensors = _by_rank({rank: call.payload for rank, call in calls.items()})
        return f"the ranks' calls do not match: {number} ({first.op}{first.location}) has {tensors}"
    kinds = _by_rank({rank: f"{call.description}{call.location}," for rank, call in calls.items()})
    return f"the ranks called different collectives: {number} was {kinds}"


def describe_late_ranks(records: CallRecords) -> str:
    """Name the ranks that never joined a call in which others wait, and that wait for nobody themselves; or ""."""
    ranks = records.ranks
    missed = {rank: records.missed_call(rank, ranks.keys() - {rank}) for rank in sorted(ranks)}
    late = {rank: call for rank, call in missed.items() if call}
    free = [rank for rank in late if not any(_waits_in(ranks[rank], call) for call in late.values())]
    texts = {}
    for rank in free or late:
        call, made = late[rank], ranks[rank].calls
        waiting = [other for other, calls in records.members(call.group).items() if _waits_in(calls, call)]
        before = f"its last was {locate_call(records, made[-1])}" if made else "it had called none before"
        waited = f"; {ranks_in_words(waiting)} waited in it" if waiting else ""
        texts[rank] = f"{locate_call(records, call)}: {before}{waited}"
    lines = "\n".join(f"{ranks_in_words(alike)} never joined {text}" for text, alike in ranks_by_text(texts).items())
    return lines if free or not late else f"the ranks wait for each other:\n{lines}"


def describe_unfinished_call(records: CallRecords) -> str:
    """Describe a call that did not complete although all recorded ranks joined it; or return ""."""
    for key in records.keys:
        pending = {rank: calls.pending[key] for rank, calls in records.members(key).items() if key in calls.pending}
        if pending:
            unfinished, waiting = locate_call(records, next(iter(pending.values()))), ranks_in_words(pending)
            if missing := set(key[1]) - records.ranks.keys():
                absent = f"{ranks_in_words(missing)} left no record: dead, or not collected"
                return f"{waiting} waited in {unfinished}; {absent}"
            return f"all ranks joined {unfinished}, but {waiting} did not complete it: check the network and these GPUs"
    return ""


def describe_positions(records: CallRecords) -> str:
    """Return a line per rank: how many calls it made, and the last of each group that is not completed."""
    lines = []
    for rank, calls in sorted(records.ranks.items()):
        made = ", ".join(plural(calls.count(key), "collective") + records.group_suffix(key) for key in calls.last)
        pending = " and ".join(locate_call(records, call) for call in calls.pending.values())
        lines.append(f"  rank {rank}: {made or 'no collective'}; waits in {pending or 'none'}")
    return "\n".join(lines)


def _waits_in(calls: RankCalls, missed: RecordedCall) -> bool:
    """Return True if a rank waits in the ``missed`` call, or in a later one of its group."""
    pending = calls.pending.get(missed.group)
    return pending is not None and pending.number >= missed.number


def ranks_by_text(texts: Mapping[int, str]) -> dict[str, list[int]]:
    """Return the ranks that have the same text, in the order of ``texts``."""
    ranks: dict[str, list[int]] = {}
    for rank, text in texts.items():
        ranks.setdefault(text, []).append(rank)
    return ranks


def _by_rank(texts: Mapping[int, str]) -> str:
    """Return "5 × float32 on ranks 0, 2, but 3 × float32 on rank 1"."""
    groups = ranks_by_text(dict(sorted(texts.items())))
    return ", but ".join(f"{text} on {ranks_in_words(ranks)}" for text, ranks in groups.items())
