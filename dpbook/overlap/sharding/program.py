"""What a sharded step does, in the order in which a rank asks for it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias, get_args

from dpbook.overlap.sharding.choices import Sharding
from dpbook.overlap.sharding.units import Sizes, Unit

Lane: TypeAlias = Literal["compute", "communication"]
Computation: TypeAlias = Literal["forward", "recompute", "backward", "optimizer"]
Collective: TypeAlias = Literal["all-gather", "reduce-scatter", "all-reduce"]
COLLECTIVES: tuple[Collective, ...] = get_args(Collective)


class Work(NamedTuple):
    """A piece of computation or a collective: it starts when its lane is free and all works in ``after`` are over.

    ``unit``: its index; None for the optimizer. ``nbytes``: of the whole buffer of a collective. ``sent``: bytes that
    this rank sends. ``completed``: the work that completes what a collective carries, if any.
    """

    what: Computation | Collective
    unit: int | None
    lane: Lane
    after: tuple[int, ...]
    nbytes: int = 0
    sent: float = 0.0
    completed: int | None = None


@dataclass
class Program:
    """The works of a step, each listed after those that it needs.

    A gather is asked for when the unit before the first of the ``prefetch`` before its own has been computed; a
    reduction when its unit's backward is over. While a unit's backward runs, the reduce-scatter before the last one is
    over (FSDP of torch 2.13 waits for it, so that few whole gradients are alive).
    """

    units: Sequence[Unit]
    sharding: Sharding
    sizes: Sizes
    works: list[Work] = field(default_factory=list)
    computed: tuple[int, ...] = ()
    """The last computation that has been asked for."""
    called: tuple[int, ...] = ()
    """The last collective. They run in order: when it is over, all are."""
    gathers: dict[int, int] = field(default_factory=dict)
    """Of each unit whose weights are whole, the gather that made them so."""

    def step(self, accumulation: int, no_sync: bool) -> None:
        """Forward and backward of each micro-batch, then the update."""
        how = self.sharding
        order = range(len(self.units))
        early = how.stage in (1, 2) and how.behind_forward
        fresh = [self._new_weights(unit, ()) for unit in order] if early else [()] * len(order)
        for micro_batch in range(accumulation):
            last = micro_batch == accumulation - 1
            self._forward(self.called if micro_batch else (), [()] * len(order) if micro_batch else fresh)
            self._backward(sync=last or not no_sync)
        self._compute("optimizer", None, self.called)
        if how.stage in (1, 2) and not early:
            updated = self.computed
            for unit in order:
                self._new_weights(unit, updated)

    def _forward(self, waits: tuple[int, ...], fresh: Sequence[tuple[int, ...]]) -> None:
        """Compute the units when ``waits`` are over, each with its ``fresh`` weights where some are on their way."""
        for unit, gather in self._with_gathers(range(len(self.units))):
            self._compute("forward", unit, (*waits, *gather, *fresh[unit]))
            waits = ()
            if self.sharding.frees and not self.units[unit].kept:
                self.gathers.pop(unit, None)

    def _backward(self, sync: bool) -> None:
        """Compute the units the other way round, and reduce their gradients in a ``sync``."""
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
        """Each unit in the order of a pass, with the gather that it waits for, after the gathers ahead of it."""
        asked = 0
        for place, unit in enumerate(order):
            while asked < min(place + self.sharding.prefetch + 1, len(order)):
                self._gather(order[asked])
                asked += 1
            yield unit, (self.gathers[unit],) if unit in self.gathers else ()

    def _gather(self, unit: int) -> None:
        nbytes = self.units[unit].parameters * self.sizes.weight
        if self.sharding.stage == 3 and nbytes and unit not in self.gathers:
            self.gathers[unit] = self._call("all-gather", unit, nbytes, self.computed)

    def _new_weights(self, unit: int, after: tuple[int, ...]) -> tuple[int, ...]:
        nbytes = self.units[unit].trained * self.sizes.weight
        return (self._call("all-gather", unit, nbytes, after),) if nbytes else ()

    def _reduce(self, unit: int) -> int:
        """Send the gradients of the unit whose backward has been asked for."""
        how, trained, made = self.sharding, self.units[unit].trained, self.computed
        nbytes = trained * self.sizes.gradient
        if not how.stage:
            return self._call("all-reduce", unit, nbytes, made, made[0])
        call = self._call("reduce-scatter", unit, nbytes, made, made[0])
        if how.replicas > 1:
            shard = how.share(trained) * self.sizes.gradient
            self._call("all-reduce", unit, shard, (call,), made[0], how.replicas)
        return call

    def _compute(self, what: Computation, unit: int | None, after: tuple[int, ...]) -> None:
        self.works.append(Work(what, unit, "compute", after))
        self.computed = (len(self.works) - 1,)

    def _call(
        self, what: Collective, unit: int, nbytes: int, after: tuple[int, ...],
        completed: int | None = None, ranks: int | None = None,
    ) -> int:  # fmt: skip
        """A collective: in each half of an all-reduce a rank sends all but its own share of the buffer."""
        n, halves = ranks or self.sharding.shards, 2 if what == "all-reduce" else 1
        sent = halves * nbytes * (n - 1) / n
        self.works.append(Work(what, unit, "communication", after, nbytes, sent, completed))
        self.called = (len(self.works) - 1,)
        return self.called[0]
