"""Whole schedules at a glance: ranks from top to bottom, rounds from left to right, every message an arrow."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dpbook.collectives import Schedule, Traffic, count
from dpbook.collectives.schedule import check_schedule
from dpbook.core import InvalidArgument, bytes_in_words, check_int, palette, plural
from dpbook.figures.card.arrows import Point, arrow, towards
from dpbook.figures.card.card import Card, Mark
from dpbook.figures.card.picture import Picture
from dpbook.figures.card.svg import MARGIN, aside, circle, line, number, text
from dpbook.figures.schedules import words
from dpbook.figures.schedules.cells import EDGE, FILL, badge
from dpbook.figures.schedules.frames import Kind, State, replay

MAX_RANKS, MAX_ROUNDS = 16, 32
LEFT, PANEL_HEAD, RADIUS = 92, 46, 7
MEANING: dict[Kind, str] = {
    "own": "own only", "partial": "partial", "complete": "complete", "fault": "counted twice", "unknown": "nothing",
}  # fmt: skip


@dataclass(frozen=True)
class _Panel:
    schedule: Schedule
    states: list[State]
    traffic: Traffic
    nbytes: int

    @property
    def pitch(self) -> float:
        return 28 if self.schedule.world <= 8 else 21

    @property
    def name(self) -> str:
        return words.kind_name(self.schedule)

    @property
    def times(self) -> str:
        """What the busiest rank sends or receives, in units of the buffer."""
        return f"{number(self.traffic.busiest_bytes / self.nbytes)} × the buffer"

    @property
    def numbers(self) -> str:
        rounds, messages = plural(self.traffic.rounds, "round"), plural(self.traffic.messages, "message", ",")
        busiest, whole = bytes_in_words(self.traffic.busiest_bytes), bytes_in_words(self.nbytes)
        return f"{rounds}, {messages}; the busiest rank sends or receives {busiest}, {self.times} of {whole}"


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
    card = Card(width, _finding(panels) if title is None else title)
    for panel in panels:
        card.add(*_draw(panel, card.y + 14, step, width - 2 * MARGIN))
        card.y += round(PANEL_HEAD + panel.pitch * panel.schedule.world + 30)
    card.y += 14
    card.legend(_marks(panels))
    told = " ".join(f"{words.sentence(words.schedule_name(p.schedule))}: {p.numbers}." for p in panels)
    return card.picture(card.y + 8, told, " ".join(_rounds(panels)))


def _rounds(panels: Sequence[_Panel]) -> Iterator[str]:
    """Every round of every schedule in words."""
    for state in (state for panel in panels for state in panel.states[1:]):
        messages = "; ".join(words.tell(message, state.schedule.n_chunks) for message in state.messages)
        yield f"{words.sentence(words.schedule_name(state.schedule))}, round {state.index}: {messages}."


def _panel(schedule: Schedule, size: int | None, itemsize: int) -> _Panel:
    check_schedule(schedule)
    check_int(f"world of {schedule.name}", schedule.world, 1, MAX_RANKS)
    check_int(f"number of rounds of {schedule.name}", len(schedule.rounds), 0, MAX_ROUNDS)
    default = 1_000_000 if schedule.bounds.size is None else schedule.bounds.size
    size = check_int("size", default if size is None else size, 1)
    return _Panel(schedule, replay(schedule), count(schedule, size, itemsize), size * itemsize)


def _finding(panels: Sequence[_Panel]) -> str:
    if len(panels) == 1:
        return f"{plural(panels[0].traffic.rounds, 'round')}, and {panels[0].times} through the busiest rank"
    quick = min(panels, key=lambda p: p.traffic.rounds)
    light = min(panels, key=lambda p: p.traffic.busiest_bytes / p.nbytes)
    other = " and" if quick is light else f", {light.name.lower()}"
    return f"{words.sentence(quick.name)} needs the fewest rounds{other} moves the least through one rank"


def _draw(panel: _Panel, top: float, step: float, room: float) -> Iterator[str]:
    """One schedule: its name, its numbers, and its ranks as lines on which the rounds' states are beads."""
    rounds, world = len(panel.schedule.rounds), panel.schedule.world
    xs = [LEFT + index * step for index in range(rounds + 1)]
    ys = [top + PANEL_HEAD + (rank + 0.5) * panel.pitch for rank in range(world)]
    yield text(MARGIN, top + 16, words.schedule_name(panel.schedule), 14, bold=True, room=room)
    yield aside(MARGIN, top + 35, panel.numbers, room=room)
    for rank, y in enumerate(ys):
        yield aside(LEFT - 18, y + 4, f"rank {rank}", anchor="end")
        yield line(LEFT, y, xs[-1], y, palette.IDLE, 2)
    below, every = top + PANEL_HEAD + world * panel.pitch + 14, 1 if step >= 20 else 5
    for index in range(1, rounds + 1):
        if index % every == 0 or index == 1:
            yield aside(xs[index] - step / 2, below, str(index), 11, anchor="middle")
    if rounds:
        yield aside(LEFT - 18, below, "round", 11, anchor="end")
    for state in panel.states:
        for source, dest, reduce in dict.fromkeys((m.source, m.dest, m.reduce) for m in state.messages):
            yield _arrow((xs[state.index - 1], ys[source]), (xs[state.index], ys[dest]), reduce)
    for state in panel.states:
        for y, kinds in zip(ys, state.kinds, strict=True):
            yield _bead(_worst(kinds), xs[state.index], y)


def _arrow(start: Point, end: Point, reduce: bool) -> str:
    return arrow((towards(start, end, RADIUS), towards(end, start, RADIUS + 2)), 1.8, stored=not reduce)


def _worst(kinds: Sequence[Kind]) -> Kind:
    """What to say of a rank with several chunks: any fault, else complete or nothing only if all are."""
    present = set(kinds) - {"empty"}
    if "fault" in present:
        return "fault"
    return present.pop() if len(present) == 1 else "partial"


def _bead(kind: Kind, x: float, y: float) -> str:
    if kind in ("complete", "fault"):
        return badge(kind, x, y, RADIUS)
    bead = circle(x, y, RADIUS - 0.5, fill=FILL[kind], stroke=EDGE[kind], stroke_width=1.5)
    return bead + (circle(x, y, 2.2, fill=EDGE[kind]) if kind == "partial" else "")


def _marks(panels: Sequence[_Panel]) -> Iterator[Mark]:
    seen = {_worst(kinds) for panel in panels for state in panel.states for kinds in state.kinds}
    for kind in MEANING:
        if kind in seen:
            yield Mark(MEANING[kind], _bead(kind, RADIUS, RADIUS))
    for reduce, name in ((True, "added"), (False, "stored")):
        yield Mark(name, arrow(((0, 7), (30, 7)), 1.8, stored=not reduce), 30)
