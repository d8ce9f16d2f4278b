"""Where more GPUs stop helping: step time and efficiency against their number."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, log10

from dpbook import planning
from dpbook.core import palette
from dpbook.figures import Picture
from dpbook.figures.card import MARGIN, Card, Key, Scale, axes, check_title, rect, text
from dpbook.planning import Cluster, Job, PredictedStep

WIDTH, LEFT, RIGHT = 760, 80, 740
TIMES, SHARES = (324, 124), (440, 360)
"""Where the axes of step time and of efficiency begin and end, in pixels from the top."""
MOST_NOTES, NOTE = 3, 19
"""Lines kept free for the notes of an explorer, and their height."""
LINES = {
    "step": Key("step", palette.INK, "line", 3),
    "computation": Key("computation alone, 1/N", palette.COMPUTATION, "line", 1.8),
    "communication": Key("communication alone", palette.COMMUNICATION, "line", 1.8, "7 4"),
    "weak": Key("step, weak scaling", palette.COMPLETE, "line", 2.4, "9 3 2 3"),
}
WALLS = {
    "backward": Key("sync takes as long as backward", palette.EXPOSED, "line", 2.5, "2 3"),
    "what hides it": Key("sync takes as long as what hides it", palette.EXPOSED, "line", 2.5, "2 3"),
    "all of compute": Key("as long as all of compute", palette.EXPOSED, "line", 1.2, "2 3"),
}
HERE, BEFORE = Key("you are here", palette.INK, "ring", inside=palette.INK), Key("last position", axes.GHOST, "ring")


@dataclass(frozen=True)
class Scaling:
    """Steps over growing ``worlds`` and at the walls: of one batch, and (``weak``) with as many tokens on every GPU.

    ``walls``: the first world where the sync takes as long as what the key names, or None.
    """

    worlds: Sequence[int]
    steps: Sequence[PredictedStep]
    weak: Sequence[PredictedStep]
    walls: dict[str, int | None]

    @property
    def found(self) -> str:
        """Where the wall is, in words."""
        wall = next(iter(self.walls.values()))
        return f"the wall is at {wall:,} GPUs" if wall else f"no wall up to {self.worlds[-1]:,} GPUs"


@dataclass(frozen=True)
class Position:
    """Where an explorer stands: its curves, the ``step`` of its own world, and ``notes``, a line each."""

    scaling: Scaling
    step: PredictedStep
    notes: Sequence[str]


@dataclass(frozen=True)
class Field:
    """Numbers of GPUs across; above, seconds of a step, and under them its efficiency."""

    gpus: tuple[int, int]
    seconds: tuple[float, float]

    @property
    def across(self) -> Scale:
        """GPUs to places."""
        return Scale(*self.gpus, LEFT, RIGHT, log=True)

    @property
    def times(self) -> Scale:
        """Seconds to places."""
        return Scale(*self.seconds, *TIMES, log=True)

    @property
    def shares(self) -> Scale:
        """Efficiency to places."""
        return Scale(0, 1, *SHARES)


def scaling(job: Job, cluster: Cluster, tokens: int, worlds: Sequence[int]) -> Scaling:
    """The steps of ``worlds`` for ``tokens`` in the global batch; sequences may be cut.

    In weak scaling every GPU has as many tokens as at the cluster's world.
    """
    every = range(worlds[0], worlds[-1] + 1, max(cluster.per_node, job.cut))
    behind = {"what hides it": job} if job.stage else {"backward": job, "all of compute": replace(job, window="all")}
    walls = {name: planning.wall(replace(at, context=tokens), cluster, 1, every) for name, at in behind.items()}
    drawn = sorted({*worlds, *filter(None, walls.values())})  # or the curves would leave their ideal before the wall
    steps = [one_step(job, cluster, tokens, world) for world in drawn]
    weak = [one_step(job, cluster, max(1, round(tokens * world / cluster.world)), world) for world in drawn]
    return Scaling(worlds, steps, weak, walls)


def one_step(job: Job, cluster: Cluster, tokens: int, world: int) -> PredictedStep:
    """The tokens as one long sequence, of which each rank has its part."""
    (step,) = planning.strong(replace(job, context=tokens), cluster, [world], 1, cut_sequences=True)
    return step


def scaling_wall(job: Job, cluster: Cluster, tokens: int, worlds: Sequence[int], title: str) -> Picture:
    """Draw step time, its parts and efficiency over ``worlds``, for ``tokens`` in the global batch.

    Numbers of GPUs and seconds are logarithmic. Where the wall is follows the ``title``.
    """
    check_title(title)
    found = scaling(job, cluster, tokens, worlds)
    seen = [time for step in found.steps for time in (step.seconds, step.compute, step.communication) if time]
    field = Field((worlds[0], worlds[-1]), (10 ** floor(log10(min(seen))), 10 ** ceil(log10(max(seen)))))
    return draw(found, title, field)


def draw(
    found: Scaling, title: str, field: Field, here: Position | None = None, before: Position | None = None
) -> Picture:
    """Draw what was ``found`` on the axes of ``field``; ``here`` and ``before`` are where an explorer is and was."""
    title = f"{title}: {found.found}"
    keys = [*LINES.values(), *(WALLS[name] for name in found.walls)]
    keys += [key for key, place in ((HERE, here), (BEFORE, before)) if place]
    card = Card(WIDTH, title)
    card.legend(map(axes.mark, keys))
    card.add(*_axes(field))
    if before:
        card.add(*_curves(before.scaling, field, {"step": LINES["step"]._replace(colour=axes.GHOST, width=1.5)}))
    card.add(*_curves(found, field, LINES), *_walls(found, field))
    if before:
        card.add(*_place(before.step, field, BEFORE))
    if here:
        card.add(*_place(here.step, field, HERE), *_notes(here.notes))
    height = SHARES[0] + (54 + NOTE * MOST_NOTES if here else 46)
    told_of = [step for step in found.steps if step.world in found.worlds[::2]]
    told = "; ".join(f"{s.world:,}: {axes.seconds_in_words(s.seconds)}, {s.efficiency:.0%}" for s in told_of)
    at_walls = "".join(f"Sync = {name} at {at:,}. " for name, at in found.walls.items() if at)
    noted = "; ".join(here.notes) if here else ""
    return card.picture(height, f"{at_walls}Step time and efficiency by GPUs: {told}. {noted}".strip())


def _axes(field: Field) -> Iterator[str]:
    first, last = field.gpus
    gpus = [first * 4**power for power in range(10) if first * 4**power <= last]
    times = {seconds: axes.seconds_in_words(seconds) for seconds in axes.decades(*field.seconds)}
    yield from axes.axis_up(field.times, LEFT, times, RIGHT, "time of a step")
    yield from axes.axis_up(field.shares, LEFT, {0: "0 %", 0.5: "50 %", 1: "100 %"}, RIGHT, "efficiency")
    yield from axes.axis_across(field.across, SHARES[0], {world: f"{world:,}" for world in gpus}, "GPUs", TIMES[1])


def _curves(found: Scaling, field: Field, lines: Mapping[str, Key]) -> Iterator[str]:
    """What is in ``lines``, by step time, and the efficiency of the step."""
    seconds = {
        "weak": [(step.world, step.seconds) for step in found.weak],
        "computation": [(step.world, step.compute) for step in found.steps],
        "communication": [(step.world, step.communication) for step in found.steps if step.communication],
        "step": [(step.world, step.seconds) for step in found.steps],
    }
    parts = []
    for name, points in seconds.items():
        if name in lines and points:
            parts.append(axes.curve([(field.across(world), field.times(time)) for world, time in points], lines[name]))
    yield axes.window(field.across, field.times, parts)
    yield axes.curve([(field.across(step.world), field.shares(step.efficiency)) for step in found.steps], lines["step"])


def _walls(found: Scaling, field: Field) -> Iterator[str]:
    """A line at each wall, and its number of GPUs."""
    for row, (name, at) in enumerate(found.walls.items()):
        if at:
            x = field.across.within(at)
            yield axes.curve([(x, TIMES[1]), (x, SHARES[0])], WALLS[name])
            anchor, side = ("end", -6) if x > RIGHT - 80 else (None, 6)
            y = TIMES[1] + 14 + 16 * row
            colour, halo = palette.EXPOSED, palette.PAPER
            yield text(x + side, y, f"{at:,}", 12, anchor=anchor, fill=colour, bold=not row, halo=halo)


def _place(step: PredictedStep, field: Field, key: Key) -> Iterator[str]:
    """A step on both curves."""
    x = field.across.within(step.world)
    yield rect(x - 0.5, TIMES[1], 1, SHARES[0] - TIMES[1], fill=key.colour)
    yield axes.ring(x, field.times.within(step.seconds), key.colour, key.inside)
    yield axes.ring(x, field.shares(step.efficiency), key.colour, key.inside)


def _notes(notes: Sequence[str]) -> Iterator[str]:
    for line, note in enumerate(notes):
        colour = palette.EXPOSED if "NOT" in note else None
        yield text(MARGIN, SHARES[0] + 58 + NOTE * line, note, 13, bold=line < 2, fill=colour)
