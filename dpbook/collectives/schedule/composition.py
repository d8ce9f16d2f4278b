"""Schedules made of schedules: on some of the ranks, and side by side."""

from collections.abc import Sequence
from functools import reduce
from types import MappingProxyType

import numpy as np

from dpbook.collectives.schedule.bounds import Bounds
from dpbook.collectives.schedule.placement import Holding, Placement
from dpbook.collectives.schedule.rounds import IntArray, LazyRounds, Round, as_integers
from dpbook.collectives.schedule.schedule import Schedule, check_compatible, check_schedule
from dpbook.core import InvalidArgument, ScheduleError, check_int, plural


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
    same chunks). ``speaks_for[i]`` are the ranks whose contributions rank i brings (default: its own
    alone): after a reduce-scatter inside each node, one rank brings the sum of its node. Ranks and chunks
    that are not named take no part, and nothing is promised of them. Raises `InvalidArgument`.
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
    """The same schedule with rank i called ``ranks[i]`` and chunk c called ``chunks[c]``; both permutations."""
    check_schedule(schedule)
    return embed(schedule, schedule.world, range(schedule.world) if ranks is None else ranks, schedule.n_chunks, chunks)


def beside(*schedules: Schedule) -> Schedule:
    """Run several schedules at once: round i holds the messages of everyone's round i.

    They must have the same world, chunks and bounds (`InvalidArgument`), and no two may rely on the same
    chunk of the same rank (`ScheduleError`). A shorter schedule rests when it is done.
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
    for chunk, (left, right) in enumerate(zip(a, b, strict=True)):
        if both := left.keys() & right.keys():
            raise ScheduleError(f"two schedules side by side both use chunk {chunk} of rank {min(both)}")
        merged.append(MappingProxyType({**left, **right}) if left and right else left or right)
    return tuple(merged)


def _distinct(name: str, values: Sequence[int] | IntArray, length: int, limit: int) -> IntArray:
    array = as_integers(name, values)
    in_range = array.size == 0 or (array.min() >= 0 and array.max() < limit)
    if array.shape != (length,) or len(np.unique(array)) != length or not in_range:
        raise InvalidArgument(name, values, f"{plural(length, 'distinct number')} in 0..{limit - 1}")
    return array
