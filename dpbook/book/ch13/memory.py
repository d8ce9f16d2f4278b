"""Memory per rank against the capacity of a GPU: bars of named setups, and an explorer of the ZeRO stages."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from dpbook.core import check_float, palette
from dpbook.figures import Explorer, Knob, Picture
from dpbook.figures.card import MARGIN, Card, Key, Scale, axes, check_named, element, number, rect, stacked, text
from dpbook.planning import ACCELERATORS, MODELS, RECIPES, Memory, memory_per_rank

MEMORY_PARTS = {
    "weights": Key("weights", palette.COMPUTATION),
    "copies": Key("bf16 copies", palette.tint(palette.COMPUTATION, 0.45)),
    "gradients": Key("gradients", palette.COMMUNICATION),
    "optimizer": Key("optimizer state", palette.PARTIAL),
    "buckets": Key("copy in buckets", palette.tint(palette.COMMUNICATION, 0.45)),
    "activations": Key("activations", palette.COMPLETE),
}
LAST_POSITION = Key("last position", axes.GHOST, "outline")
TOO_MUCH = palette.tint(palette.EXPOSED, 0.12)
"""Background beyond the capacity."""

WIDTH, BAR_LEFT, CAPACITY_X, BAR_RIGHT, BAR_TOP, BAR_ROW, BAR_HEIGHT = 760, 90, 380, 560, 92, 30, 19
FITTING, DOUBLING = Scale(0, 1, BAR_LEFT, CAPACITY_X), Scale(1, 64, CAPACITY_X, BAR_RIGHT, log=True)
"""Shares of the capacity: up to it the axis is linear and takes most of the width; beyond it, it is logarithmic."""


def memory_bars(
    memories: Mapping[str, Memory], capacity: float, title: str, last: Sequence[float] | None = None
) -> Picture:
    """Stack the memory per rank of up to 8 named setups, in units of the ``capacity`` (bytes) of its device.

    Up to the capacity the axis is linear, beyond it logarithmic. ``last`` are shares of the capacity at the last
    position, one per setup, for its ghost.
    """
    check_float("capacity", capacity, above=0)
    check_named("memories", memories, 8, Memory, "1 to 8 Memory by name")
    bottom = BAR_TOP + len(memories) * BAR_ROW
    shown = [key for part, key in MEMORY_PARTS.items() if any(getattr(memory, part) for memory in memories.values())]
    card = Card(WIDTH, title)
    card.legend(map(axes.mark, [*shown, *([LAST_POSITION] if last else [])]))
    card.add(rect(CAPACITY_X, BAR_TOP - 6, BAR_RIGHT - CAPACITY_X, bottom - BAR_TOP + 6, fill=TOO_MUCH))
    shares = {quarters / 4: f"{25 * quarters} %" for quarters in range(5)}
    card.add(*axes.axis_across(FITTING, bottom, shares, "share of the GPU's memory", BAR_TOP - 6))
    times = {4.0**power: f"{4**power} ×" for power in (1, 2, 3)}
    card.add(*axes.axis_across(DOUBLING, bottom, times, "too much (logarithmic)", BAR_TOP - 6))
    first = next((name for name, memory in memories.items() if memory.total <= capacity), None)
    for row, (name, memory) in enumerate(memories.items()):
        y = BAR_TOP + row * BAR_ROW
        card.add(text(BAR_LEFT - 10, y + 14, name, 12, anchor="end", bold=name == first))
        card.add(*_bar(memory, capacity, y))
        if last:
            card.add(axes.outline(BAR_LEFT, y - 3, _bar_x(last[row]) - BAR_LEFT, BAR_HEIGHT + 6))
        fits = memory.total <= capacity
        verdict = f"{gigabytes(memory.total)} {'✓ fits' if fits else '✗ does not fit'}"
        card.add(text(BAR_RIGHT + 16, y + 14, verdict, 12, bold=name == first, fill=None if fits else palette.EXPOSED))
    card.add(rect(CAPACITY_X - 1, BAR_TOP - 6, 2, bottom - BAR_TOP + 6, fill=palette.EXPOSED))
    limit, red = gigabytes(capacity, 0), palette.EXPOSED
    card.add(text(CAPACITY_X, BAR_TOP - 11, limit, 12, anchor="middle", bold=True, fill=red))
    totals = "; ".join(f"{name}: {gigabytes(memory.total)}" for name, memory in memories.items())
    return card.picture(bottom + 46, f"Per rank, of {limit}: {totals}.")


def gigabytes(nbytes: float, digits: int = 1) -> str:
    """Return bytes in words, such as "1,120.0 GB"."""
    return f"{nbytes / 1e9:,.{digits}f} GB"


def _bar_x(share: float) -> float:
    return FITTING(share) if share <= 1 else DOUBLING.within(share)


def _bar(memory: Memory, capacity: float, y: float) -> Iterator[str]:
    """Draw the parts side by side, and an arrow if they extend beyond the axis."""
    end, colour = 0.0, palette.INK
    for part, key in MEMORY_PARTS.items():
        start, end = end, end + getattr(memory, part) / capacity
        if start < min(end, DOUBLING.high):
            colour = key.colour
            yield rect(_bar_x(start), y, _bar_x(end) - _bar_x(start), BAR_HEIGHT, fill=colour)
    if end > DOUBLING.high:
        corners = (0, -3), (11, BAR_HEIGHT / 2), (0, BAR_HEIGHT + 3)
        points = " ".join(f"{number(BAR_RIGHT + x)},{number(y + h)}" for x, h in corners)
        yield element("polygon", points=points, fill=colour)


WORLDS = tuple(2**power for power in range(14))
STAGES = {
    "plain": Key("plain", palette.INK, "line", 2.5),
    "ZeRO-1": Key("ZeRO-1", palette.INK, "line", 2, "9 4"),
    "ZeRO-2": Key("ZeRO-2", palette.INK, "line", 2, "5 3"),
    "ZeRO-3": Key("ZeRO-3", palette.INK, "line", 2, "2 3"),
}
CURVE_LEFT, CURVE_RIGHT, CURVE_TOP, CURVE_BOTTOM, LABEL_GAP = 90, 580, 48, 238, 16
WORLD_SCALE = Scale(WORLDS[0], WORLDS[-1], CURVE_LEFT, CURVE_RIGHT, log=True)
BYTES_SCALE = Scale(1e9, 2e12, CURVE_BOTTOM, CURVE_TOP, log=True)
"""Bytes on the axis, fixed whatever knob is turned."""


def explore_memory() -> Explorer:
    """Show which ZeRO stage fits, without activations, with knobs for model, GPU, number of ranks and recipe.

    Under the bars are curves of the same bytes over the number of GPUs.
    """

    def draw(before: Mapping[str, Any] | None, **now: Any) -> Picture:
        capacity, memories = _capacity(now), _memories(now["model"], now["world"], now["recipe"])
        fitting = [name for name, memory in memories.items() if memory.total <= capacity]
        finding = f"{fitting[0]} is enough" if fitting else "nothing fits"
        title = f"{now['model']} on {now['world']:,} × {now['accelerator']}: {finding}"
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
    """Return the bytes of a rank, by stage."""
    return [memory.total for memory in _memories(chosen["model"], world, chosen["recipe"]).values()]


def _over_worlds(now: Mapping[str, Any], before: Mapping[str, Any] | None) -> Picture:
    """Draw a curve of bytes per GPU for each stage, the capacity, and the current position."""
    capacity, here = _capacity(now), WORLD_SCALE(now["world"])
    title = f"Memory per GPU as GPUs are added: each has {gigabytes(capacity, 0)}"
    body = [text(MARGIN, 18, title, 13, bold=True)]
    body.append(rect(CURVE_LEFT, CURVE_TOP, CURVE_RIGHT - CURVE_LEFT, BYTES_SCALE(capacity) - CURVE_TOP, fill=TOO_MUCH))
    byte_ticks = {nbytes: gigabytes(nbytes, 0) for nbytes in axes.decades(BYTES_SCALE.low, BYTES_SCALE.high)}
    world_ticks = {world: f"{world:,}" for world in WORLDS[::2]}
    body += axes.axis_up(BYTES_SCALE, CURVE_LEFT, byte_ticks, CURVE_RIGHT)
    body += axes.axis_across(WORLD_SCALE, CURVE_BOTTOM, world_ticks, "GPUs", CURVE_TOP)
    body.append(rect(CURVE_LEFT, BYTES_SCALE(capacity) - 1, CURVE_RIGHT - CURVE_LEFT, 2, fill=palette.EXPOSED))
    if before:
        body += _curves(before, ghost=True)
    body += _curves(now)
    body.append(rect(here - 0.75, CURVE_TOP, 1.5, CURVE_BOTTOM - CURVE_TOP, fill=palette.INK))
    for total in _totals(now, now["world"]):
        fits = total <= capacity
        body.append(axes.ring(here, BYTES_SCALE.within(total), palette.INK, palette.INK if fits else palette.PAPER))
    body.append(text(here, CURVE_TOP - 6, "you are here", 12, anchor="middle", bold=True))
    body += _curve_labels(now)
    alt = f"{title}. {'; '.join(_first_fit(now, stage) for stage in range(len(STAGES)))}."
    return Picture(WIDTH, CURVE_BOTTOM + 44, body, alt)


def _curves(chosen: Mapping[str, Any], *, ghost: bool = False) -> Iterator[str]:
    """Draw the curve of each stage; as a ghost, faint and with rings at the last position."""
    curves = []
    for stage, key in enumerate(STAGES.values()):
        points = [(WORLD_SCALE(world), BYTES_SCALE(_totals(chosen, world)[stage])) for world in WORLDS]
        curves.append(axes.curve(points, key._replace(colour=axes.GHOST, width=1.2) if ghost else key))
    yield axes.window(WORLD_SCALE, BYTES_SCALE, curves)
    if ghost:
        for total in _totals(chosen, chosen["world"]):
            yield axes.ring(WORLD_SCALE(chosen["world"]), BYTES_SCALE.within(total), axes.GHOST)


def _curve_labels(chosen: Mapping[str, Any]) -> Iterator[str]:
    """Draw each stage's finding at the end of its curve, below the label before."""
    y = float(CURVE_TOP - LABEL_GAP)
    for stage, total in enumerate(_totals(chosen, WORLDS[-1])):
        y = max(BYTES_SCALE.within(total) + 4, y + LABEL_GAP)
        yield text(CURVE_RIGHT + 10, y, _first_fit(chosen, stage), 12)


def _first_fit(chosen: Mapping[str, Any], stage: int) -> str:
    """Say from which number of GPUs on a stage fits."""
    enough = [world for world in WORLDS if _totals(chosen, world)[stage] <= _capacity(chosen)]
    return f"{list(STAGES)[stage]}: {f'fits from {enough[0]:,} on' if enough else 'never fits'}"
