"""What a sharded step does, in the order in which a rank asks for it, and what memory each piece of it needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from dpbook.overlap.sharding.choices import Price, Sharding, Wires
from dpbook.overlap.sharding.memory import Content
from dpbook.overlap.sharding.units import Sizes, Unit

Lane = Literal["compute", "communication"]


class Work(NamedTuple):
    """A piece of computation or a collective: it starts when its lane is free and all works in ``after`` are over.

    ``sent``: bytes that this rank sends. ``completed``: the work that completes what a collective carries, if any.
    """

    name: str
    lane: Lane
    seconds: float
    after: tuple[int, ...]
    sent: float = 0.0
    completed: int | None = None


class Hold(NamedTuple):
    """Memory that is alive from the start of the work ``since`` to the end of the work ``until``.

    None in their place is before the step and after it. What is reduced is alive from the *end* of ``since`` on.
    """

    content: Content
    unit: int
    nbytes: int
    since: int | None
    until: int | None


@dataclass
class Program:
    """The works of a step, each listed after those that it needs, and the memory that they hold.

    A gather is asked for when the unit before the first of the ``prefetch`` before its own has been computed; a
    reduction when its unit's backward is over. While a unit's backward runs, the reduce-scatter before the last one is
    over (FSDP of torch 2.13 waits for it, so that few whole gradients are alive).
    """

    units: Sequence[Unit]
    sharding: Sharding
    wires: Wires
    sizes: Sizes
    works: list[Work] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    computed: tuple[int, ...] = ()
    """The last computation that has been asked for."""
    reductions: list[int] = field(default_factory=list)
    """The reductions of the backward that runs: of whole gradients, each before its all-reduce across replicas."""
    opened: dict[tuple[Content, int], int] = field(default_factory=dict)
    """For each content of a unit that is alive, the work since when."""

    def step(self, accumulation: int, no_sync: bool, update: float) -> None:
        """Forward and backward of each micro-batch, then the update, which takes so many seconds unsharded."""
        how = self.sharding
        gathers_new = how.stage in (1, 2)
        fresh = [self._new_weights(unit, ()) for unit in self._indices()] if gathers_new and how.behind_forward else []
        for micro_batch in range(accumulation):
            last = micro_batch == accumulation - 1
            self._forward(self._drained() if micro_batch else (), [] if micro_batch else fresh)
            self._backward(sync=last or not no_sync, last=last)
        update = self._compute("optimizer", update / (how.shards if how.stage else 1), self._drained())
        self._close(("gradients", "reduced"), update)
        if gathers_new and not how.behind_forward:
            for unit in self._indices():
                self._new_weights(unit, (update,))
        self._keep()

    def _forward(self, waits: tuple[int, ...], fresh: Sequence[int]) -> None:
        """Compute the units when ``waits`` are over, each with its ``fresh`` weights where some are on their way."""
        for unit, gathers in self._with_gathers(list(self._indices())):
            at = self.units[unit]
            work = self._compute(f"forward {at.name}", at.forward, (*waits, *gathers, *fresh[unit : unit + 1]))
            waits = ()
            self.opened["activations", unit] = work
            if self.sharding.frees and not at.kept:
                self._close(("gathered",), work, unit)

    def _backward(self, sync: bool, last: bool) -> None:
        self.reductions = []
        for unit, gathers in self._with_gathers(list(reversed(self._indices()))):
            at, waits = self.units[unit], (*gathers, *self._settled())
            kept = self.opened.pop(("activations", unit))
            if self.sharding.recompute:
                again = self._compute(f"recompute {at.name}", at.forward, waits)
            work = self._compute(f"backward {at.name}", at.backward, waits)
            self._hold("activations", unit, at.input if self.sharding.recompute else at.activations, kept, work)
            if self.sharding.recompute:
                self._hold("activations", unit, at.activations, again, work)
            self._close(("gathered",), work, unit)
            if at.trained:
                self.opened.setdefault(("gradients", unit), work)
                if sync:
                    self._reduce(unit, work, last)

    def _with_gathers(self, order: list[int]) -> Iterable[tuple[int, tuple[int, ...]]]:
        """Each unit in the order of a pass, with the gather that it waits for, after the gathers ahead of it."""
        asked = 0
        for place, unit in enumerate(order):
            while asked < min(place + self.sharding.prefetch + 1, len(order)):
                self._gather(order[asked])
                asked += 1
            gather = self.opened.get(("gathered", unit))
            yield unit, () if gather is None else (gather,)

    def _gather(self, unit: int) -> None:
        at = self.units[unit]
        if self.sharding.stage == 3 and ("gathered", unit) not in self.opened:
            name, nbytes = f"all-gather {at.name}", at.parameters * self.sizes.weight
            self.opened["gathered", unit] = self._call(name, self.wires.all_gather, nbytes, self.computed)

    def _new_weights(self, unit: int, after: tuple[int, ...]) -> int:
        at = self.units[unit]
        return self._call(f"all-gather {at.name}", self.wires.all_gather, at.trained * self.sizes.weight, after)

    def _reduce(self, unit: int, work: int, last: bool) -> None:
        """Send the gradients of a unit whose backward is ``work``."""
        how, at, nbytes = self.sharding, self.units[unit], self.units[unit].trained * self.sizes.gradient
        if not how.stage:
            call = self._call(f"all-reduce {at.name}", self.wires.all_reduce, nbytes, (work,), work, halves=2)
        else:
            call = self._call(f"reduce-scatter {at.name}", self.wires.reduce_scatter, nbytes, (work,), work)
        self.reductions.append(call)
        if how.stage >= 2:
            self._close(("gradients",), call, unit)
            self.opened.setdefault(("reduced", unit), call)
        if last and how.replicas > 1:
            shard = how.share(at.trained) * self.sizes.gradient
            price = self.wires.across
            self._call(f"all-reduce {at.name}", price, shard, (call,), work, halves=2, ranks=how.replicas)

    def _settled(self) -> tuple[int, ...]:
        """What backward waits for before its next unit, so that at most one reduce-scatter is under way."""
        return (self.reductions[-2],) if self.sharding.stage >= 2 and len(self.reductions) > 1 else ()

    def _drained(self) -> tuple[int, ...]:
        """The last collective: they run in order, so all are over then."""
        return next(((i,) for i in range(len(self.works) - 1, -1, -1) if self.works[i].lane == "communication"), ())

    def _compute(self, name: str, seconds: float, after: tuple[int, ...]) -> int:
        self.works.append(Work(name, "compute", seconds, after))
        self.computed = (len(self.works) - 1,)
        return self.computed[0]

    def _call(
        self, name: str, price: Price, nbytes: int, after: tuple[int, ...], completed: int | None = None, *,
        halves: int = 1, ranks: int | None = None,
    ) -> int:  # fmt: skip
        """A collective of so many ``halves`` of an all-reduce: each sends all but its own share of the buffer."""
        n = ranks or self.sharding.shards
        self.works.append(Work(name, "communication", price(nbytes), after, halves * nbytes * (n - 1) / n, completed))
        return len(self.works) - 1

    def _close(self, contents: Iterable[Content], until: int, unit: int | None = None) -> None:
        """Free what is alive of these contents, of one unit or of all, when the work ``until`` is over."""
        for content in contents:
            for owner in self._indices() if unit is None else (unit,):
                if (since := self.opened.pop((content, owner), None)) is not None:
                    self._hold(content, owner, self._nbytes(content, owner), since, until)

    def _keep(self) -> None:
        """What was there before the step and stays after it."""
        for unit in self._indices():
            self._hold("weights", unit, self._nbytes("weights", unit), None, None)
            self._hold("optimizer", unit, self._nbytes("optimizer", unit), None, None)

    def _hold(self, content: Content, unit: int, nbytes: int, since: int | None, until: int | None) -> None:
        self.holds.append(Hold(content, unit, nbytes, since, until))

    def _nbytes(self, content: Content, unit: int) -> int:
        """Bytes of what a unit holds, apart from its activations, on the rank with the largest shard."""
        how, at, sizes = self.sharding, self.units[unit], self.sizes
        if content == "gathered":
            return at.parameters * sizes.weight
        if content == "gradients":
            return at.trained * sizes.gradient
        if content == "reduced":
            return how.share(at.trained) * sizes.gradient
        if content == "optimizer":
            return (how.share(at.trained) if how.stage else at.trained) * sizes.optimizer
        return how.share(at.parameters) * (sizes.shard or 0) if how.stage == 3 else at.parameters * sizes.weight

    def _indices(self) -> range:
        return range(len(self.units))
