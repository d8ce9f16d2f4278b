"""Chapter 14: Shard everything. Player of a sharded step: which rank has which piece of each unit at every moment."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dpbook.book.ch14.units import allocated, cut_step, in_turns, sample_layers, trained_in_turns
from dpbook.core import InvalidArgument, check_type, milliseconds, palette, plural
from dpbook.figures import Picture, Viewer
from dpbook.figures.card import MARGIN, Mark, aside, legend, line, rect, text
from dpbook.figures.steps import CONTENT_FILLS, draw_memory_until
from dpbook.overlap import Content, ShardedStep, Sharding
from dpbook.ranks import sent

MOST_RANKS, MOST_UNITS = 4, 6
LEFT, RIGHT, GAP = 132, 20, 14
"""Pixels left and right of the units, aligned with the time axis, and between two units."""
BAR, THIN, ROW = 14, 6, 48
"""Heights of a bar of pieces, of the bar of the optimizer's state, and of a rank."""
TIME_TOLERANCE = 1e-9
"""Share of a step: moments closer than this differ only by rounding and count as one."""
MARKS: dict[str, Content] = {
    "weights that a rank keeps": "weights",
    "gathered": "gathered",
    "gradient of its own examples": "gradients",
    "reduced over all ranks": "reduced",
    "optimizer state": "optimizer",
}
REDUCTIONS = {"all-reduce", "reduce-scatter"}


class Holder(NamedTuple):
    """State of a unit on a rank: of its weights, its gradients, and its collectives under way."""

    whole: bool
    gathering: bool
    gradients: bool
    reducing: bool
    reduced: bool


def play_sharding(step: ShardedStep) -> Viewer:
    """Step through a sharded step change by change: its timeline, its memory, and the pieces on every rank.

    Raises `InvalidArgument` for more than 4 ranks or 6 units.
    """
    check_type("step", step, ShardedStep, "a ShardedStep, as overlap.simulate_sharded returns it")
    if step.sharding.world > MOST_RANKS or len(step.units) > MOST_UNITS:
        given = f"{plural(len(step.units), 'unit')} on {plural(step.sharding.world, 'rank')}"
        raise InvalidArgument("step", given, f"one of at most {MOST_UNITS} units on {MOST_RANKS} ranks")
    moments: list[float] = []
    for moment in sorted({*step.starts, *step.ends}):
        if not moments or moment - moments[-1] > TIME_TOLERANCE * step.duration:
            moments.append(moment)
    return Viewer(lambda after: _draw(step, moments, after), len(moments) - 1, "change")


def _draw(step: ShardedStep, moments: Sequence[float], after: int) -> Picture:
    """Draw the state and the running operations from moment number ``after`` to the next."""
    now, last = moments[after], after == len(moments) - 1
    inside = now + 1.0 if last else (now + moments[after + 1]) / 2
    running = [s.name for s in step.timeline.spans if s.start <= inside < s.end]
    activity = " and ".join(running) or "nothing runs"
    title = f"{milliseconds(now)}: {activity}" if not last else f"The step has taken {milliseconds(now)}"
    picture = draw_memory_until({f"stage {step.sharding.stage}": step}, title, now)
    holders = [_holder(step, unit, inside) for unit in range(len(step.units))]
    signs = (Mark(words, rect(0, 0, 14, 14, rx=3, fill=CONTENT_FILLS[c])) for words, c in MARKS.items())
    marks, top = legend(signs, picture.width, picture.height + 4)
    body = (*picture.body, *marks, *_ranks(step, holders, top + 18))
    height = top + 18 + ROW * step.sharding.world + 6
    states = (_in_words(holder, step.sharding) for holder in holders)
    units = ", ".join(f"unit {unit.name} {state}" for unit, state in zip(step.units, states, strict=True))
    return Picture(picture.width, height, body, f"{picture.alt} Each rank has: {units}.")


def _holder(step: ShardedStep, unit: int, moment: float) -> Holder:
    """Return the state of a unit on the ranks at a moment in seconds."""
    alive = {h.content for h in step.memory.allocations if h.unit == unit and h.start <= moment < h.end}
    times = zip(step.operations, step.starts, step.ends, strict=True)
    operations = [(op.kind, start, end) for op, start, end in times if op.unit == unit]
    running = {kind for kind, start, end in operations if start <= moment < end}
    backwards = [end for kind, _, end in operations if kind == "backward" and end <= moment]
    reductions = [end for kind, _, end in operations if kind in REDUCTIONS and end <= moment]
    fresh = bool(backwards and reductions and reductions[-1] >= backwards[-1])  # no newer gradient exists
    return Holder(
        whole=step.sharding.stage < 3 or ("gathered" in alive and "all-gather" not in running),
        gathering="all-gather" in running,
        gradients="gradients" in alive,
        reducing=bool(running & REDUCTIONS),
        reduced="reduced" in alive or ("gradients" in alive and fresh),
    )


def _ranks(step: ShardedStep, holders: Sequence[Holder], top: float) -> Iterator[str]:
    """Draw a row for each rank, with a column for each unit."""
    wide = (900 - LEFT - RIGHT + GAP) / len(step.units)
    for unit, at in enumerate(step.units):
        yield aside(LEFT + unit * wide, top - 6, f"unit {at.name}")
    for rank in range(step.sharding.world):
        y = top + ROW * rank
        yield text(MARGIN, y + 20, f"rank {rank}", 12, bold=True)
        for unit, holder in enumerate(holders):
            pieces = _pieces(step.sharding, holder, rank, LEFT + unit * wide, y, wide - GAP)
            yield "".join(pieces)  # one part, which a film stores once


def _pieces(sharding: Sharding, holder: Holder, rank: int, x: float, y: float, width: float) -> Iterator[str]:
    """Draw a unit's pieces on a rank, one per shard: of its weights, gradients and optimizer state."""
    wide = width / sharding.shards
    for piece in range(sharding.shards):
        mine, piece_x = piece == rank % sharding.shards, x + piece * wide
        updates = mine or not sharding.stage  # the rank has the sum of this piece's gradients, and its optimizer state
        weights: Content | None = "gathered" if holder.whole else None
        gradients: Content | None = "gradients" if holder.gradients else None
        yield _piece(piece_x, y, wide - 1, BAR, "weights" if mine or sharding.stage < 3 else weights)
        if holder.gathering and not mine:
            yield _under_way(piece_x, y, wide - 1, "gathered")
        yield _piece(piece_x, y + BAR + 2, wide - 1, BAR, "reduced" if holder.reduced and updates else gradients)
        if holder.reducing and updates:
            yield _under_way(piece_x, y + BAR + 2, wide - 1, "reduced")
        yield _piece(piece_x, y + 2 * BAR + 4, wide - 1, THIN, "optimizer" if updates else None)


def _piece(x: float, y: float, width: float, height: float, content: Content | None) -> str:
    """Draw a piece, or its empty place."""
    edge = palette.MUTED if content == "optimizer" else None
    return rect(x, y, width, height, fill=CONTENT_FILLS[content] if content else palette.PANEL, stroke=edge)


def _under_way(x: float, y: float, width: float, content: Content) -> str:
    """Draw stripes over a piece that is under way."""
    return line(x, y + BAR / 2, x + width, y + BAR / 2, CONTENT_FILLS[content], BAR, "2 4")


def _in_words(holder: Holder, sharding: Sharding) -> str:
    weights = "being gathered" if holder.gathering else "whole" if holder.whole else "its own piece"
    gradients = "no gradient"
    if holder.reducing:
        gradients = "gradients being reduced"
    elif holder.reduced:
        gradients = "its piece of reduced gradients" if sharding.stage else "reduced gradients"
    elif holder.gradients:
        gradients = "whole gradients"
    return f"{weights}, {gradients}"
