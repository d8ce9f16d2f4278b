"""What memory each work of a sharded step allocates when it starts, and frees when it ends."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from dpbook.overlap.sharding.choices import Sharding
from dpbook.overlap.sharding.memory import Content, Held
from dpbook.overlap.sharding.program import Work
from dpbook.overlap.sharding.units import Sizes, Unit


def held(
    units: Sequence[Unit], sharding: Sharding, sizes: Sizes, works: Iterable[tuple[Work, float, float]]
) -> tuple[Held, ...]:
    """Everything that memory holds in a step of these works, each with its start and end in seconds."""
    holding = _Holding(units, sharding, sizes)
    for work, start, end in works:
        holding.follow(work, start, end)
    return (*holding.closed, *holding.always())


@dataclass
class _Holding:
    """What is alive, and what was.

    Whole gradients come when a unit's backward starts. Where they are sharded they are given back, but for the rank's
    own, when they are reduced and the next unit's backward is over: as in FSDP of torch 2.13, nobody looks before.
    """

    units: Sequence[Unit]
    sharding: Sharding
    sizes: Sizes
    alive: dict[tuple[Content, int], float] = field(default_factory=dict)
    """Since when, by content and unit."""
    again: dict[int, float] = field(default_factory=dict)
    """Since when activations are there that were computed again, by unit."""
    summed: tuple[int, float] | None = None
    """The unit whose gradients were reduced last and are still whole, and when they were."""
    closed: list[Held] = field(default_factory=list)

    def follow(self, work: Work, start: float, end: float) -> None:
        """Allocate and free what a work does."""
        how, unit = self.sharding, work.unit
        if work.what in ("forward", "optimizer"):  # the backward before it is over
            self._settle(0.0)
        if unit is None:
            for owner in range(len(self.units)):
                self._close(("gradients", "reduced"), owner, end)
            return
        at = self.units[unit]
        if work.what == "all-gather" and how.stage == 3:
            self._open("gathered", unit, start)
        elif work.what == "forward":
            self._open("activations", unit, start)
            if how.frees and not at.kept:
                self._close(("gathered",), unit, end)
        elif work.what == "recompute":
            self.again[unit] = start
        elif work.what == "backward":
            self._open("gradients", unit, start)
            self._close(("activations", "gathered"), unit, end)
            self._hold("activations", unit, at.scratch, start, end)
            if how.recompute:
                self._hold("activations", unit, at.activations, self.again.pop(unit), end)
            self._settle(end)
        elif work.what == "reduce-scatter" and how.stage >= 2:
            self.summed = unit, end
        if how.copied and work.lane == "communication":
            self._hold("buffers", unit, work.nbytes, start, end)

    def _settle(self, moment: float) -> None:
        """Keep the rank's own of the gradients that were reduced last, once they are, and not before ``moment``."""
        if self.summed is not None:
            unit, end = self.summed
            self._close(("gradients",), unit, max(end, moment))
            self._open("reduced", unit, max(end, moment))
            self.summed = None

    def always(self) -> Iterator[Held]:
        """What was there before the step and stays."""
        for unit in range(len(self.units)):
            yield Held("weights", unit, self._nbytes("weights", unit), 0.0, inf)
            yield Held("optimizer", unit, self._nbytes("optimizer", unit), 0.0, inf)

    def _open(self, content: Content, unit: int, moment: float) -> None:
        self.alive.setdefault((content, unit), moment)

    def _close(self, contents: Iterable[Content], unit: int, moment: float) -> None:
        for content in contents:
            if (since := self.alive.pop((content, unit), None)) is not None:
                self._hold(content, unit, self._nbytes(content, unit), since, moment)

    def _hold(self, content: Content, unit: int, nbytes: int, start: float, end: float) -> None:
        if nbytes:
            self.closed.append(Held(content, unit, nbytes, start, end))

    def _nbytes(self, content: Content, unit: int) -> int:
        """Bytes of what a unit holds on the rank with the largest shard; of activations what forward keeps."""
        how, at, sizes = self.sharding, self.units[unit], self.sizes
        nbytes: dict[Content, int] = {
            "activations": at.input if how.recompute else at.activations,
            "gathered": at.parameters * sizes.weight,
            "gradients": at.trained * sizes.gradient,
            "reduced": how.share(at.trained) * sizes.gradient,
            "weights": how.share(at.parameters) * (sizes.shard or 0)
            if how.stage == 3
            else at.parameters * sizes.weight,
            "optimizer": (how.share(at.trained) if how.stage else at.trained) * sizes.optimizer,
        }
        return nbytes[content]
