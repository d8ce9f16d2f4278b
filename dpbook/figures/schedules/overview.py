"""Whole schedules at a glance: ranks from top to bottom, rounds from left to right, every message an arrow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpbook.collectives import Schedule, Traffic, count
from dpbook.collectives.schedule import check_schedule
from dpbook.core import InvalidArgument, bytes_in_words, check_int, plural
from dpbook.figures.card import palette
from dpbook.figures.card.picture import Picture
from dpbook.figures.card.svg import document, element, number, text
from dpbook.figures.schedules import words
from dpbook.figures.schedules.cells import EDGE, FILL, badge
from dpbook.figures.schedules.frames import Kind, State, replay

MAX_RANKS = 16
MAX_ROUNDS = 32
MARGIN, LEFT, TOP = 20, 92, 62
PANEL_HEAD = 46
RADIUS = 7


@dataclass(frozen=True)
class _Panel:
    schedule: Schedule
    states: list[State]
    traffic: Traffic
    nbytes: int

    @property
    def buffers_moved(self) -> float:
        """What the busiest rank sends or receives, in units of the buffer."""
        return self.traffic.busiest_bytes / self.nbytes

    @property
    def rounds(self) -> str:
        return plural(self.traffic.rounds, "round")

    @property
    def numbers(self) -> str:
        messages = plural(self.traffic.messages, "message", ",")
        busiest, whole = bytes_in_words(self.traffic.busiest_bytes), bytes_in_words(self.nbytes)
        moved = f"{busiest}, {_times(self)} the buffer of {whole}"
        return f"{self.rounds}, {messages}; the busiest rank sends or receives {moved}"


def draw_overview(
    *schedules: Schedule, size: int | None = None, itemsize: int = 4, title: str | None = None
) -> Picture:
    """Draw all rounds of one or more schedules under each other, on one scale of rounds.

    A rank's circle shows the worst of its chunks after the round: it is complete when all of them are. Under each name
    stand rounds, messages and bytes for buffers of ``size`` elements (default: a million, or the only size that fits)
    of ``itemsize`` bytes. ``title`` should state the finding; by default it names the fewest rounds and the least
    traffic. At most 16 ranks and 32 rounds; raises `InvalidArgument`.
    """
    if not schedules:
        raise InvalidArgument("schedules", schedules, "at least one schedule")
    check_int("itemsize", itemsize, 1)
    panels = [_panel(schedule, size, itemsize) for schedule in schedules]
    most_rounds = max(1, *(panel.traffic.rounds for panel in panels))
    step = min(96.0, max(26.0, 640 / most_rounds))
    width = max(640.0, LEFT + most_rounds * step + MARGIN + RADIUS)
    title = title if title is not None else _finding(panels)
    y, body = TOP, [text(MARGIN, 34, title, 17, bold=True, room=width - 2 * MARGIN)]
    for panel in panels:
        body.append(_draw(panel, y, step, width))
        y += round(PANEL_HEAD + _pitch(panel) * panel.schedule.world + 30)
    body.append(_legend(panels, y))
    alt = f"{title}. " + " ".join(f"{p.schedule.name}: {p.numbers}." for p in panels)
    return Picture(document(width, y + 34, alt, _description(panels), body), alt)


def _panel(schedule: Schedule, size: int | None, itemsize: int) -> _Panel:
    check_schedule(schedule)
    check_int(f"world of {schedule.name}", schedule.world, 1, MAX_RANKS)
    check_int(f"number of rounds of {schedule.name}", len(schedule.rounds), 0, MAX_ROUNDS)
    default = 1_000_000 if schedule.bounds.size is None else schedule.bounds.size
    size = check_int("size", default if size is None else size, 1)
    return _Panel(schedule, replay(schedule), count(schedule, size, itemsize), size * itemsize)


def _finding(panels: Sequence[_Panel]) -> str:
    if len(panels) == 1:
        return f"{panels[0].rounds}, and {_times(panels[0])} the buffer through the busiest rank"
    quick = min(panels, key=lambda p: p.traffic.rounds)
    light = min(panels, key=lambda p: p.buffers_moved)
    if quick is light:
        return f"{_short(quick)} needs the fewest rounds and moves the least through one rank"
    return f"{_short(quick)} needs the fewest rounds, {_short(light).lower()} moves the least through one rank"


def _short(panel: _Panel) -> str:
    name = panel.schedule.name.partition("(")[0].replace("_", " ").strip()
    return name[:1].upper() + name[1:]


def _times(panel: _Panel) -> str:
    return f"{number(panel.buffers_moved)} ×"


def _pitch(panel: _Panel) -> float:
    return 28 if panel.schedule.world <= 8 else 21


def _draw(panel: _Panel, top: float, step: float, width: float) -> str:
    """One schedule: its name, its numbers, and its ranks as lines on which the rounds' states are beads."""
    world, pitch, rounds = panel.schedule.world, _pitch(panel), len(panel.schedule.rounds)
    room = width - 2 * MARGIN

    def place(index: int, rank: int) -> tuple[float, float]:
        return LEFT + index * step, top + PANEL_HEAD + (rank + 0.5) * pitch

    names = [
        text(LEFT - 18, place(0, rank)[1] + 4, f"rank {rank}", 12, anchor="end", fill=palette.MUTED)
        for rank in range(world)
    ]
    lines = element(
        "g",
        (
            element("path", d=f"M{number(LEFT)} {number(place(0, r)[1])}H{number(place(rounds, r)[0])}")
            for r in range(world)
        ),
        stroke=palette.IDLE, stroke_width=2,
    )  # fmt: skip
    every = 1 if step >= 20 else 5
    ticks = [
        text(LEFT + (k - 0.5) * step, top + PANEL_HEAD + world * pitch + 14, str(k), 11, anchor="middle",
             fill=palette.MUTED)
        for k in range(1, rounds + 1) if k % every == 0 or k == 1
    ]  # fmt: skip
    axis = text(LEFT - 18, top + PANEL_HEAD + world * pitch + 14, "round", 11, anchor="end", fill=palette.MUTED)
    arrows = element(
        "g",
        (_arrow(place(s.index - 1, source), place(s.index, dest), reduce) for s in panel.states
         for source, dest, reduce in dict.fromkeys((m.source, m.dest, m.reduce) for m in s.messages)),
        stroke=palette.COMMUNICATION, stroke_width=1.8, fill="none",
    )  # fmt: skip
    beads = [
        _bead(_worst(state.kinds[rank]), *place(state.index, rank)) for state in panel.states for rank in range(world)
    ]
    head = text(MARGIN, top + 16, panel.schedule.name, 14, bold=True, room=room)
    numbers = text(MARGIN, top + 35, panel.numbers, 12, fill=palette.MUTED, room=room)
    return "".join((head, numbers, lines, *names, *ticks, axis if rounds else "", arrows, *beads))


def _arrow(start: tuple[float, float], end: tuple[float, float], reduce: bool) -> str:
    (x1, y1), (x2, y2) = start, end
    length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
    ux, uy = (x2 - x1) / length, (y2 - y1) / length
    tip = x2 - (RADIUS + 2) * ux, y2 - (RADIUS + 2) * uy
    back = tip[0] - 7 * ux, tip[1] - 7 * uy
    head = (
        f"M{number(tip[0])} {number(tip[1])}L{number(back[0] - 3.5 * uy)} {number(back[1] + 3.5 * ux)}"
        f"L{number(back[0] + 3.5 * uy)} {number(back[1] - 3.5 * ux)}z"
    )
    line = f"M{number(x1 + RADIUS * ux)} {number(y1 + RADIUS * uy)}L{number(back[0])} {number(back[1])}"
    return element("path", d=line, stroke_dasharray=None if reduce else "5 3") + element(
        "path", d=head, fill=palette.COMMUNICATION, stroke="none"
    )


def _worst(kinds: Sequence[Kind]) -> Kind:
    """What to say of a rank with several chunks: any fault, else complete or nothing only if all are."""
    present = set(kinds) - {"empty"}
    if "fault" in present:
        return "fault"
    return present.pop() if len(present) == 1 else "partial"


def _bead(kind: Kind, x: float, y: float) -> str:
    if kind in ("complete", "fault"):
        return badge(kind, x, y, RADIUS)
    bead = element("circle", cx=x, cy=y, r=RADIUS - 0.5, fill=FILL[kind], stroke=EDGE[kind], stroke_width=1.5)
    return bead + (element("circle", cx=x, cy=y, r=2.2, fill=EDGE[kind]) if kind == "partial" else "")


def _legend(panels: Sequence[_Panel], y: float) -> str:
    seen = {_worst(kinds) for panel in panels for state in panel.states for kinds in state.kinds}
    meaning: dict[Kind, str] = {
        "own": "own only", "partial": "partial", "complete": "complete", "fault": "counted twice", "unknown": "nothing",
    }  # fmt: skip
    x, parts = MARGIN + 8.0, []
    for kind, name in meaning.items():
        if kind in seen:
            parts += [_bead(kind, x, y + 10), text(x + 13, y + 14, name, 12)]
            x += 106 if kind == "fault" else 86
    for reduce, name in ((True, "added"), (False, "stored")):
        arrow = _arrow((x - RADIUS, y + 10), (x + 30, y + 10), reduce)
        parts += [element("g", arrow, stroke=palette.COMMUNICATION, stroke_width=1.8), text(x + 30, y + 14, name, 12)]
        x += 86
    return element("g", parts, fill=palette.MUTED)


def _description(panels: Sequence[_Panel]) -> str:
    return " ".join(
        f"{panel.schedule.name}, round {state.index}: "
        + "; ".join(words.tell(m, panel.schedule.n_chunks) for m in state.messages)
        + "."
        for panel in panels
        for state in panel.states[1:]
    )
