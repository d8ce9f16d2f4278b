"""An explorer of memory: which ZeRO stage fits, and from how many GPUs on."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from dpbook.book.ch13.capacity import TOO_MUCH, WIDTH, gigabytes, memory_bars
from dpbook.core import palette
from dpbook.figures import Explorer, Knob, Picture
from dpbook.figures.card import MARGIN, Key, Scale, axes, rect, stacked, text
from dpbook.planning import ACCELERATORS, MODELS, RECIPES, Memory, memory_per_rank

WORLDS = tuple(2**power for power in range(14))
STAGES = {
    "plain": Key("plain", palette.INK, "line", 2.5),
    "ZeRO-1": Key("ZeRO-1", palette.INK, "line", 2, "9 4"),
    "ZeRO-2": Key("ZeRO-2", palette.INK, "line", 2, "5 3"),
    "ZeRO-3": Key("ZeRO-3", palette.INK, "line", 2, "2 3"),
}
LEFT, RIGHT, TOP, BOTTOM, GAP = 90, 580, 48, 238, 16
ACROSS = Scale(WORLDS[0], WORLDS[-1], LEFT, RIGHT, log=True)
UP = Scale(1e9, 2e12, BOTTOM, TOP, log=True)
"""Bytes; the axes stay as they are, whatever is turned."""


def explore_memory() -> Explorer:
    """Turn model, GPU, number of ranks and recipe, and see which ZeRO stage fits (activations left out).

    Under the bars are the same bytes over the number of GPUs.
    """

    def draw(before: Mapping[str, Any] | None, **now: Any) -> Picture:
        capacity, memories = _capacity(now), _memories(now["model"], now["world"], now["recipe"])
        fitting = [name for name, memory in memories.items() if memory.total <= capacity]
        found = f"{fitting[0]} is enough" if fitting else "nothing fits"
        title = f"{now['model']} on {now['world']:,} × {now['accelerator']}: {found}"
        last = [total / _capacity(before) for total in _totals(before, before["world"])] if before else []
        return stacked(memory_bars(memories, capacity, title, last), _over_worlds(now, before))

    knobs = [
        Knob("world", "GPUs", {f"{world:,}": world for world in WORLDS}, "8"),
        Knob("model", "model", {name: name for name in MODELS}),
        Knob("accelerator", "GPU", {name: name for name in ACCELERATORS}, "H100 SXM"),
        Knob("recipe", "recipe", {name: name for name in RECIPES}),
    ]
    return Explorer(draw, knobs)


def _capacity(chosen: Mapping[str, Any]) -> float:
    return ACCELERATORS[chosen["accelerator"]].memory


@cache
def _memories(model: str, world: int, recipe: str) -> dict[str, Memory]:
    parameters = MODELS[model].parameters
    return {name: memory_per_rank(parameters, world, stage, recipe) for stage, name in enumerate(STAGES)}


def _totals(chosen: Mapping[str, Any], world: int) -> list[float]:
    """Bytes of a rank, by stage."""
    return [memory.total for memory in _memories(chosen["model"], world, chosen["recipe"]).values()]


def _over_worlds(now: Mapping[str, Any], before: Mapping[str, Any] | None) -> Picture:
    """A curve of bytes per GPU for each stage, the capacity, and where one is."""
    capacity, here = _capacity(now), ACROSS(now["world"])
    title = f"Memory per GPU as GPUs are added: each has {gigabytes(capacity, 0)}"
    body = [text(MARGIN, 18, title, 13, bold=True)]
    body.append(rect(LEFT, TOP, RIGHT - LEFT, UP(capacity) - TOP, fill=TOO_MUCH))
    body += axes.axis_up(UP, LEFT, {kept: gigabytes(kept, 0) for kept in axes.decades(UP.low, UP.high)}, RIGHT)
    body += axes.axis_across(ACROSS, BOTTOM, {world: f"{world:,}" for world in WORLDS[::2]}, "GPUs", TOP)
    body.append(rect(LEFT, UP(capacity) - 1, RIGHT - LEFT, 2, fill=palette.EXPOSED))
    if before:
        body += _curves(before, ghost=True)
    body += _curves(now)
    body.append(rect(here - 0.75, TOP, 1.5, BOTTOM - TOP, fill=palette.INK))
    for total in _totals(now, now["world"]):
        fits = total <= capacity
        body.append(axes.ring(here, UP.within(total), palette.INK, palette.INK if fits else palette.PAPER))
    body.append(text(here, TOP - 6, "you are here", 12, anchor="middle", bold=True))
    body += _names(now)
    alt = f"{title}. {'; '.join(_found(now, stage) for stage in range(len(STAGES)))}."
    return Picture(WIDTH, BOTTOM + 44, body, alt)


def _curves(chosen: Mapping[str, Any], *, ghost: bool = False) -> Iterator[str]:
    """Of each stage; as a ghost they are faint, with rings where one was."""
    totals = {world: _totals(chosen, world) for world in WORLDS}
    keys = [key._replace(colour=axes.GHOST, width=1.2) if ghost else key for key in STAGES.values()]
    points = [[(ACROSS(world), UP(kept[stage])) for world, kept in totals.items()] for stage in range(len(keys))]
    yield axes.window(ACROSS, UP, [axes.curve(line, key) for line, key in zip(points, keys, strict=True)])
    if ghost:
        world = chosen["world"]
        yield from (axes.ring(ACROSS(world), UP.within(total), axes.GHOST) for total in totals[world])


def _names(chosen: Mapping[str, Any]) -> Iterator[str]:
    """What is found of each stage, where its curve ends and never on the words before."""
    y = float(TOP - GAP)
    for stage, total in enumerate(_totals(chosen, WORLDS[-1])):
        y = max(UP.within(total) + 4, y + GAP)
        yield text(RIGHT + 10, y, _found(chosen, stage), 12)


def _found(chosen: Mapping[str, Any], stage: int) -> str:
    """From how many GPUs on a stage fits."""
    enough = [world for world in WORLDS if _totals(chosen, world)[stage] <= _capacity(chosen)]
    return f"{list(STAGES)[stage]}: {f'fits from {enough[0]:,} on' if enough else 'never fits'}"
