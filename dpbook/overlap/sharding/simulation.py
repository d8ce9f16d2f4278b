"""One training step of stage 0 to 3, simulated: a timeline of time, and one of memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from dpbook.core import bytes_in_words, check_each, check_float, check_int, check_type
from dpbook.overlap.sharding.choices import Price, Sharding, Wires
from dpbook.overlap.sharding.course import Course
from dpbook.overlap.sharding.holding import held
from dpbook.overlap.sharding.memory import MemoryCurve
from dpbook.overlap.sharding.program import COLLECTIVES, Lane, Work
from dpbook.overlap.sharding.units import Sizes, Unit
from dpbook.overlap.timeline.spans import Kind, Span, Timeline


@dataclass(frozen=True, eq=False)
class ShardedStep:
    """A step of one rank, which stands for all: what ran when, what memory held when, and what it sent.

    Attributes:
        units: in the order of the forward pass.
        sharding: how they were sharded.
        sizes: bytes per parameter.
        works: what ran, in the order in which it was asked for.
        seconds: what each of them took.
        starts, ends: when, in seconds from the start of the step, for each of the works.
    """

    units: tuple[Unit, ...]
    sharding: Sharding
    sizes: Sizes
    works: Sequence[Work]
    seconds: Sequence[float]
    starts: Sequence[float]
    ends: Sequence[float]

    @property
    def duration(self) -> float:
        """The step time, in seconds."""
        return max(self.ends)

    @cached_property
    def timeline(self) -> Timeline:
        """Of rank 0, with the lanes "compute" and "communication"; what takes no time is left out."""
        return Timeline(tuple(self._spans()), (0.0, self.duration))

    @cached_property
    def memory(self) -> MemoryCurve:
        """Bytes alive over the same time."""
        timed = zip(self.works, self.starts, self.ends, strict=True)
        return MemoryCurve(held(self.units, self.sharding, self.sizes, timed), self.duration)

    @property
    def sent(self) -> dict[str, float]:
        """Bytes that a rank sends, by collective: "all-gather", "reduce-scatter", "all-reduce"."""
        return {what: sum(work.sent for work in self.works if work.what == what) for what in COLLECTIVES}

    def busy(self, lane: Lane) -> float:
        """Seconds in which a lane works."""
        return sum(takes for work, takes in zip(self.works, self.seconds, strict=True) if work.lane == lane)

    def _spans(self) -> Iterator[Span]:
        for work, start, end in zip(self.works, self.starts, self.ends, strict=True):
            if end > start:
                name = work.what if work.unit is None else f"{work.what} {self.units[work.unit].name}"
                kind: Kind = "computation" if work.lane == "compute" else "communication"
                ready = None if work.completed is None else self.ends[work.completed]
                yield Span(name, 0, work.lane, kind, start, end, ready)

    def __repr__(self) -> str:
        return (
            f"stage {self.sharding.stage}: {self.timeline!r}, peak {bytes_in_words(self.memory.peak)}, "
            f"sent {bytes_in_words(sum(self.sent.values()))}"
        )


def simulate_sharded(
    units: Sequence[Unit],
    sharding: Sharding,
    wires: Wires,
    *,
    sizes: Sizes | None = None,
    accumulation: int = 1,
    no_sync: bool | None = None,
    optimizer: float = 0.0,
) -> ShardedStep:
    """Simulate a step: gathers, forward, backward with its reductions, optimizer, and the memory that they need.

    Every unit makes one collective of each kind: in stages 0 to 2 it is what a bucket is. One rank stands for all;
    its collectives run one at a time, in the order in which they are asked for. A micro-batch begins when what the one
    before has sent is over.

    Whole gradients are allocated when a unit's backward begins, and activations freed when it ends. Left out: what a
    forward needs while it runs, and fragmentation.

    Args:
        units: in the order of the forward pass.
        sharding: the stage, over how many ranks, and when.
        wires: what the collectives cost; `Wires.rings` for a link.
        sizes: bytes per parameter, by default fp32 and Adam.
        accumulation: micro-batches in a step.
        no_sync: whether only the last of them reduces gradients, and the others add them up whole. By default that of
            the stages: True in 0 and 1, which keep whole gradients anyway, False in 2 and 3.
        optimizer: seconds of an unsharded update; from stage 1 on a rank updates its shard alone.

    Raises:
        InvalidArgument: an argument is out of its range, or a price is no time.
    """
    check_type("sharding", sharding, Sharding, "a Sharding, such as Sharding(3, shards=8)")
    check_type("wires", wires, Wires, "Wires, such as Wires.rings(sharding, link)")
    sizes = check_type("sizes", sizes or Sizes(), Sizes, "Sizes, in bytes per parameter")
    units = tuple(check_each("units", units, Unit))
    only_last = sharding.stage < 2 if no_sync is None else no_sync
    course = Course(units, sharding, sizes, check_int("accumulation", accumulation, 1), only_last)
    seconds = course.seconds(_checked(wires), check_float("optimizer", optimizer, minimum=0))
    return ShardedStep(units, sharding, sizes, course.works, seconds, *course.run(seconds))


def _checked(wires: Wires) -> Wires:
    """The same prices, sure to be times."""

    def sure(name: str, price: Price) -> Price:
        return lambda nbytes: check_float(f"{name}({nbytes})", price(nbytes), minimum=0)

    names = ("all_gather", "reduce_scatter", "all_reduce", "across")
    return Wires(*(sure(name, getattr(wires, name)) for name in names))
