"""A collective algorithm as data: rounds of messages, and what they promise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpbook.collectives.bounds import Bounds, EvenSplit
from dpbook.collectives.placement import Placement, complete_everywhere, describe, everyone, partial
from dpbook.collectives.rounds import LazyRounds, Round
from dpbook.errors import InvalidArgument, ScheduleError, check_int
from dpbook.text import plural

_ALL_REDUCE: Any = None  # stands for what an all-reduce has there; filled in when the schedule is built


@dataclass(frozen=True, eq=False)
class Schedule:
    """A collective over ``world`` ranks, each with a buffer of ``n_chunks`` chunks.

    ``rounds`` is any sequence of `Round`; it is kept as a tuple unless it is lazy. ``bounds`` cuts a buffer into
    chunks (default: evenly). ``before`` and ``after`` give, for each chunk, whose contributions each rank holds
    (see `placement`); the defaults are those of an all-reduce: partial on every rank, complete on every rank.
    They are promises: `verify` finds out whether the rounds keep them.
    """

    world: int
    n_chunks: int
    rounds: Sequence[Round]
    bounds: Bounds = _ALL_REDUCE
    before: Placement = _ALL_REDUCE
    after: Placement = _ALL_REDUCE
    name: str = "schedule"
    _checked: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("world", "n_chunks"):  # kept as int: one of NumPy's would not go into JSON
            object.__setattr__(self, name, check_int(name, getattr(self, name), 1))
        object.__setattr__(self, "rounds", _own_rounds(self.rounds))
        defaults = {
            "bounds": EvenSplit(self.n_chunks),
            "before": (partial(self.world),) * self.n_chunks,
            "after": (complete_everywhere(self.world),) * self.n_chunks,
        }
        for name, default in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
        if getattr(self.bounds, "n_chunks", None) != self.n_chunks:
            raise InvalidArgument("bounds", self.bounds, f"a rule for {plural(self.n_chunks, 'chunk')}")
        for name in ("before", "after"):
            self._check_placement(name, getattr(self, name))

    def _check_placement(self, name: str, placement: Placement) -> None:
        if not isinstance(placement, Sequence) or not all(isinstance(holding, Mapping) for holding in placement):
            raise InvalidArgument(name, placement, "a holding per chunk, as `partial` and `complete_on` make them")
        if len(placement) != self.n_chunks:
            raise InvalidArgument(name, plural(len(placement), "holding"), f"one holding per chunk, {self.n_chunks}")
        distinct = {id(holding): holding for holding in placement}.values()  # most chunks share one
        groups: dict[int, Iterable[int]] = {id(group): group for h in distinct for group in (h, *h.values())}
        for group in groups.values():
            if not everyone(self.world).issuperset(group):
                raise InvalidArgument(name, sorted(group), f"about ranks in 0..{self.world - 1}")

    def walk(self) -> Iterator[Round]:
        """The rounds in order, checked (`Round.check`) the first time that this schedule is walked.

        Rounds do not change, so once is enough; a ring of 1,024 ranks simulates in half the time for it.
        Raises `ScheduleError`, naming the round, rank and chunk; `InvalidArgument` where a lazy round is no `Round`.
        """
        if self._checked:
            yield from self.rounds
            return
        for index, round_ in enumerate(self.rounds):
            _check_round(index, round_)
            round_.check(index, self.world, self.n_chunks)
            yield round_
        object.__setattr__(self, "_checked", True)

    def then(self, other: Schedule) -> Schedule:
        """This schedule, and ``other`` after it.

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
        first = len(self.rounds)
        rounds = LazyRounds(
            first + len(other.rounds), lambda i: self.rounds[i] if i < first else other.rounds[i - first]
        )
        name = f"{self.name}, {other.name}"
        return Schedule(self.world, self.n_chunks, rounds, self.bounds, self.before, other.after, name)

    @property
    def is_all_reduce(self) -> bool:
        """Whether it promises an all-reduce: partial on every rank before, complete on every rank after."""
        whole = (partial(self.world),) * self.n_chunks, (complete_everywhere(self.world),) * self.n_chunks
        return (tuple(self.before), tuple(self.after)) == whole

    def named(self, name: str) -> Schedule:
        """The same schedule under another name."""
        return Schedule(self.world, self.n_chunks, self.rounds, self.bounds, self.before, self.after, name)

    def __repr__(self) -> str:
        return (
            f"{self.name}: world {self.world}, {plural(len(self.rounds), 'round')}, {plural(self.n_chunks, 'chunk')}, "
            f"{describe(self.before, self.world)} → {describe(self.after, self.world)}"
        )


def check_schedule(schedule: object) -> None:
    """Raise `InvalidArgument` for anything that is no schedule."""
    if not isinstance(schedule, Schedule):
        raise InvalidArgument("schedule", schedule, "a Schedule, such as collectives.ring(4)")


def check_compatible(a: Schedule, b: Schedule) -> None:
    """Raise `InvalidArgument` unless both are schedules and have the same world, chunks and bounds."""
    check_schedule(a)
    check_schedule(b)
    for name in ("world", "n_chunks", "bounds"):
        if getattr(a, name) != getattr(b, name):
            raise InvalidArgument(f"{name} of {b.name}", getattr(b, name), f"{getattr(a, name)!r}, as in {a.name}")


def _own_rounds(rounds: Sequence[Round]) -> Sequence[Round]:
    """Lazy rounds as they are, others as a tuple: what its maker does to a list later must not change a schedule."""
    if isinstance(rounds, LazyRounds):
        return rounds
    if not isinstance(rounds, Sequence):
        raise InvalidArgument("rounds", rounds, "a sequence of Round")
    for index, round_ in enumerate(rounds):
        _check_round(index, round_)
    return tuple(rounds)


def _check_round(index: int, round_: object) -> None:
    if not isinstance(round_, Round):
        raise InvalidArgument(f"round {index + 1}", round_, "a Round")
