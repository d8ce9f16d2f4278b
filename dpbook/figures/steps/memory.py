"""Memory over the time of a sharded step, under its timeline: what is alive when, one content upon another."""

from collections.abc import Iterator, Mapping
from math import inf

import numpy as np

from dpbook.core import bytes_in_words, check_type, palette
from dpbook.figures.card.card import Mark, ticks
from dpbook.figures.card.picture import Picture
from dpbook.figures.card.plot import check_named, check_title
from dpbook.figures.card.svg import aside, element, number, rect, text, text_width
from dpbook.figures.steps.lanes import LEFT, Scale
from dpbook.figures.steps.timelines import draw_until
from dpbook.overlap import CONTENTS, Content, MemoryCurve, ShardedStep

HEIGHT, TOP, FOOT = 120, 22, 20
"""Pixels: of the area, of the room above and under it."""
MOST_STEPS = 4
CONTENT_FILLS: dict[Content, str] = {
    "optimizer": palette.IDLE, "weights": palette.MUTED, "gathered": palette.COMMUNICATION,
    "gradients": palette.PARTIAL, "reduced": palette.COMPLETE, "buffers": palette.UPDATE,
    "activations": palette.FORWARD,
}  # fmt: skip
WORDS: dict[Content, str] = {
    "optimizer": "optimizer state", "weights": "weights", "gathered": "gathered weights",
    "gradients": "whole gradients", "reduced": "own gradients",
    "buffers": "buffers of collectives", "activations": "activations",
}  # fmt: skip
"""In the order in which they lie upon one another."""


def draw_memory(steps: Mapping[str, ShardedStep] | ShardedStep, title: str) -> Picture:
    """Draw the lanes of up to 4 steps by name, and under each the memory that is alive, all on the same axes.

    ``title`` states the finding. Raises `InvalidArgument`.
    """
    check_title(title)
    named = {"step": steps} if isinstance(steps, ShardedStep) else steps
    check_named("steps", named, MOST_STEPS, object, f"a ShardedStep, or 1 to {MOST_STEPS} of them by name")
    for name, step in named.items():
        check_type(f"steps[{name!r}]", step, ShardedStep, "a ShardedStep, as overlap.simulate_sharded returns it")
    return draw_memory_until(named, title)


def draw_memory_until(named: Mapping[str, ShardedStep], title: str, now: float = inf) -> Picture:
    """Draw steps with their memory as they are at ``now``."""
    held = {name: step.memory for name, step in named.items()}
    most = max(memory.peak for memory in held.values())

    def below(name: str, y: float, scale: Scale) -> tuple[Iterator[str], float]:
        return _area(held[name], y + TOP, scale, most, now), y + TOP + HEIGHT + FOOT

    seen = [content for content in CONTENTS if any(memory.alive[content].any() for memory in held.values())]
    marks = [Mark(WORDS[content], rect(0, 0, 14, 14, rx=3, fill=CONTENT_FILLS[content])) for content in seen]
    timelines = {name: step.timeline for name, step in named.items()}
    picture = draw_until(timelines, title, now, below=below, marks=marks)
    told = "; ".join(f"{name}: {_peak(memory)}" for name, memory in held.items())
    return Picture(picture.width, picture.height, picture.body, f"{picture.alt} Peak of memory: {told}.")


def _area(memory: MemoryCurve, top: float, scale: Scale, most: int, now: float) -> Iterator[str]:
    """The contents upon one another, pale from ``now`` on, the outline of all of them, and the peak once it is reached.

    What is pale is the whole area under a veil, so that the frames of a film have the area in common.
    """
    foot, end = top + HEIGHT, memory.end
    up = HEIGHT / (most or 1)
    yield aside(LEFT - 8, top - 10, "memory", 11, anchor="end")
    for nbytes in ticks(most, 4) if most else ():
        yield rect(LEFT, foot - nbytes * up, scale(end) - LEFT, 1, fill=palette.IDLE)
        yield aside(LEFT - 8, foot - nbytes * up + 4, bytes_in_words(nbytes), 11, anchor="end")
    edges = [scale(t) for t in (*memory.times.tolist(), end)]
    low = np.zeros(len(memory.times))
    for content in CONTENTS:
        high = low + memory.alive[content]
        if (high > low).any():
            yield _band(edges, (foot - low * up).tolist(), (foot - high * up).tolist(), CONTENT_FILLS[content])
        low = high
    if now < end:
        x = scale(now)
        yield rect(x, top, scale(end) - x, HEIGHT, fill=palette.PAPER, fill_opacity=0.85)
    line = _steps(edges, (foot - memory.total * up).tolist())
    yield element(
        "path", d="M" + "L".join(line), fill="none", stroke=palette.INK if now >= end else palette.MUTED, stroke_width=1
    )
    if now >= memory.peak_time:
        yield _mark(memory, scale(memory.peak_time), foot - memory.peak * up)


def _band(edges: list[float], low: list[float], high: list[float], fill: str) -> str:
    """A filled band between two lines of steps."""
    there, back = _steps(edges, high), _steps(edges, low)[::-1]
    return element("path", d=f"M{'L'.join(there + back)}Z", fill=fill)


def _steps(edges: list[float], heights: list[float]) -> list[str]:
    """The corners of a line of steps: each height from its edge to the next."""
    return [
        f"{number(x)} {number(y)}"
        for left, right, y in zip(edges, edges[1:], heights, strict=False)
        for x in (left, right)
    ]


def _mark(memory: MemoryCurve, x: float, y: float) -> str:
    words = f"peak {bytes_in_words(memory.peak)}"
    anchor = "end" if x - text_width(words, 12) > LEFT else None
    return rect(x - 1, y - 5, 2, 10, fill=palette.INK) + text(x, y - 8, words, 12, anchor=anchor, halo=palette.PAPER)


def _peak(memory: MemoryCurve) -> str:
    """How high the peak is, and what is alive then."""
    alive = memory.at(memory.peak_time)
    parts = ", ".join(f"{WORDS[content]} {bytes_in_words(n)}" for content, n in alive.items() if n)
    return f"{bytes_in_words(memory.peak)} ({parts})"
