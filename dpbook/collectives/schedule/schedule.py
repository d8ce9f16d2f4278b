"""A collective algorithm as data: rounds of messages, and what they promise."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from weakref import WeakSet

from dpbook.collectives.schedule.bounds import Bounds, EvenSplit
from dpbook.collectives.schedule.placement import Placement, check_placement, complete_everywhere, describe, partial
from dpbook.collectives.schedule.rounds import JoinedRounds, LazyRounds, Round
from dpbook.core import InvalidArgument, ScheduleError, check_int, check_type, plural, shortened


@dataclass(frozen=True, eq=False, init=False, repr=False)
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
        before = (partial(world),) * n_chunks if before is None else before
        after = (complete_everywhere(world),) * n_chunks if after is None else after
        vars(self).update(  # the one way to fill in what is frozen
            world=world,
            n_chunks=n_chunks,
            rounds=_check_rounds(rounds),
            bounds=_check_bounds(EvenSplit(n_chunks) if bounds is None else bounds, n_chunks),
            before=check_placement("before", before, world, n_chunks),
            after=check_placement("after", after, world, n_chunks),
            name=name,
        )

    def walk(self) -> Iterator[Round]:
        """The rounds in order, checked (`Round.check`) the first time that this schedule is walked.

        Raises `ScheduleError`, naming the round, rank and chunk; `InvalidArgument` where a lazy round is no `Round`.
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
        """This schedule, and ``other`` after it.

        Raises `ScheduleError` unless ``other`` begins where this one ends, and `InvalidArgument` unless both
        have the same world, chunks and bounds.
        """
        check_compatible(self, other)
        _check_meeting(self, other)
        rounds, name = JoinedRounds(self.rounds, other.rounds), shortened(f"{self.name}, {other.name}")
        return Schedule(self.world, self.n_chunks, rounds, self.bounds, self.before, other.after, name)

    def named(self, name: str) -> "Schedule":
        """The same schedule under another name."""
        return replace(self, name=name)

    @property
    def is_all_reduce(self) -> bool:
        """Whether it promises an all-reduce: partial on every rank before, complete on every rank after."""
        default = Schedule(self.world, self.n_chunks, ())
        return (self.before, self.after) == (default.before, default.after)

    def __deepcopy__(self, memo: object) -> "Schedule":
        return self  # nothing in it can change

    def __repr__(self) -> str:
        return (
            f"{self.name}: world {self.world}, {plural(len(self.rounds), 'round')}, {plural(self.n_chunks, 'chunk')}, "
            f"{describe(self.before, self.world)} → {describe(self.after, self.world)}"
        )


_LEGAL: WeakSet[Schedule] = WeakSet()
"""Schedules whose rounds have been checked. They do not change, so once is enough: half of the time of simulating."""


def check_schedule(schedule: object) -> None:
    """Raise `InvalidArgument` for anything that is no schedule."""
    check_type("schedule", schedule, Schedule, "a Schedule, such as collectives.ring(4)")


def check_compatible(a: Schedule, b: Schedule) -> None:
    """Raise `InvalidArgument` unless both are schedules and have the same world, chunks and bounds."""
    check_schedule(a)
    check_schedule(b)
    for name in ("world", "n_chunks", "bounds"):
        if getattr(a, name) != getattr(b, name):
            raise InvalidArgument(f"{name} of {b.name}", getattr(b, name), f"{getattr(a, name)!r}, as in {a.name}")


def _check_meeting(first: Schedule, second: Schedule) -> None:
    for chunk, (have, need) in enumerate(zip(first.after, second.before, strict=True)):
        if have is not need and have != need:
            raise ScheduleError(
                f"{second.name} cannot follow {first.name}: at chunk {chunk} it needs "
                f"{describe((need,), first.world)}, but finds {describe((have,), first.world)}"
            )


def _check_bounds(bounds: Bounds, n_chunks: int) -> Bounds:
    if getattr(bounds, "n_chunks", None) != n_chunks:
        raise InvalidArgument("bounds", bounds, f"a rule for {plural(n_chunks, 'chunk')}")
    return bounds


def _check_rounds(rounds: Sequence[Round]) -> Sequence[Round]:
    """Lazy rounds as they are, others as a tuple: what its maker does to a list later must not change a schedule."""
    if isinstance(rounds, LazyRounds):
        return rounds
    check_type("rounds", rounds, Sequence, "a sequence of Round")
    for index, round_ in enumerate(rounds):
        _check_round(index, round_)
    return tuple(rounds)


def _check_round(index: int, round_: object) -> None:
    check_type(f"round {index + 1}", round_, Round, "a Round")
