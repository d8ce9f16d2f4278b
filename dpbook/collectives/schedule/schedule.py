"""Schedules: collective algorithms as data, their composition, and their JSON format with a version."""

import json
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from types import MappingProxyType
from typing import Any
from weakref import WeakSet

import numpy as np

from dpbook.collectives.schedule.chunks import (
    Bounds,
    EvenSplit,
    FixedBounds,
    GlooBounds,
    Holding,
    Placement,
    check_placement,
    complete_everywhere,
    describe,
    everyone,
    partial,
)
from dpbook.collectives.schedule.rounds import IntArray, JoinedRounds, LazyRounds, Round, as_integers
from dpbook.core import InvalidArgument, ScheduleError, check_int, check_one_of, check_type, parse, plural, shortened


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Schedule:
    """A collective over ``world`` ranks, each with a buffer of ``n_chunks`` chunks.

    ``rounds`` is any sequence of `Round`, stored as a tuple unless it is lazy. ``bounds`` cuts a buffer into
    chunks (default: evenly). ``before`` and ``after`` give, for each chunk, whose contributions each rank holds
    (see `chunks`); the defaults are those of an all-reduce: partial on every rank, complete on every rank.
    They are promises: `verify` decides whether the rounds keep them.
    """

    world: int
    n_chunks: int
    rounds: Sequence[Round]
    bounds: Bounds
    before: Placement
    after: Placement
    name: str

    def __init__(
        self,
        world: int,
        n_chunks: int,
        rounds: Sequence[Round],
        bounds: Bounds | None = None,
        before: Placement | None = None,
        after: Placement | None = None,
        name: str = "schedule",
    ) -> None:
        world, n_chunks = check_int("world", world, 1), check_int("n_chunks", n_chunks, 1)
        bounds = EvenSplit(n_chunks) if bounds is None else bounds
        if getattr(bounds, "n_chunks", None) != n_chunks:
            raise InvalidArgument("bounds", bounds, f"a rule for {plural(n_chunks, 'chunk')}")
        before = (partial(world),) * n_chunks if before is None else before
        after = (complete_everywhere(world),) * n_chunks if after is None else after
        vars(self).update(  # the dataclass is frozen
            world=world,
            n_chunks=n_chunks,
            rounds=_check_rounds(rounds),
            bounds=bounds,
            before=check_placement("before", before, world, n_chunks),
            after=check_placement("after", after, world, n_chunks),
            name=name,
        )

    def walk(self) -> Iterator[Round]:
        """Yield the rounds in order, checked (`Round.check`) the first time that this schedule is walked.

        Raises `ScheduleError` with the round, rank and chunk; `InvalidArgument` if a lazy round is no `Round`.
        """
        if self in _LEGAL:
            yield from self.rounds
            return
        for index, round_ in enumerate(self.rounds):
            _check_round(index, round_)
            round_.check(index, self.world, self.n_chunks)
            yield round_
        _LEGAL.add(self)

    def then(self, other: "Schedule") -> "Schedule":
        """Return this schedule, followed by ``other``.

        Raises `ScheduleError` unless ``other`` begins where this one ends, and `InvalidArgument` unless both
        have the same world, chunks and bounds.
        """
        check_compatible(self, other)
        for chunk, (have, need) in enumerate(zip(self.after, other.before, strict=True)):
            if have is not need and have != need:
                raise ScheduleError(
                    f"{other.name} cannot follow {self.name}: at chunk {chunk} it needs "
                    f"{describe((need,), self.world)}, but finds {describe((have,), self.world)}"
                )
        rounds, name = JoinedRounds(self.rounds, other.rounds), shortened(f"{self.name}, {other.name}")
        return Schedule(self.world, self.n_chunks, rounds, self.bounds, self.before, other.after, name)

    def named(self, name: str) -> "Schedule":
        """Return the same schedule with another name."""
        return replace(self, name=name)

    @property
    def is_all_reduce(self) -> bool:
        """Whether the schedule promises an all-reduce: partial on every rank before, complete on every rank after."""
        default = Schedule(self.world, self.n_chunks, ())
        return (self.before, self.after) == (default.before, default.after)

    def __deepcopy__(self, memo: object) -> "Schedule":
        return self  # it is immutable

    def __repr__(self) -> str:
        return (
            f"{self.name}: world {self.world}, {plural(len(self.rounds), 'round')}, {plural(self.n_chunks, 'chunk')}, "
            f"{describe(self.before, self.world)} → {describe(self.after, self.world)}"
        )


_LEGAL: WeakSet[Schedule] = WeakSet()
"""Schedules whose rounds have been checked. They are immutable, so one check is enough; that halves simulation time."""


def check_schedule(schedule: object) -> None:
    """Raise `InvalidArgument` unless ``schedule`` is a `Schedule`."""
    check_type("schedule", schedule, Schedule, "a Schedule, such as collectives.ring(4)")


def check_compatible(a: Schedule, b: Schedule) -> None:
    """Raise `InvalidArgument` unless both are schedules and have the same world, chunks and bounds."""
    check_schedule(a)
    check_schedule(b)
    for name in ("world", "n_chunks", "bounds"):
        if getattr(a, name) != getattr(b, name):
            raise InvalidArgument(f"{name} of {b.name}", getattr(b, name), f"{getattr(a, name)!r}, as in {a.name}")


def _check_rounds(rounds: Sequence[Round]) -> Sequence[Round]:
    """Return lazy rounds unchanged, and others as a tuple, so that later changes of a list do not change a schedule."""
    if isinstance(rounds, LazyRounds):
        return rounds
    check_type("rounds", rounds, Sequence, "a sequence of Round")
    for index, round_ in enumerate(rounds):
        _check_round(index, round_)
    return tuple(rounds)


def _check_round(index: int, round_: object) -> None:
    check_type(f"round {index + 1}", round_, Round, "a Round")


def embed(
    schedule: Schedule,
    world: int,
    ranks: Sequence[int],
    n_chunks: int | None = None,
    chunks: Sequence[int | Sequence[int]] | None = None,
    speaks_for: Sequence[Sequence[int]] | None = None,
    bounds: Bounds | None = None,
) -> Schedule:
    """Put ``schedule`` on the given ``ranks`` and ``chunks`` of a larger world.

    Its rank i becomes ``ranks[i]`` and its chunk k becomes ``chunks[k]``, one chunk or several (default: the
    same chunks). ``speaks_for[i]`` are the ranks whose contributions rank i brings (default: only
    its own): after a reduce-scatter inside each node, one rank brings the sum of its node. Other ranks and
    chunks take no part, and nothing is promised for them. Raises `InvalidArgument`.
    """
    check_schedule(schedule)
    check_int("world", world, schedule.world)
    n_chunks = check_int("n_chunks", schedule.n_chunks if n_chunks is None else n_chunks, 1)
    places = _distinct("ranks", ranks, schedule.world, world)
    groups = [as_integers("chunks", c) for c in (range(schedule.n_chunks) if chunks is None else chunks)]
    if len(groups) != schedule.n_chunks:
        raise InvalidArgument("chunks", chunks, f"one entry per chunk of the schedule, {schedule.n_chunks}")
    _distinct("chunks", np.concatenate(groups), sum(map(len, groups)), n_chunks)
    voices = [(int(r),) for r in places] if speaks_for is None else speaks_for
    if len(voices) != schedule.world:
        raise InvalidArgument("speaks_for", speaks_for, f"one group of ranks per rank, {schedule.world}")

    def place(index: int) -> Round:
        small = schedule.rounds[index]
        copies = [len(groups[c]) for c in small.chunk]
        return Round(
            np.repeat(places[small.source], copies),
            np.repeat(places[small.dest], copies),
            np.concatenate([groups[c] for c in small.chunk]) if len(small) else small.chunk,
            small.reduce if isinstance(small.reduce, bool) else np.repeat(small.reduce, copies),
        )

    def translate(placement: Placement) -> Placement:
        holdings: list[Holding] = [MappingProxyType({})] * n_chunks
        translated: dict[int, Holding] = {}  # by identity: most chunks share one holding
        for holding, group in zip(placement, groups, strict=True):
            if id(holding) not in translated:
                translated[id(holding)] = MappingProxyType(
                    {int(places[r]): frozenset().union(*(voices[w] for w in whose)) for r, whose in holding.items()}
                )
            for chunk in group:
                holdings[chunk] = translated[id(holding)]
        return tuple(holdings)

    return Schedule(
        world,
        n_chunks,
        LazyRounds(len(schedule.rounds), place),
        schedule.bounds if bounds is None and n_chunks == schedule.n_chunks else bounds,
        translate(schedule.before),
        translate(schedule.after),
        schedule.name,
    )


def relabel(schedule: Schedule, ranks: Sequence[int] | None = None, chunks: Sequence[int] | None = None) -> Schedule:
    """Return the same schedule with rank i renamed ``ranks[i]`` and chunk c ``chunks[c]``; both are permutations."""
    check_schedule(schedule)
    return embed(schedule, schedule.world, range(schedule.world) if ranks is None else ranks, schedule.n_chunks, chunks)


def beside(*schedules: Schedule) -> Schedule:
    """Return one schedule that runs several at once: round i has the messages of all their rounds i.

    They must have the same world, chunks and bounds (`InvalidArgument`), and no two may use the same
    chunk of the same rank (`ScheduleError`). A shorter schedule idles after its last round.
    """
    if not schedules:
        raise InvalidArgument("schedules", schedules, "at least one schedule")
    for other in schedules:
        check_compatible(schedules[0], other)

    def together(index: int) -> Round:
        running = [s.rounds[index] for s in schedules if index < len(s.rounds)]
        return Round(
            np.concatenate([r.source for r in running]),
            np.concatenate([r.dest for r in running]),
            np.concatenate([r.chunk for r in running]),
            np.concatenate([np.broadcast_to(r.reduce, len(r)) for r in running]),
        )

    first = schedules[0]
    return Schedule(
        first.world,
        first.n_chunks,
        LazyRounds(max(len(s.rounds) for s in schedules), together),
        first.bounds,
        reduce(_merge_placements, (s.before for s in schedules)),
        reduce(_merge_placements, (s.after for s in schedules)),
        " | ".join(dict.fromkeys(s.name for s in schedules)),
    )


def _merge_placements(a: Placement, b: Placement) -> Placement:
    merged = []
    for chunk, (first, second) in enumerate(zip(a, b, strict=True)):
        if both := first.keys() & second.keys():
            raise ScheduleError(f"two schedules side by side both use chunk {chunk} of rank {min(both)}")
        merged.append(MappingProxyType({**first, **second}) if first and second else first or second)
    return tuple(merged)


def _distinct(name: str, values: Sequence[int] | IntArray, length: int, limit: int) -> IntArray:
    array = as_integers(name, values)
    in_range = array.size == 0 or (array.min() >= 0 and array.max() < limit)
    if array.shape != (length,) or len(np.unique(array)) != length or not in_range:
        raise InvalidArgument(name, values, f"{plural(length, 'distinct number')} in 0..{limit - 1}")
    return array


SCHEDULE_FORMAT, SCHEDULE_VERSION = "dpbook.schedule", 1
BOUNDS_RULES: dict[str, Callable[..., Bounds]] = {"even": EvenSplit, "fixed": FixedBounds, "gloo": GlooBounds}
"""Classes of chunk bounds by their names in JSON; their fields are stored beside the name."""


def to_json(schedule: Schedule) -> str:
    """Return a schedule as JSON with all its rounds. Raises `InvalidArgument` for chunk bounds of an unknown rule."""
    check_schedule(schedule)
    bounds = schedule.bounds
    rule = next((name for name, kind in BOUNDS_RULES.items() if type(bounds) is kind), None)
    if rule is None:
        raise InvalidArgument("bounds", bounds, "EvenSplit, FixedBounds or GlooBounds to be written as JSON")
    return json.dumps(
        {
            "format": SCHEDULE_FORMAT,
            "version": SCHEDULE_VERSION,
            "name": schedule.name,
            "world": schedule.world,
            "n_chunks": schedule.n_chunks,
            "bounds": {"rule": rule, **vars(bounds)},
            "before": [_holding_to_data(h, schedule.world) for h in schedule.before],
            "after": [_holding_to_data(h, schedule.world) for h in schedule.after],
            "rounds": [
                {
                    "source": r.source.tolist(),
                    "dest": r.dest.tolist(),
                    "chunk": r.chunk.tolist(),
                    "reduce": r.reduce if isinstance(r.reduce, bool) else r.reduce.tolist(),
                }
                for r in schedule.walk()
            ],
        }
    )


def from_json(text: str) -> Schedule:
    """Return the schedule that `to_json` wrote. Raises `InvalidArgument`, or `ScheduleError` for illegal rounds."""
    data = parse(text, SCHEDULE_FORMAT, SCHEDULE_VERSION)
    try:
        world, fields = data["world"], dict(data["bounds"])
        rule = fields.pop("rule")
        check_one_of("rule of the bounds", rule, BOUNDS_RULES)
        schedule = Schedule(
            world,
            data["n_chunks"],
            [Round.of(r["source"], r["dest"], r["chunk"], r["reduce"]) for r in data["rounds"]],
            BOUNDS_RULES[rule](**fields),
            _placement_from_data(data["before"], world),
            _placement_from_data(data["after"], world),
            str(data["name"]),
        )
    except InvalidArgument:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        expected = "a complete schedule; a field is missing or has a wrong type"
        raise InvalidArgument("text", repr(error), expected) from None
    for index, round_ in enumerate(schedule.rounds):
        round_.check(index, schedule.world, schedule.n_chunks)
    return schedule


def _holding_to_data(holding: Holding, world: int) -> str | dict[str, str | list[int]]:
    if holding == complete_everywhere(world):
        return "complete"
    if holding == partial(world):
        return "partial"
    return {str(rank): "all" if whose == everyone(world) else sorted(whose) for rank, whose in holding.items()}


def _placement_from_data(data: list[Any], world: int) -> Placement:
    shorthand = {"complete": complete_everywhere(world), "partial": partial(world)}

    def holding(entry: str | dict[str, Any]) -> Holding:
        if isinstance(entry, str):
            return shorthand[entry]
        return {int(r): everyone(world) if w == "all" else frozenset(map(operator.index, w)) for r, w in entry.items()}

    return tuple(map(holding, data))
