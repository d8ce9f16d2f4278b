"""A schedule's messages under way: chips that travel from cell to cell, without scripts."""

from collections.abc import Sequence

from dpbook.core import palette
from dpbook.figures.card.arrows import path
from dpbook.figures.card.svg import circle, element, number, text
from dpbook.figures.schedules.arrows import Way, load
from dpbook.figures.schedules.frames import State
from dpbook.figures.schedules.table import Table


def under_way(table: Table, states: Sequence[State], after: int, seconds: float) -> tuple[str, ...]:
    """What is seen before state ``after``: its arrows over the cells of the state before, and what they carry, moving.

    A compact table has no room for arrows: nothing moves there.
    """
    if table.compact:
        return ()
    before, state = states[after - 1], states[after]
    chips = (_chip(way, table.n_chunks, f"way{after}.begin", seconds) for way in table.routes(state))
    return table.frame, table.heading(state), *table.cells(before), table.arrows(state), table.numbers(before), *chips


def _chip(way: Way, n_chunks: int, begin: str, seconds: float) -> str:
    """What a message carries, on its way from the middle of one cell to that of the other."""
    motion = element(
        "animateMotion", path=path(way.points), begin=begin, dur=f"{number(seconds)}s", fill="freeze",
        keyPoints="0;0;1;1", keyTimes="0;0.1;0.95;1", calcMode="linear",
    )  # fmt: skip
    disc = circle(0, 0, 13, fill=palette.COMMUNICATION, stroke=palette.PAPER, stroke_width=2)
    ink = palette.text_on(palette.COMMUNICATION)
    name = text(0, 5, load(way.message, n_chunks), 13, anchor="middle", bold=True, fill=ink)
    return element("g", disc + name + motion)
