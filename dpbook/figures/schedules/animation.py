"""A schedule that plays by itself: an SVG animated without scripts, so it moves on a page where no kernel runs.

One clock for everything: each part has an animation as long as the whole, and says when in it it is seen. Readers who
ask their system for less motion see the last state, still.
"""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from dpbook.collectives import Schedule
from dpbook.core import InvalidArgument
from dpbook.figures.card import palette
from dpbook.figures.card.picture import Picture
from dpbook.figures.card.svg import document, element, number, text
from dpbook.figures.schedules import words
from dpbook.figures.schedules.arrows import Way, load, path
from dpbook.figures.schedules.frames import replay
from dpbook.figures.schedules.table import Table

REST = 0.9
"""Seconds for which the first state stands; the last one stands three times as long."""
ARRIVAL = 0.6
"""Share of a round after which its messages have arrived."""

STILL = "@media (prefers-reduced-motion:reduce){.moves{display:none}.last{visibility:visible!important}}"


def animate(schedule: Schedule, buffers: Any = None, *, size: int | None = None, seconds: float = 1.6) -> Picture:
    """Draw all rounds of ``schedule`` as one picture that repeats without end, ``seconds`` per round.

    Arguments and errors are those of `draw_schedule`.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0.1 <= seconds <= 60:
        raise InvalidArgument("seconds", seconds, "a number from 0.1 to 60")
    states = replay(schedule, buffers, size)
    table = Table(states)
    clock = _Clock(len(states) - 1, float(seconds))
    cells = [
        clock.sequence([table.cell(state, *place) for state in states], clock.arrival)
        for place in product(range(table.world), range(table.n_chunks))
    ]
    moving = [] if table.compact else [(state.index, way) for state in states for way in table.routes(state)]
    body = [
        table.frame,
        clock.sequence([table.heading(state) for state in states], clock.start),
        clock.arrivals([table.written(state) for state in states]),
        *cells,
        clock.sequence([table.arrows(state) for state in states], clock.start),
        clock.arrivals([table.labels(state) for state in states]),
        *(_chip(table, clock, index, way) for index, way in moving),
        clock.sequence([table.numbers(state) for state in states], clock.arrival),
    ]
    last = states[-1]
    alt = f"{schedule.name}, animated. In the end: {words.headline(last)}. {words.totals(last)}."
    return Picture(document(table.width, table.height, alt, words.description(last), body, style=STILL), alt)


class _Clock:
    """When what is seen, as a share of the whole."""

    def __init__(self, rounds: int, seconds: float) -> None:
        self.rounds, self.seconds = rounds, seconds
        self.total = REST + rounds * seconds + 3 * REST

    def start(self, index: int) -> float:
        """When round ``index`` (from 1) begins."""
        return 0.0 if index == 0 else (REST + (index - 1) * self.seconds) / self.total

    def arrival(self, index: int) -> float:
        """When its messages have arrived."""
        return 0.0 if index == 0 else self.start(index) + ARRIVAL * self.seconds / self.total

    def sequence(self, drawings: Sequence[str], begin: Callable[[int], float]) -> str:
        """One drawing per state, each seen from ``begin(index)`` until the next; equal neighbours are one."""
        firsts = [i for i, drawing in enumerate(drawings) if i == 0 or drawing != drawings[i - 1]]
        if len(firsts) == 1:
            return drawings[0]
        ends = [*map(begin, firsts[1:]), 1.0]
        return "".join(self._seen(drawings[i], begin(i), end) for i, end in zip(firsts, ends, strict=True))

    def arrivals(self, drawings: Sequence[str]) -> str:
        """One drawing per state, each seen from the arrival of its messages to the end of its round."""
        ends = [*(self.start(i + 1) for i in range(self.rounds)), 1.0]
        return "".join(self._seen(drawing, self.arrival(i), ends[i]) for i, drawing in enumerate(drawings))

    def _seen(self, drawing: str, begin: float, end: float) -> str:
        if not drawing:
            return ""
        last = end == 1.0
        steps = [("hidden", 0.0)] if begin else []
        steps += [("visible", begin)] if last else [("visible", begin), ("hidden", end)]
        visible = self.animation("visibility", *zip(*steps, strict=True))
        kind = "last" if last else "moves"
        return element("g", drawing + visible, visibility="hidden" if begin else None, class_=kind)

    def animation(self, attribute: str, values: Sequence[str], times: Sequence[float]) -> str:
        """Steps from one value of an attribute to the next."""
        return element(
            "animate", attributeName=attribute, values=";".join(values), keyTimes=_times(times), calcMode="discrete",
            dur=f"{number(self.total)}s", repeatCount="indefinite",
        )  # fmt: skip


def _chip(table: Table, clock: _Clock, index: int, way: Way) -> str:
    """What a message carries, on its way from the middle of one cell to that of the other."""
    begin, end = clock.start(index), clock.arrival(index)
    times = (0.0, begin + 0.15 * (end - begin), end - 0.05 * (end - begin), 1.0)
    motion = element(
        "animateMotion", path=path(way.points), keyPoints="0;0;1;1", keyTimes=_times(times), calcMode="linear",
        dur=f"{number(clock.total)}s", repeatCount="indefinite",
    )  # fmt: skip
    seen = clock.animation("visibility", ("hidden", "visible", "hidden"), (0.0, begin, end))
    disc = element("circle", r=13, fill=palette.COMMUNICATION, stroke=palette.PAPER, stroke_width=2)
    ink = palette.text_on(palette.COMMUNICATION)
    name = text(0, 5, load(way.message, table.n_chunks), 13, anchor="middle", bold=True, fill=ink)
    return element("g", disc + name + motion + seen, visibility="hidden", class_="moves")


def _times(times: Sequence[float]) -> str:
    return ";".join(f"{t:.4f}".rstrip("0").rstrip(".") or "0" for t in times)
