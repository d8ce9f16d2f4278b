"""A sharded step to step through: which rank holds which piece of each unit's weights and gradients, and when."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from dpbook.core import InvalidArgument, check_type, milliseconds, palette, plural
from dpbook.figures import Picture, Viewer
from dpbook.figures.card import MARGIN, Mark, aside, legend, line, rect, text
from dpbook.figures.steps import CONTENT_FILLS, draw_memory_until
from dpbook.overlap import Content, ShardedStep

MOST_RANKS, MOST_UNITS = 4, 6
LEFT, RIGHT, GAP = 132, 20, 14
"""Pixels beside the units, as the axis of time has them, and between two of them."""
BAR, THIN, ROW = 14, 6, 48
"""Heights of a bar of pieces, of that of the optimizer's state, and of a rank."""
SAME = 1e-9
"""Of a step: moments that are nearer are one, which rounding has divided."""
MARKS: dict[str, Content] = {
    "weights that a rank keeps": "weights",
    "gathered": "gathered",
    "gradient of its own examples": "gradients",
    "reduced over all ranks": "reduced",
    "optimizer state": "optimizer",
}


@dataclass(frozen=True)
class Holder:
    """Whether a unit's weights are whole on a rank, its gradients there or reduced, and what is under way for it.

    ``own``: the pieces of the reduced gradients are the ranks' own alone, and not all on every rank.
    """

    whole: bool
    gathering: bool
    gradients: bool
    reducing: bool
    reduced: bool
    own: bool


def play_sharding(step: ShardedStep) -> Viewer:
    """Step through a sharded step from change to change: its timeline, its memory, and what every rank holds.

    Raises `InvalidArgument` for more than 4 ranks or 6 units.
    """
    check_type("step", step, ShardedStep, "a ShardedStep, as overlap.simulate_sharded returns it")
    if step.sharding.world > MOST_RANKS or len(step.units) > MOST_UNITS:
        given = f"{plural(len(step.units), 'unit')} on {plural(step.sharding.world, 'rank')}"
        raise InvalidArgument("step", given, f"one of at most {MOST_UNITS} units on {MOST_RANKS} ranks")
    film = _Holders(step)
    return Viewer(film.draw, len(film.moments) - 1, "change")


@dataclass(frozen=True)
class _Holders:
    step: ShardedStep

    @cached_property
    def moments(self) -> list[float]:
        """When something starts or ends, in seconds, from 0 to the end of the step."""
        found: list[float] = []
        for moment in sorted({*self.step.starts, *self.step.ends}):
            if not found or moment - found[-1] > SAME * self.step.duration:
                found.append(moment)
        return found

    def draw(self, after: int) -> Picture:
        """What is there and what runs from the moment ``after`` to the next."""
        now, last = self.moments[after], after == len(self.moments) - 1
        inside = now + 1.0 if last else (now + self.moments[after + 1]) / 2
        running = [s.name for s in self.step.timeline.spans if s.start <= inside < s.end]
        what = " and ".join(running) or "nothing runs"
        title = f"{milliseconds(now)}: {what}" if not last else f"The step has taken {milliseconds(now)}"
        picture = draw_memory_until({f"stage {self.step.sharding.stage}": self.step}, title, now)
        holders = [self.holder(unit, inside) for unit in range(len(self.step.units))]
        y = picture.height + 4
        signs = (Mark(words, rect(0, 0, 14, 14, rx=3, fill=CONTENT_FILLS[c])) for words, c in MARKS.items())
        marks, top = legend(signs, picture.width, y)
        body = (*picture.body, *marks, *self._ranks(holders, top + 18))
        height = top + 18 + ROW * self.step.sharding.world + 6
        told = ", ".join(f"unit {u.name} {_told(h)}" for u, h in zip(self.step.units, holders, strict=True))
        return Picture(picture.width, height, body, f"{picture.alt} Each rank has: {told}.")

    def holder(self, unit: int, moment: float) -> Holder:
        """What the ranks hold of a unit at a moment in seconds."""
        step, stage = self.step, self.step.sharding.stage
        alive = {h.content for h in step.memory.allocations if h.unit == unit and h.start <= moment < h.end}
        operations = [
            (op, a, b) for op, a, b in zip(step.operations, step.starts, step.ends, strict=True) if op.unit == unit
        ]
        running = {op.kind for op, a, b in operations if a <= moment < b}
        made = [b for op, _, b in operations if op.kind == "backward" and b <= moment]
        summed = [b for op, _, b in operations if op.kind in ("all-reduce", "reduce-scatter") and b <= moment]
        fresh = bool(made and summed and summed[-1] >= made[-1])  # no gradient has come since
        return Holder(
            whole=stage < 3 or ("gathered" in alive and "all-gather" not in running),
            gathering="all-gather" in running,
            gradients="gradients" in alive,
            reducing=bool(running & {"all-reduce", "reduce-scatter"}),
            reduced="reduced" in alive or ("gradients" in alive and fresh),
            own=stage > 0,
        )

    def _ranks(self, holders: Sequence[Holder], top: float) -> Iterator[str]:
        """A row for each rank, in it a column for each unit."""
        how, count = self.step.sharding, len(self.step.units)
        wide = (900 - LEFT - RIGHT + GAP) / count
        for unit, at in enumerate(self.step.units):
            yield aside(LEFT + unit * wide, top - 6, f"unit {at.name}", 11)
        for rank in range(how.world):
            y = top + ROW * rank
            yield text(MARGIN, y + 20, f"rank {rank}", 12, bold=True)
            for unit, holder in enumerate(holders):
                pieces = self._pieces(holder, rank % how.shards, LEFT + unit * wide, y, wide - GAP)
                yield "".join(pieces)  # one part, which a film has once

    def _pieces(self, holder: Holder, rank: int, x: float, y: float, width: float) -> Iterator[str]:
        """The pieces of a unit on a rank, as many as there are shards: of weights, gradients and optimizer state."""
        how = self.step.sharding
        wide = width / how.shards
        for piece in range(how.shards):
            mine, left = piece == rank, x + piece * wide
            kept = mine or how.stage < 3
            weights: Content | None = "weights" if kept else "gathered" if holder.whole else None
            yield _piece(left, y, wide - 1, BAR, weights)
            if holder.gathering and not mine:
                yield _under_way(left, y, wide - 1, "gathered")
            ready = holder.reduced and (mine or not holder.own)
            yield _piece(
                left, y + BAR + 2, wide - 1, BAR, "reduced" if ready else "gradients" if holder.gradients else None
            )
            if holder.reducing and (mine or not holder.own):
                yield _under_way(left, y + BAR + 2, wide - 1, "reduced")
            yield _piece(left, y + 2 * BAR + 4, wide - 1, THIN, "optimizer" if mine or not how.stage else None)


def _piece(x: float, y: float, width: float, height: float, content: Content | None) -> str:
    """A piece, or the place where it would be."""
    edge = palette.MUTED if content == "optimizer" else None
    return rect(x, y, width, height, fill=CONTENT_FILLS[content] if content else palette.PANEL, stroke=edge)


def _under_way(x: float, y: float, width: float, content: Content) -> str:
    """Stripes over a piece that is on its way."""
    return line(x, y + BAR / 2, x + width, y + BAR / 2, CONTENT_FILLS[content], BAR, "2 4")


def _told(holder: Holder) -> str:
    weights = "being gathered" if holder.gathering else "whole" if holder.whole else "its own piece"
    gradients = "no gradient"
    if holder.reducing:
        gradients = "gradients being reduced"
    elif holder.reduced:
        gradients = "its piece of reduced gradients" if holder.own else "reduced gradients"
    elif holder.gradients:
        gradients = "whole gradients"
    return f"{weights}, {gradients}"
