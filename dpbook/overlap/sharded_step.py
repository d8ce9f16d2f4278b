"""A simulated training step of ZeRO stage 0 to 3: its timeline, and its memory over time."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from dpbook.core import InvalidArgument, bytes_in_words, check_each, check_float, check_int, check_type
from dpbook.overlap.sharded_program import COLLECTIVES, Lane, ShardedOperation, TimedProgram
from dpbook.overlap.sharding import Price, Sharding, Sizes, Unit, Wires
from dpbook.overlap.timeline.spans import Kind, Span, Timeline

Content: TypeAlias = Literal["optimizer", "weights", "gathered", "gradients", "reduced", "activations"]
"""Content of memory: the optimizer's state; the weights that a rank keeps; whole weights that were gathered; whole
gradients; the rank's shard of reduced gradients; activations."""
CONTENTS: tuple[Content, ...] = get_args(Content)
STATE: tuple[Content, ...] = ("optimizer", "weights", "gradients", "reduced")
"""Contents that the stages shard: the model's state."""


class Allocation(NamedTuple):
    """Memory of ``nbytes`` for a unit, given by its index, alive from ``start`` to ``end`` in seconds."""

    content: Content
    unit: int
    nbytes: int
    start: float
    end: float


@dataclass(frozen=True)
class MemoryCurve:
    """Bytes on one rank over time. Memory freed at a moment is available to allocations at the same moment.

    Attributes:
        allocations: all memory that is alive at some moment; memory alive at ``end`` stays alive after it.
        end: the last moment, in seconds; the first is 0.
    """

    allocations: tuple[Allocation, ...]
    end: float
    times: NDArray[np.float64] = field(init=False, repr=False, compare=False)
    """Moments of allocations and frees, in seconds, ascending from 0, of shape (moments,)."""
    alive: dict[Content, NDArray[np.int64]] = field(init=False, repr=False, compare=False)
    """Bytes of each content from each moment to the next, of shape (moments,) each."""

    def __post_init__(self) -> None:
        ends = (memory.end for memory in self.allocations if memory.end <= self.end)
        changes = {0.0, *(memory.start for memory in self.allocations), *ends}
        times = np.array(sorted(changes))
        alive = {content: np.zeros(len(times) + 1, dtype=np.int64) for content in CONTENTS}
        for memory in self.allocations:
            first, last = np.searchsorted(times, (memory.start, memory.end))
            alive[memory.content][first] += memory.nbytes
            alive[memory.content][last] -= memory.nbytes
        object.__setattr__(self, "times", times)
        object.__setattr__(self, "alive", {content: np.cumsum(a[:-1]) for content, a in alive.items()})

    @cached_property
    def total(self) -> NDArray[np.int64]:
        """Bytes of all contents from each moment to the next, of shape (moments,)."""
        return self.of(CONTENTS)

    @property
    def peak(self) -> int:
        """Most bytes alive at one moment."""
        return int(self.total.max())

    @property
    def peak_time(self) -> float:
        """Moment at which the peak is first reached, in seconds."""
        return float(self.times[self.total.argmax()])

    def of(self, contents: Iterable[Content]) -> NDArray[np.int64]:
        """Return the bytes of these contents together from each moment to the next, of shape (moments,)."""
        nbytes: NDArray[np.int64] = np.sum([self.alive[content] for content in contents], axis=0)
        return nbytes

    def at(self, time: float) -> dict[Content, int]:
        """Return the bytes by content at ``time`` in seconds. Raises `InvalidArgument` for a negative time."""
        if not time >= 0:
            raise InvalidArgument("time", time, "a moment of the step, 0 or later")
        place = int(np.searchsorted(self.times, time, side="right")) - 1
        return {content: int(values[place]) for content, values in self.alive.items()}

    def __repr__(self) -> str:
        at = ", ".join(f"{content} {bytes_in_words(n)}" for content, n in self.at(self.peak_time).items() if n)
        return f"MemoryCurve: peak {bytes_in_words(self.peak)} ({at})"


@dataclass
class _Allocator:
    """Memory that is alive, and memory that has been freed.

    Whole gradients are allocated when a unit's backward starts. Sharded ones are freed, except the rank's shard, when
    they are reduced and the next unit's backward is over: FSDP of torch 2.13 does not check before.
    """

    units: Sequence[Unit]
    sharding: Sharding
    sizes: Sizes
    alive: dict[tuple[Content, int], float] = field(default_factory=dict)
    """Start of each live allocation in seconds, by content and unit."""
    recomputed: dict[int, float] = field(default_factory=dict)
    """Start of each recomputation of activations in seconds, by unit."""
    reduced: tuple[int, float] | None = None
    """The unit whose gradients were reduced last and are still whole, and the end of that reduction in seconds."""
    freed: list[Allocation] = field(default_factory=list)

    def follow(self, operation: ShardedOperation, start: float, end: float) -> None:
        """Allocate and free the memory of one operation."""
        sharding, kind, unit = self.sharding, operation.kind, operation.unit
        if kind in ("forward", "optimizer"):  # the backward before it is over
            self._free_reduced(0.0)
        if unit is None:
            for owner in range(len(self.units)):
                self._close(("gradients", "reduced"), owner, end)
            return
        at = self.units[unit]
        if kind == "all-gather" and sharding.stage == 3:
            self._open("gathered", unit, start)
        elif kind == "forward":
            self._open("activations", unit, start)
            if sharding.frees_after_forward and not at.stays_gathered:
                self._close(("gathered",), unit, end)
        elif kind == "recompute":
            self.recomputed[unit] = start
        elif kind == "backward":
            self._open("gradients", unit, start)
            self._close(("activations", "gathered"), unit, end)
            self._record("activations", unit, at.scratch, start, end)
            if sharding.recompute:
                self._record("activations", unit, at.activations, self.recomputed.pop(unit), end)
            self._free_reduced(end)
        elif kind == "reduce-scatter" and sharding.stage >= 2:
            self.reduced = unit, end

    def _free_reduced(self, moment: float) -> None:
        """Free the whole gradients that were reduced last, except the rank's shard, at ``moment`` or when reduced."""
        if self.reduced is not None:
            unit, end = self.reduced
            self._close(("gradients",), unit, max(end, moment))
            self._open("reduced", unit, max(end, moment))
            self.reduced = None

    def permanent(self) -> Iterator[Allocation]:
        """Yield the memory that is alive before the step and stays alive."""
        for unit in range(len(self.units)):
            yield Allocation("weights", unit, self._nbytes("weights", unit), 0.0, inf)
            yield Allocation("optimizer", unit, self._nbytes("optimizer", unit), 0.0, inf)

    def _open(self, content: Content, unit: int, moment: float) -> None:
        self.alive.setdefault((content, unit), moment)

    def _close(self, contents: Iterable[Content], unit: int, moment: float) -> None:
        for content in contents:
            if (since := self.alive.pop((content, unit), None)) is not None:
                self._record(content, unit, self._nbytes(content, unit), since, moment)

    def _record(self, content: Content, unit: int, nbytes: int, start: float, end: float) -> None:
        if nbytes:
            self.freed.append(Allocation(content, unit, nbytes, start, end))

    def _nbytes(self, content: Content, unit: int) -> int:
        """Return a unit's bytes of a content on the rank with the largest shard; activations as forward keeps them."""
        sharding, at, sizes = self.sharding, self.units[unit], self.sizes
        nbytes: dict[Content, int] = {
            "activations": at.input if sharding.recompute else at.activations,
            "gathered": at.parameters * sizes.weight,
            "gradients": at.trained * sizes.gradient,
            "reduced": sharding.share(at.trained) * sizes.gradient,
            "weights": sharding.share(at.parameters) * (sizes.shard or 0)
            if sharding.stage == 3
            else at.parameters * sizes.weight,
            "optimizer": (sharding.share(at.trained) if sharding.stage else at.trained) * sizes.optimizer,
        }
        return nbytes[content]


@dataclass(frozen=True, eq=False)
class ShardedStep:
    """A simulated step of one rank, which represents all: its timeline, its memory, and the bytes it sends.

    ``units`` are in the order of the forward pass, ``operations`` in that in which they are launched. Each has its
    duration in ``seconds``, and its start and end in seconds from the start of the step.
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
        allocator = _Allocator(self.units, self.sharding, self.sizes)
        for operation, start, end in zip(self.operations, self.starts, self.ends, strict=True):
            allocator.follow(operation, start, end)
        return MemoryCurve((*allocator.freed, *allocator.permanent()), self.duration)

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
