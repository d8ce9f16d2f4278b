"""The operations of a sharded step in the order in which a rank launches them, and their start and end times."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias, get_args

from dpbook.overlap.sharding import Sharding, Sizes, Unit, Wires

Lane: TypeAlias = Literal["compute", "communication"]
Computation: TypeAlias = Literal["forward", "recompute", "backward", "optimizer"]
Collective: TypeAlias = Literal["all-gather", "reduce-scatter", "all-reduce"]
COLLECTIVES: tuple[Collective, ...] = get_args(Collective)


class ShardedOperation(NamedTuple):
    """A computation or a collective, which starts when its lane is free and all operations in ``after`` are over.

    ``unit`` is the index of its unit, None for the optimizer. A collective has a whole buffer of ``nbytes``, and this
    rank sends ``sent`` bytes; ``completed`` is the index of the operation that completes its data, if any.
    """

    kind: Computation | Collective
    unit: int | None
    lane: Lane
    after: tuple[int, ...]
    nbytes: int = 0
    sent: float = 0.0
    completed: int | None = None


@dataclass
class ShardedProgram:
    """The operations of a step, each listed after those that it waits for.

    The gather of a unit is launched ``prefetch`` units ahead, when the unit before those has been computed. A reduction
    is launched when its unit's backward is over. Backward waits for the reduce-scatter before the last one, as FSDP of
    torch 2.13 does, so that few whole gradients are alive.
    """

    units: Sequence[Unit]
    sharding: Sharding
    sizes: Sizes
    operations: list[ShardedOperation] = field(default_factory=list)
    computed: tuple[int, ...] = ()
    """Index of the last computation, as a tuple; empty before the first."""
    called: tuple[int, ...] = ()
    """Index of the last collective, as a tuple; empty before the first. Collectives run in order, so it ends last."""
    gathers: dict[int, int] = field(default_factory=dict)
    """Index of the gather of each unit whose weights are whole, by unit."""

    def step(self, accumulation: int, no_sync: bool) -> None:
        """Append forward and backward of each micro-batch, then the update."""
        sharding = self.sharding
        order = range(len(self.units))
        early = sharding.stage in (1, 2) and sharding.behind_forward
        fresh = [self._new_weights(unit, ()) for unit in order] if early else [()] * len(order)
        for micro_batch in range(accumulation):
            last = micro_batch == accumulation - 1
            self._forward(self.called if micro_batch else (), [()] * len(order) if micro_batch else fresh)
            self._backward(sync=last or not no_sync)
        self._compute("optimizer", None, self.called)
        if sharding.stage in (1, 2) and not early:
            updated = self.computed
            for unit in order:
                self._new_weights(unit, updated)

    def _forward(self, waits: tuple[int, ...], fresh: Sequence[tuple[int, ...]]) -> None:
        """Append the forward of each unit; the first waits for ``waits``, and each for the gathers in ``fresh``."""
        for unit, gather in self._with_gathers(range(len(self.units))):
            self._compute("forward", unit, (*waits, *gather, *fresh[unit]))
            waits = ()
            if self.sharding.frees_after_forward and not self.units[unit].stays_gathered:
                self.gathers.pop(unit, None)

    def _backward(self, sync: bool) -> None:
        """Append the backward of the units in reverse order, with their reductions if ``sync``."""
        scatters: list[int] = []
        for unit, gather in self._with_gathers(range(len(self.units) - 1, -1, -1)):
            waits = (*gather, *scatters[-2:-1])
            if self.sharding.recompute:
                self._compute("recompute", unit, waits)
            self._compute("backward", unit, waits)
            self.gathers.pop(unit, None)
            if sync and self.units[unit].trained:
                reduction = self._reduce(unit)
                scatters += [reduction] if self.sharding.stage >= 2 else []

    def _with_gathers(self, order: range) -> Iterable[tuple[int, tuple[int, ...]]]:
        """Append the prefetched gathers, and yield each unit of a pass in order with the gather that it waits for."""
        launched = 0
        for place, unit in enumerate(order):
            while launched < min(place + self.sharding.prefetch + 1, len(order)):
                self._gather(order[launched])
                launched += 1
            yield unit, (self.gathers[unit],) if unit in self.gathers else ()

    def _gather(self, unit: int) -> None:
        nbytes = self.units[unit].parameters * self.sizes.weight
        if self.sharding.stage == 3 and nbytes and unit not in self.gathers:
            self.gathers[unit] = self._call("all-gather", unit, nbytes, self.computed)

    def _new_weights(self, unit: int, after: tuple[int, ...]) -> tuple[int, ...]:
        nbytes = self.units[unit].trained * self.sizes.weight
        return (self._call("all-gather", unit, nbytes, after),) if nbytes else ()

    def _reduce(self, unit: int) -> int:
        """Append the reductions of the unit whose backward is the last computation."""
        sharding, trained, after = self.sharding, self.units[unit].trained, self.computed
        nbytes = trained * self.sizes.gradient
        if not sharding.stage:
            return self._call("all-reduce", unit, nbytes, after, after[0])
        call = self._call("reduce-scatter", unit, nbytes, after, after[0])
        if sharding.replicas > 1:
            shard = sharding.share(trained) * self.sizes.gradient
            self._call("all-reduce", unit, shard, (call,), after[0], sharding.replicas)
        return call

    def _compute(self, kind: Computation, unit: int | None, after: tuple[int, ...]) -> None:
        self.operations.append(ShardedOperation(kind, unit, "compute", after))
        self.computed = (len(self.operations) - 1,)

    def _call(
        self, kind: Collective, unit: int, nbytes: int, after: tuple[int, ...],
        completed: int | None = None, ranks: int | None = None,
    ) -> int:  # fmt: skip
        """Append a collective; in each half of an all-reduce a rank sends all of the buffer but its share."""
        n, halves = ranks or self.sharding.shards, 2 if kind == "all-reduce" else 1
        sent = halves * nbytes * (n - 1) / n
        self.operations.append(ShardedOperation(kind, unit, "communication", after, nbytes, sent, completed))
        self.called = (len(self.operations) - 1,)
        return self.called[0]


class TimedProgram:
    """The ``operations`` of a step, whose times are computed for any number of prices; see `simulate_sharded`.

    The dependencies are found once. They depend on the elements of ``units``, and on every field of ``sharding`` except
    the number of shards. That number only changes the bytes sent and, with replicas, the bytes between them.
    """

    def __init__(
        self, units: Sequence[Unit], sharding: Sharding, sizes: Sizes, accumulation: int, no_sync: bool
    ) -> None:
        program = ShardedProgram(units, sharding, sizes)
        program.step(accumulation, no_sync)
        self.units, self.sharding, self.operations = units, sharding, program.operations
        # Many operations take the same time. Each distinct one is priced once, and every operation has its number.
        keys = [(op.kind, op.unit if op.lane == "compute" else op.nbytes) for op in self.operations]
        self._distinct = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        self._numbers = [self._distinct[key] for key in keys]
        # All that an operation waits for is the last one of the other lane, -1 if there is none: operations of its own
        # lane run one after another anyway.
        lanes = [op.lane for op in self.operations]
        self._waits = [max((n for n in op.after if lanes[n] != op.lane), default=-1) for op in self.operations]

    def seconds(self, wires: Wires, optimizer: float = 0.0, forward: float = 1.0, backward: float = 1.0) -> list[float]:
        """Return the seconds of each operation; ``forward`` and ``backward`` are factors on the times of the units."""
        shards = self.sharding.shards if self.sharding.stage else 1
        all_reduce = wires.across if self.sharding.stage else wires.all_reduce
        prices = {"all-gather": wires.all_gather, "reduce-scatter": wires.reduce_scatter, "all-reduce": all_reduce}

        def duration(kind: str, unit_or_bytes: int | None) -> float:
            if unit_or_bytes is None:
                return optimizer / shards
            if kind in prices:
                return prices[kind](unit_or_bytes)
            unit = self.units[unit_or_bytes]
            return unit.backward * backward if kind == "backward" else unit.forward * forward

        distinct = [duration(*key) for key in self._distinct]
        return [distinct[number] for number in self._numbers]

    def run(self, seconds: Sequence[float]) -> tuple[list[float], list[float]]:
        """Return the start and the end of each operation, given its ``seconds``."""
        free: dict[Lane, float] = {"compute": 0.0, "communication": 0.0}
        starts: list[float] = []
        ends: list[float] = []
        for operation, other, duration in zip(self.operations, self._waits, seconds, strict=True):
            start = free[operation.lane]
            if other >= 0 and ends[other] > start:
                start = ends[other]
            starts.append(start)
            end = start + duration
            ends.append(end)
            free[operation.lane] = end
        return starts, ends

    def busy(self, lane: Lane, seconds: Sequence[float]) -> float:
        """Return the seconds in which a lane is busy."""
        return sum(s for operation, s in zip(self.operations, seconds, strict=True) if operation.lane == lane)
