"""A simulated training step of ZeRO stage 0 to 3: its timeline, and its memory over time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from dpbook.core import bytes_in_words, check_each, check_float, check_int, check_type
from dpbook.overlap.allocations import MemoryCurve, allocations_of
from dpbook.overlap.sharded_program import COLLECTIVES, Lane, ShardedOperation, TimedProgram
from dpbook.overlap.sharding import Price, Sharding, Sizes, Unit, Wires
from dpbook.overlap.timeline.spans import Kind, Span, Timeline


@dataclass(frozen=True, eq=False)
class ShardedStep:
    """A simulated step of one rank, which represents all: its timeline, its memory, and the bytes it sends.

    Attributes:
        units: units in the order of the forward pass.
        sharding: sharding of the step.
        sizes: bytes per parameter.
        operations: computations and collectives in the order in which they are launched.
        seconds: duration of each operation.
        starts, ends: times of each operation, in seconds from the start of the step.
    """

    units: tuple[Unit, ...]
    sharding: Sharding
    sizes: Sizes
    operations: Sequence[ShardedOperation]
    seconds: Sequence[float]
    starts: Sequence[float]
    ends: Sequence[float]

    @property
    def duration(self) -> float:
        """The step time, in seconds."""
        return max(self.ends)

    @cached_property
    def timeline(self) -> Timeline:
        """Timeline of rank 0, with the lanes "compute" and "communication"; operations of no duration are left out."""
        return Timeline(tuple(self._spans()), (0.0, self.duration))

    @cached_property
    def memory(self) -> MemoryCurve:
        """Bytes alive over the same time."""
        timed = zip(self.operations, self.starts, self.ends, strict=True)
        return MemoryCurve(allocations_of(self.units, self.sharding, self.sizes, timed), self.duration)

    @property
    def sent(self) -> dict[str, float]:
        """Bytes that a rank sends, by collective: "all-gather", "reduce-scatter", "all-reduce"."""
        return {kind: sum(op.sent for op in self.operations if op.kind == kind) for kind in COLLECTIVES}

    def busy(self, lane: Lane) -> float:
        """Return the seconds in which a lane is busy."""
        return sum(seconds for op, seconds in zip(self.operations, self.seconds, strict=True) if op.lane == lane)

    def _spans(self) -> Iterator[Span]:
        for operation, start, end in zip(self.operations, self.starts, self.ends, strict=True):
            if end > start:
                name, unit = operation.kind, operation.unit
                label = name if unit is None else f"{name} {self.units[unit].name}"
                kind: Kind = "computation" if operation.lane == "compute" else "communication"
                ready = None if operation.completed is None else self.ends[operation.completed]
                yield Span(label, 0, operation.lane, kind, start, end, ready)

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

    Every unit makes one collective of each kind, as a bucket does in stages 0 to 2. One rank represents all. Its
    collectives run one at a time, in the order in which they are launched. A micro-batch begins when all collectives
    of the one before are over.

    Whole gradients are allocated when a unit's backward begins, and activations are freed when it ends. Scratch memory
    of forward and fragmentation are left out.

    Args:
        units: units in the order of the forward pass.
        sharding: the stage, the number of ranks, and the times of gathering and freeing.
        wires: prices of the collectives; `Wires.rings` makes them from a link.
        sizes: bytes per parameter, by default fp32 and Adam.
        accumulation: micro-batches in a step.
        no_sync: whether only the last micro-batch reduces gradients, and the others add them up whole. By default True
            in stages 0 and 1, which keep whole gradients anyway, and False in 2 and 3.
        optimizer: seconds of an unsharded update; from stage 1 on a rank updates only its shard.

    Raises:
        InvalidArgument: an argument is out of its range, or a price returns no valid time.
    """
    check_type("sharding", sharding, Sharding, "a Sharding, such as Sharding(3, shards=8)")
    check_type("wires", wires, Wires, "Wires, such as Wires.rings(sharding, link)")
    sizes = check_type("sizes", sizes or Sizes(), Sizes, "Sizes, in bytes per parameter")
    units = tuple(check_each("units", units, Unit))
    only_last = sharding.stage < 2 if no_sync is None else no_sync
    program = TimedProgram(units, sharding, sizes, check_int("accumulation", accumulation, 1), only_last)
    seconds = program.seconds(_checked(wires), check_float("optimizer", optimizer, minimum=0))
    return ShardedStep(units, sharding, sizes, program.operations, seconds, *program.run(seconds))


def _checked(wires: Wires) -> Wires:
    """Return the same prices, which raise `InvalidArgument` where they are no time."""

    def checked(name: str, price: Price) -> Price:
        return lambda nbytes: check_float(f"{name}({nbytes})", price(nbytes), minimum=0)

    names = ("all_gather", "reduce_scatter", "all_reduce", "across")
    return Wires(*(checked(name, getattr(wires, name)) for name in names))
