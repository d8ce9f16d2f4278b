"""The journals of all ranks, side by side: update by update, and what each rank did for each."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dpbook.runs.watching.journal import Event, read

T = TypeVar("T")


@dataclass(frozen=True)
class Update:
    """One update of one optimizer: of each rank the step, what came of it, and what it did since the one before."""

    optimizer: int
    number: int
    steps: tuple[Event, ...]
    stepped: tuple[Event, ...]
    before: tuple[tuple[Event, ...], ...]

    def of(self, kind: str) -> list[list[Event]]:
        """What each rank did of one kind, in its order."""
        return [[event for event in events if event["kind"] == kind] for events in self.before]

    def in_step(self, kind: str) -> Iterator[tuple[Event, ...]]:
        """The first event of this kind on every rank, the second, and so on."""
        yield from zip(*self.of(kind), strict=False)


@dataclass(frozen=True)
class Seen:
    """``ranks``: the events of each; ``folder``: what else they left; ``ended``: why the run failed, or ""."""

    ranks: tuple[tuple[Event, ...], ...]
    folder: Path | None = None
    ended: str = ""

    @property
    def world(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

    def of(self, kind: str) -> list[list[Event]]:
        """All events of one kind, for each rank."""
        return [[event for event in events if event["kind"] == kind] for events in self.ranks]

    @functools.cached_property
    def optimizers(self) -> tuple[tuple[Event, ...], ...]:
        """Of each optimizer that every rank has stepped with what the ranks know of it."""
        numbers = [sorted({event["optimizer"] for event in events}) for events in self.of("optimizer")]
        common = set(numbers[0]).intersection(*numbers[1:]) if numbers else set()
        return tuple(
            tuple(next(event for event in events if event["optimizer"] == number) for events in self.of("optimizer"))
            for number in sorted(common)
        )

    @functools.cached_property
    def updates(self) -> tuple[Update, ...]:
        """The updates that every rank has begun, in order, those of one optimizer after those of another."""
        return tuple(update for about in self.optimizers for update in self._updates_of(about[0]["optimizer"]))

    def _updates_of(self, optimizer: int) -> Iterator[Update]:
        parts = [list(_parts(events, optimizer)) for events in self.ranks]
        for of_ranks in zip(*parts, strict=False):
            steps = tuple(step for _, step, _ in of_ranks)
            if len({step["update"] for step in steps}) == 1:
                stepped = tuple(after for _, _, after in of_ranks if after is not None)
                before = tuple(tuple(events) for events, _, _ in of_ranks)
                whole = stepped if len(stepped) == len(steps) else ()
                yield Update(optimizer, steps[0]["update"], steps, whole, before)

    def shared(self, optimizer: int) -> list[str]:
        """The parameters of which every rank has a replica: not those that are spread over ranks."""
        about = next(each for each in self.optimizers if each[0]["optimizer"] == optimizer)
        common = set(about[0]["names"]).intersection(*(each["names"] for each in about[1:]))
        spread = {name for each in about for name in each["sharded"]}
        return [name for name in about[0]["names"] if name in common - spread]

    @property
    def replicated(self) -> bool:
        """Whether all ranks have replicas of one model, none a part of it."""
        return all(each["replicas"] == self.world for about in self.optimizers for each in about)


def _parts(events: Sequence[Event], optimizer: int) -> Iterator[tuple[list[Event], Event, Event | None]]:
    """For each update: what came before its step, the step, and the event after it."""
    gathered: list[Event] = []
    step: Event | None = None
    for event in events:
        mine = event.get("optimizer") == optimizer
        if mine and event["kind"] == "step":
            if step is not None:
                yield gathered, step, None
                gathered = []
            step = event
        elif mine and event["kind"] == "stepped" and step is not None:
            yield gathered, step, event
            gathered, step = [], None
        elif event["kind"] == "scaler" and step is None and any(each["kind"] == "backward" for each in gathered):
            gathered = [event]  # a gradient scaler has met an infinity and left the update out
        else:
            gathered.append(event)
    if step is not None:
        yield gathered, step, None


def seen(folder: Path, world: int, ended: str = "") -> Seen:
    """Read what the ranks of a run left in ``folder``."""
    return Seen(tuple(tuple(read(folder, rank)) for rank in range(world)), folder, ended)


def odd_one(values: Sequence[T]) -> int | None:
    """The first rank whose value is not that of most ranks; None if all are equal."""
    told = [repr(value) for value in values]
    most = max(told, key=told.count)
    return next((rank for rank, value in enumerate(told) if value != most), None)


def first_difference(of_ranks: Sequence[dict[str, Any]], names: Sequence[str]) -> tuple[str, int, int] | None:
    """The first of ``names`` whose value is not the same on all ranks, the rank that is odd, and how many differ."""
    common = [name for name in names if all(name in values for values in of_ranks)]
    odd = [(name, odd_one([values[name] for values in of_ranks])) for name in common]
    differing = [(name, rank) for name, rank in odd if rank is not None]
    return (*differing[0], len(differing)) if differing else None
