"""The parts of a picture of a schedule: ranks are columns, chunks are rows, messages run along the rows.

A `Table` lays out the whole schedule once, so that nothing jumps from round to round. Up to 8 × 8 cells show their
number, whose contributions are in it, and the messages as arrows; larger ones (`compact`) show how many contributions
each cell holds, and frame the cells that the round has written.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property

from dpbook.core import bytes_in_words, palette
from dpbook.figures.card.arrows import arrow
from dpbook.figures.card.card import Mark, heading, legend
from dpbook.figures.card.svg import MARGIN, aside, element, rect, text
from dpbook.figures.schedules import words
from dpbook.figures.schedules.arrows import LANE, Way, label, levels, route
from dpbook.figures.schedules.cells import EDGE, FILL, badge, box, pips
from dpbook.figures.schedules.frames import State

HEADER = 88  # room for the names of the rows
TOP = 100  # where the columns begin: below titles and ranks
LEAST_WIDTH = 640  # for the title and the legend
KEY = (
    "Bars: one per rank, filled where its contribution is in the sum.  +a is added, =a is stored.",
    "Number: contributions in the cell; ! where one counts twice. Framed: written in this round.",
)
"""How to read a table, and a compact one."""


class Table:
    """Where everything is in the pictures of one schedule, and how its parts are drawn."""

    def __init__(self, states: Sequence[State]) -> None:
        self.states = states
        first = states[0]
        self.world, self.n_chunks = first.schedule.world, first.schedule.n_chunks
        self.compact = self.world > 8 or self.n_chunks > 8
        self.cell_width, self.cell_height, self.gap = (30, 22, 6) if self.compact else (88, 48, 42)
        columns = self.world * (self.cell_width + self.gap) - self.gap
        self.width = max(LEAST_WIDTH, 2 * MARGIN + HEADER + columns + 12)
        self.left = MARGIN + HEADER + max(0, self.width - 2 * MARGIN - HEADER - columns - 12) // 2
        self.rows = self._rows()
        self.bottom = self.rows[-1] + self.cell_height + 12
        self.legend_top = self.bottom + (38 if self.compact else 86)
        self.legend, bottom = legend(self._marks(), self.width, self.legend_top)
        self.height = bottom + 26

    def _rows(self) -> list[int]:
        """The top of each row. Above it is room for as many arcs as any round needs there."""
        tops, y = [], TOP + 8
        for chunk in range(self.n_chunks):
            if not self.compact:
                lanes = max(max(levels([m for m in s.messages if m.chunk == chunk]), default=0) for s in self.states)
                y += LANE * lanes + (8 if lanes else 0)
            tops.append(y)
            y += self.cell_height + (6 if self.compact else 14)
        return tops

    def x(self, rank: int) -> int:
        """The left edge of a rank's column."""
        return self.left + rank * (self.cell_width + self.gap)

    @cached_property
    def frame(self) -> str:
        """What never changes: the names of ranks and chunks, the columns, the legend."""
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
        begin, stop = self.states[0].offsets[chunk : chunk + 2].tolist()
        if self.compact:
            return aside(end, y + 4, f"chunk {chunk}", anchor="end")
        return (
            text(self.left - HEADER, y + 6, words.chunk_name(chunk, self.n_chunks), 18, bold=True)
            + aside(end, y - 3, f"chunk {chunk}", 11, anchor="end", room=HEADER - 36)
            + aside(end, y + 12, f"x[{begin}:{stop}]", 11, anchor="end", room=HEADER - 36, mono=True)
        )

    def _marks(self) -> Iterator[Mark]:
        """The kinds that occur, and in any case those of a sum."""
        kinds = {kind for state in self.states for row in state.kinds for kind in row}
        for kind in (k for k in FILL if k in kinds or k in ("own", "partial", "complete")):
            mark = "" if self.compact else badge(kind, 22, 1, 5)
            yield Mark(words.MEANING[kind], box(kind, 0, 0, 22, 14, 3) + mark, 26)

    def heading(self, state: State) -> str:
        """The finding, and what the round did."""
        name = words.schedule_name(state.schedule)
        return heading(self.width, words.headline(state), f"{name}: {words.moves(state)}")

    def numbers(self, state: State) -> str:
        """What was sent so far: in all, and (not in a compact table) by each rank."""
        lines = [text(MARGIN, self.legend_top - 20, f"{words.totals(state)}.", 12, room=self.width - 2 * MARGIN)]
        rows = (18, "sent", state.traffic.sent_bytes), (36, "received", state.traffic.received_bytes)
        for down, name, totals in () if self.compact else rows:
            y = self.bottom + down
            lines.append(text(self.left - 16, y, name, 12, anchor="end"))
            for rank, total in enumerate(totals.tolist()):
                x = self.x(rank) + self.cell_width / 2
                lines.append(text(x, y, bytes_in_words(total), 12, anchor="middle", room=self.cell_width + 12))
        return element("g", lines, fill=palette.MUTED)

    def cells(self, state: State) -> list[str]:
        """All cells, one part of the picture each."""
        return [self.cell(state, rank, chunk) for rank in range(self.world) for chunk in range(self.n_chunks)]

    def cell(self, state: State, rank: int, chunk: int) -> str:
        """One cell: its number, its kind, and (not in a compact table) a pip for each contribution in it."""
        kind, x, y = state.kinds[rank][chunk], self.x(rank), self.rows[chunk]
        ink = palette.text_on(FILL[kind]) if kind == "fault" else None
        middle, held = x + self.cell_width / 2, state.held[rank, chunk].tolist()
        if self.compact:
            shown = "" if kind in ("unknown", "empty") else str(sum(map(bool, held))) + ("!" if kind == "fault" else "")
            count = text(middle, y + 16, shown, 12, anchor="middle", fill=ink) if shown else ""
            return box(kind, x, y, self.cell_width, self.cell_height, 3) + count
        body = box(kind, x, y, self.cell_width, self.cell_height, 7)
        if kind == "empty":
            return body + aside(middle, y + 28, "empty", anchor="middle")
        value = text(
            middle, y + 24, state.values[rank][chunk], 15, anchor="middle", mono=True, room=self.cell_width - 10,
            fill=ink or (palette.MUTED if kind == "unknown" else None), bold=kind != "unknown",
        )  # fmt: skip
        bars = "" if kind == "unknown" else pips(held, x, y + 32, self.cell_width, ink or EDGE[kind])
        return body + value + bars + badge(kind, x + self.cell_width - 3, y + 3, 8)

    def written(self, state: State) -> str:
        """A frame around every cell that the last round has written; it belongs under the cells."""
        grow, rx = (3, 6) if self.compact else (4, 10)
        width, height = self.cell_width + 2 * grow, self.cell_height + 2 * grow
        frames = [rect(self.x(m.dest) - grow, self.rows[m.chunk] - grow, width, height, rx=rx) for m in state.messages]
        return element("g", frames, fill=palette.COMMUNICATION) if frames else ""

    def arrows(self, state: State) -> str:
        """The messages of the last round. A compact table has no room for them."""
        ways = () if self.compact else self.routes(state)
        return "".join(arrow(way.points, 2.5, stored=not way.message.reduce) for way in ways)

    def labels(self, state: State) -> str:
        """What the arrows carry."""
        return "" if self.compact else "".join(label(way, self.n_chunks) for way in self.routes(state))

    def routes(self, state: State) -> Iterator[Way]:
        """The way of each message of the last round."""
        for chunk in {m.chunk: None for m in state.messages}:
            messages = [m for m in state.messages if m.chunk == chunk]
            for message, level in zip(messages, levels(messages), strict=True):
                facing = any(o.source == message.dest and o.dest == message.source for o in messages)
                ends = self.x(message.source), self.x(message.dest)
                points = route(*ends, self.rows[chunk], self.cell_width, self.cell_height, level, facing)
                yield Way(message, points, below=facing and level == 0 and message.dest < message.source)
