"""Pictures of a schedule after any of its rounds: a table of cells and messages, stepped through, or moving by itself.

A cell has a colour for its kind, and always a second sign: a mark, a pattern, or the bars in it.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from itertools import pairwise
from math import ceil
from typing import Any, NamedTuple

from dpbook.collectives import Message, Schedule
from dpbook.core import bytes_in_words, check_int, palette
from dpbook.figures.card.picture import Mark, Picture, heading, legend
from dpbook.figures.card.svg import (
    MARGIN,
    Attributes,
    Points,
    arrow,
    aside,
    circle,
    element,
    number,
    path_data,
    rect,
    text,
    text_width,
)
from dpbook.figures.card.viewer import PACE, Film, Viewer, move_seconds
from dpbook.figures.schedules.states import (
    MEANING,
    Kind,
    State,
    alt_text,
    chunk_name,
    description,
    headline,
    moves,
    replay,
    schedule_name,
    totals,
)

FILL: dict[Kind, str] = {
    "own": palette.PAPER,
    "partial": palette.tint(palette.PARTIAL, 0.6),
    "complete": palette.tint(palette.COMPLETE, 0.5),
    "fault": palette.FAULT,
    "unknown": palette.tint(palette.IDLE, 0.6),
    "empty": palette.PANEL,
}
EDGE: dict[Kind, str] = {
    "own": palette.MUTED,
    "partial": palette.PARTIAL_EDGE,
    "complete": palette.COMPLETE_EDGE,
    "fault": palette.FAULT_EDGE,
    "unknown": palette.MUTED,
    "empty": palette.MUTED,
}
DASHED: frozenset[Kind] = frozenset(("unknown", "empty"))


def cell_box(kind: Kind, x: float, y: float, width: float, height: float, rx: float) -> str:
    """Return the box of a cell of one ``kind``; a fault is hatched, a cell without a promise or content is dashed."""
    dashes = "4 3" if kind in DASHED else None
    edge: Attributes = {"stroke": EDGE[kind], "stroke_width": 1.5, "stroke_dasharray": dashes}
    shape = rect(x, y, width, height, rx=rx, fill=FILL[kind], **edge)
    if kind != "fault":
        return shape
    lines, inset = [], 1.5  # diagonal, inside the box
    for d in range(8, round(width + height), 10):
        (x1, y1), (x2, y2) = (min(d, width), max(0, d - width)), (max(0, d - height), min(d, height))
        lines.append(f"M{number(x1 - inset)} {number(y1 + inset)}L{number(x2 + inset)} {number(y2 - inset)}")
    hatch = element("path", d="".join(lines[1:-1]), transform=f"translate({number(x)} {number(y)})")
    return shape + element("g", hatch, stroke=EDGE[kind], stroke_width=2.5)


def badge(kind: Kind, x: float, y: float, radius: float) -> str:
    """Return the mark at the corner of a cell: a tick if complete, an exclamation mark if something counts twice."""
    if kind not in ("complete", "fault"):
        return ""
    r = radius
    disc = circle(x, y, r, fill=EDGE[kind], stroke=palette.PAPER, stroke_width=1.5)
    shape = f"M{number(x)} {number(y - 0.55 * r)}v{number(0.65 * r)}m0 {number(0.35 * r)}v{number(0.1 * r)}"
    if kind == "complete":
        shape = f"M{number(x - 0.45 * r)} {number(y + 0.05 * r)}l{number(0.3 * r)} {number(0.35 * r)}"
        shape += f"l{number(0.6 * r)} {number(-0.75 * r)}"
    mark = element(
        "path", d=shape, stroke=palette.PAPER, stroke_width=max(1.5, r / 4.5), fill="none", stroke_linecap="round"
    )
    return disc + mark


def pips(counts: Sequence[int], x: float, y: float, width: float, colour: str) -> str:
    """Return one pip per rank: filled if its contribution is in the cell, a number if it is there more than once."""
    pitch = min(14.0, (width - 12) / len(counts))
    start = x + (width - pitch * len(counts)) / 2
    size = pitch - 2
    filled = hollow = repeated = ""
    for i, times in enumerate(counts):
        px = start + i * pitch + 1
        pip = f"M{number(px)} {number(y + 2)}h{number(size)}v6h{number(-size)}z"
        if times > 1:
            repeated += text(px + size / 2, y + 9, str(times), anchor="middle", bold=True, fill=colour)
        elif times:
            filled += pip
        else:
            hollow += pip
    solid = element("path", d=filled, fill=colour) if filled else ""
    outline = element("path", d=hollow, fill="none", stroke=colour, stroke_opacity=0.45) if hollow else ""
    return solid + outline + repeated


LANE = 20
"""Height of the lane of one arc above a row, in pixels."""


class Route(NamedTuple):
    """Message, the corners of its arrow, and whether its label is below it."""

    message: Message
    points: Points
    below: bool


def levels(messages: Sequence[Message]) -> list[int]:
    """Return the lane of each message of one row: 0 runs straight to a neighbour, the others arch over cells.

    Short arcs are nearest to the row, and two arcs that overlap never share a lane.
    """
    lanes: list[list[tuple[int, int]]] = []
    assigned = [0] * len(messages)
    for i in sorted(range(len(messages)), key=lambda i: abs(messages[i].source - messages[i].dest)):
        low, high = sorted(messages[i][:2])
        if high - low == 1:
            continue
        lane = next((n for n, taken in enumerate(lanes) if all(high <= a or b <= low for a, b in taken)), len(lanes))
        if lane == len(lanes):
            lanes.append([])
        lanes[lane].append((low, high))
        assigned[i] = lane + 1
    return assigned


def corners(source: float, dest: float, top: float, width: float, height: float, level: int, facing: bool) -> Points:
    """Return the corners of an arrow between the cells whose left edges are ``source`` and ``dest``.

    If ``facing`` is true, another message goes in the opposite direction, and each keeps to its side.
    """
    right = 1 if dest > source else -1
    if level == 0:
        y = top + height / 2 + (-8 * right if facing else 0)
        begin, end = (source + width, dest) if right > 0 else (source, dest + width)
        return (begin + 2 * right, y), (end - 3 * right, y)
    lane = top - 8 - LANE * (level - 0.5)
    begin, end = source + width / 2 + 14 * right, dest + width / 2 - 14 * right
    return (begin, top - 1), (begin, lane), (end, lane), (end, top - 3)


def message_label(message: Message, n_chunks: int) -> str:
    """Return the label of a message: "+a" is added, "=a" is stored."""
    return ("+" if message.reduce else "=") + chunk_name(message.chunk, n_chunks)


def arrow_label(route: Route, n_chunks: int) -> str:
    """Return the label of an arrow: beside the line of a straight one, and on that of an arc."""
    middle = len(route.points) // 2
    (x1, y), (x2, _) = route.points[middle - 1 : middle + 1]
    y += 5 if len(route.points) > 2 else 17 if route.below else -7
    sign = message_label(route.message, n_chunks)
    return text((x1 + x2) / 2, y, sign, 14, anchor="middle", bold=True, fill=palette.INK, halo=palette.PAPER)


HEADER, TOP, MIN_WIDTH = 100, 100, 640
"""Pixels: least room for the names of the rows, room for the title and the ranks, least width for title and legend."""
KEY = (
    "Bars: one per rank, filled where it contributes to the sum.  +a is added, =a is stored.",
    "Number: contributions in the cell; ! where one counts twice. Framed: written in this round.",
)
"""Explanations of a table and of a compact one."""


class Table:
    """Layout of the pictures of one schedule: ranks are columns, chunks are rows, messages run along the rows.

    The whole schedule is laid out once, so nothing jumps from round to round. Up to 8 × 8 cells show their number, the
    contributions in it, and the messages as arrows. A larger table (``compact``) shows the number of contributions in
    each cell, and frames the cells that the round has written.
    """

    def __init__(self, states: Sequence[State]) -> None:
        self.states = states
        first = states[0]
        self.world, self.n_chunks = first.schedule.world, first.schedule.n_chunks
        self.compact = self.world > 8 or self.n_chunks > 8
        self.cell_width, self.cell_height, self.gap = (30, 22, 6) if self.compact else (88, 48, 42)
        columns = self.world * (self.cell_width + self.gap) - self.gap
        self.ranges = [f"x[{begin}:{stop}]" for begin, stop in pairwise(first.offsets.tolist())]
        widest = max((text_width(part, 12, mono=True) for part in self.ranges if not self.compact), default=0)
        self.header = max(HEADER, 36 + ceil(widest))
        self.width = max(MIN_WIDTH, 2 * MARGIN + self.header + columns + 12)
        self.left = MARGIN + self.header + max(0, self.width - 2 * MARGIN - self.header - columns - 12) // 2
        # The top of each row; above it is room for as many arcs as any round needs there.
        tops, y = [], TOP + 8
        for chunk in range(self.n_chunks):
            if not self.compact:
                lanes = max(max(levels([m for m in s.messages if m.chunk == chunk]), default=0) for s in self.states)
                y += LANE * lanes + (8 if lanes else 0)
            tops.append(y)
            y += self.cell_height + (6 if self.compact else 14)
        self.rows = tops
        self.bottom = self.rows[-1] + self.cell_height + 12
        self.legend_top = self.bottom + (38 if self.compact else 86)
        self.legend, bottom = legend(self._marks(), self.width, self.legend_top)
        self.height = bottom + 26

    def x(self, rank: int) -> int:
        """Return the left edge of a rank's column."""
        return self.left + rank * (self.cell_width + self.gap)

    @cached_property
    def frame(self) -> str:
        """Parts that never change: the names of ranks and chunks, the columns, the legend."""
        tall = self.bottom - TOP
        if self.compact:
            parts = [rect(self.left - 6, TOP, self.x(self.world) - self.left + 6, tall, rx=8, fill=palette.PANEL)]
            parts.append(aside(self.left - 16, TOP - 8, "rank", anchor="end"))
        else:
            columns = map(self.x, range(self.world))
            parts = [rect(x - 6, TOP, self.cell_width + 12, tall, rx=8, fill=palette.PANEL) for x in columns]
        for rank in range(self.world):
            name = str(rank) if self.compact else f"rank {rank}"
            parts.append(text(self.x(rank) + self.cell_width / 2, TOP - 8, name, 13, anchor="middle", bold=True))
        key = aside(MARGIN, self.height - 16, KEY[self.compact], room=self.width - 2 * MARGIN)
        return "".join([*parts, *map(self._row_name, range(self.n_chunks)), *self.legend, key])

    def _row_name(self, chunk: int) -> str:
        y, end = self.rows[chunk] + self.cell_height / 2, self.left - 16
        if self.compact:
            return aside(end, y + 4, f"chunk {chunk}", anchor="end")
        return (
            text(self.left - self.header, y + 6, chunk_name(chunk, self.n_chunks), 18, bold=True)
            + aside(end, y - 3, f"chunk {chunk}", anchor="end")
            + aside(end, y + 12, self.ranges[chunk], anchor="end", mono=True)
        )

    def _marks(self) -> Iterator[Mark]:
        """Yield the legend of the kinds that occur, and of those of a sum in any case."""
        kinds = {kind for state in self.states for row in state.kinds for kind in row}
        for kind in (k for k in FILL if k in kinds or k in ("own", "partial", "complete")):
            corner = "" if self.compact else badge(kind, 22, 1, 5)
            yield Mark(MEANING[kind], cell_box(kind, 0, 0, 22, 14, 3) + corner, 26)

    def heading(self, state: State) -> str:
        """Return the title of a state, and the round in one line."""
        return heading(self.width, headline(state), f"{schedule_name(state.schedule)}: {moves(state)}")

    def numbers(self, state: State) -> str:
        """Return the bytes sent so far: in all, and (unless the table is compact) by each rank."""
        lines = [text(MARGIN, self.legend_top - 20, f"{totals(state)}.", 12, room=self.width - 2 * MARGIN)]
        rows = (18, "sent", state.traffic.sent_bytes), (36, "received", state.traffic.received_bytes)
        for offset, name, nbytes in () if self.compact else rows:
            y = self.bottom + offset
            lines.append(text(self.left - 16, y, name, 12, anchor="end"))
            for rank, total in enumerate(nbytes.tolist()):
                x = self.x(rank) + self.cell_width / 2
                lines.append(text(x, y, bytes_in_words(total), 12, anchor="middle", room=self.cell_width + 12))
        return element("g", lines, fill=palette.MUTED)

    def cells(self, state: State) -> list[str]:
        """Return all cells, one part of the picture each."""
        return [self.cell(state, rank, chunk) for rank in range(self.world) for chunk in range(self.n_chunks)]

    def cell(self, state: State, rank: int, chunk: int) -> str:
        """Return a cell: its number, its kind, and (unless the table is compact) a pip for each contribution in it."""
        kind, x, y = state.kinds[rank][chunk], self.x(rank), self.rows[chunk]
        ink = palette.text_on(FILL[kind]) if kind == "fault" else None
        middle, counts = x + self.cell_width / 2, state.counts[rank, chunk].tolist()
        if self.compact:
            shown = cell_box(kind, x, y, self.cell_width, self.cell_height, 3)
            if kind not in ("unknown", "empty"):
                contributions = f"{sum(map(bool, counts))}{'!' if kind == 'fault' else ''}"
                shown += text(middle, y + 16, contributions, 12, anchor="middle", fill=ink)
            return shown
        body = cell_box(kind, x, y, self.cell_width, self.cell_height, 7)
        if kind == "empty":
            return body + aside(middle, y + 28, "empty", anchor="middle")
        value = text(
            middle, y + 24, state.values[rank][chunk], 15, anchor="middle", mono=True, room=self.cell_width - 10,
            fill=ink or (palette.MUTED if kind == "unknown" else None), bold=kind != "unknown",
        )  # fmt: skip
        bars = "" if kind == "unknown" else pips(counts, x, y + 32, self.cell_width, ink or EDGE[kind])
        return body + value + bars + badge(kind, x + self.cell_width - 3, y + 3, 8)

    def written(self, state: State) -> str:
        """Return a frame around every cell that the last round has written; it is drawn under the cells."""
        margin, rx = (3, 6) if self.compact else (4, 10)
        width, height = self.cell_width + 2 * margin, self.cell_height + 2 * margin
        corners = ((self.x(m.dest) - margin, self.rows[m.chunk] - margin) for m in state.messages)
        frames = [rect(x, y, width, height, rx=rx) for x, y in corners]
        return element("g", frames, fill=palette.COMMUNICATION) if frames else ""

    def arrows(self, state: State) -> str:
        """Return the messages of the last round. A compact table has no room for them."""
        routes = () if self.compact else self.routes(state)
        return "".join(arrow(route.points, 2.5, stored=not route.message.reduce) for route in routes)

    def labels(self, state: State) -> str:
        """Return the labels of the arrows."""
        return "" if self.compact else "".join(arrow_label(route, self.n_chunks) for route in self.routes(state))

    def routes(self, state: State) -> Iterator[Route]:
        """Yield the route of each message of the last round."""
        for chunk in {m.chunk: None for m in state.messages}:
            messages = [m for m in state.messages if m.chunk == chunk]
            for message, level in zip(messages, levels(messages), strict=True):
                facing = any(o.source == message.dest and o.dest == message.source for o in messages)
                ends = self.x(message.source), self.x(message.dest)
                points = corners(*ends, self.rows[chunk], self.cell_width, self.cell_height, level, facing)
                yield Route(message, points, below=facing and level == 0 and message.dest < message.source)


def draw_schedule(schedule: Schedule, after: int = 0, *, buffers: Any = None, size: int | None = None) -> Picture:
    """Draw the buffers of every rank after ``after`` rounds, and the messages of the last of them.

    ``buffers`` are one 1-D array per rank; by default rank r adds ``10**r`` to each of ``size`` elements (one per
    chunk). Worlds up to 8 with up to 8 chunks are drawn with numbers and arrows, up to 32 ranks and 64 chunks as a
    matrix with the number of contributions in each cell. Raises `InvalidArgument` beyond that, and the errors of
    `simulate`.
    """
    states = replay(schedule, buffers, size)
    index = check_int("after", after, 0, len(states) - 1)
    return _draw(Table(states), states[index])


def play(schedule: Schedule, buffers: Any = None, *, size: int | None = None) -> Viewer:
    """Show ``schedule`` round by round, with a slider, buttons, and a player that can be paused.

    Every control has a name and works from the keyboard: Tab moves between them, the arrow keys, Home and End move the
    slider. Arguments, limits and errors are those of `draw_schedule`.
    """
    return _viewer(replay(schedule, buffers, size), PACE)


FILM_SECONDS = 1.6
"""Seconds per round of `animate`."""


def animate(schedule: Schedule, buffers: Any = None, *, size: int | None = None) -> Film:
    """Draw all rounds of ``schedule`` as one picture that moves and repeats for ever, `FILM_SECONDS` per round.

    Arguments and errors are those of `draw_schedule`.
    """
    return _viewer(replay(schedule, buffers, size), FILM_SECONDS).film


def _viewer(states: list[State], pace: float) -> Viewer:
    table = Table(states)
    moving = partial(under_way, table, states, seconds=move_seconds(pace))
    return Viewer(lambda after: _draw(table, states[after]), len(states) - 1, "round", under_way=moving, pace=pace)


def _draw(table: Table, state: State) -> Picture:
    """Draw one state of a schedule that is already laid out."""
    body = (
        table.frame, table.heading(state), table.written(state), *table.cells(state), table.arrows(state),
        table.labels(state), table.numbers(state),
    )  # fmt: skip
    return Picture(table.width, table.height, body, alt_text(state), description(state))


def under_way(table: Table, states: Sequence[State], after: int, seconds: float) -> tuple[str, ...]:
    """Return the elements before state ``after``: its arrows over the cells of the state before, and moving chips.

    A compact table has no room for arrows, so nothing moves in it.
    """
    if table.compact:
        return ()
    before, state = states[after - 1], states[after]
    chips = (_chip(route, table.n_chunks, f"way{after}.begin", seconds) for route in table.routes(state))
    return table.frame, table.heading(state), *table.cells(before), table.arrows(state), table.numbers(before), *chips


def _chip(route: Route, n_chunks: int, begin: str, seconds: float) -> str:
    """Return a chip with the label of a message, which moves along its arrow."""
    motion = element(
        "animateMotion", path=path_data(route.points), begin=begin, dur=f"{number(seconds)}s", fill="freeze",
        keyPoints="0;0;1;1", keyTimes="0;0.1;0.95;1", calcMode="linear",
    )  # fmt: skip
    disc = circle(0, 0, 13, fill=palette.COMMUNICATION, stroke=palette.PAPER, stroke_width=2)
    ink = palette.text_on(palette.COMMUNICATION)
    label = text(0, 5, message_label(route.message, n_chunks), 13, anchor="middle", bold=True, fill=ink)
    return element("g", disc + label + motion)
