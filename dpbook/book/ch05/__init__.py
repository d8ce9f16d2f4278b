"""Chapter 05: All-reduce. Pictures of all collectives and of bytes per rank beside the bound; a ring with a mistake."""

from collections.abc import Iterator, Sequence
from itertools import product

from dpbook.collectives import Round, Schedule, Traffic, bandwidth_lower_bound, count, ring
from dpbook.core import InvalidArgument, bytes_in_words, check_each, check_int, palette, plural
from dpbook.figures import Picture
from dpbook.figures.card import MARGIN, Card, Mark, arrow, aside, element, line, number, rect, text, ticks
from dpbook.figures.schedules import kind_name, schedule_name

RANKS = range(3)
CHUNKS = "abc"
Grid = tuple[tuple[str, ...], ...]
"""Contents ``grid[rank][chunk]``: "a1" is rank 1's chunk a, "Σa" the sum of all ranks' chunks a, "" irrelevant."""


def _parsed(rows: str) -> Grid:
    return tuple(tuple(cell.strip(".") for cell in row.split()) for row in rows.split("|"))


FAMILY: dict[str, tuple[Grid, Grid]] = {
    name: (_parsed(before), _parsed(after))
    for name, before, after in (
        ("broadcast", "a0 b0 c0 | .  .  .  | .  .  .", "a0 b0 c0 | a0 b0 c0 | a0 b0 c0"),
        ("scatter", "a0 b0 c0 | .  .  .  | .  .  .", "a0 .  .  | .  b0 .  | .  .  c0"),
        ("gather", "a0 .  .  | .  b1 .  | .  .  c2", "a0 b1 c2 | .  .  .  | .  .  ."),
        ("all-gather", "a0 .  .  | .  b1 .  | .  .  c2", "a0 b1 c2 | a0 b1 c2 | a0 b1 c2"),
        ("reduce", "a0 b0 c0 | a1 b1 c1 | a2 b2 c2", "Σa Σb Σc | .  .  .  | .  .  ."),
        ("reduce-scatter", "a0 b0 c0 | a1 b1 c1 | a2 b2 c2", "Σa .  .  | .  Σb .  | .  .  Σc"),
        ("all-reduce", "a0 b0 c0 | a1 b1 c1 | a2 b2 c2", "Σa Σb Σc | Σa Σb Σc | Σa Σb Σc"),
        ("all-to-all", "a0 b0 c0 | a1 b1 c1 | a2 b2 c2", "a0 a1 a2 | b0 b1 b2 | c0 c1 c2"),
    )
}
"""Contents before and after, by name of the collective; ranks are divided by bars."""

CELL, ROW, NAMES = 30, 26, 42
GAP = 44  # between before and after: the arrow
PANEL_WIDTH, PANEL_HEIGHT = NAMES + 2 * 3 * CELL + GAP + 18, 3 * ROW + 52
TOP = 84
ARRIVALS = (0.35, 0.7, 0.15)  # time at which each rank reaches the barrier, as a share of the panel


def draw_family() -> Picture:
    """Draw every collective of `FAMILY` on three ranks, and a barrier."""
    title = "Nine collectives: a row is a rank, a column a chunk of its buffer"
    card = Card(2 * MARGIN + 3 * PANEL_WIDTH, title, "a1 is rank 1's chunk a; Σa is the sum of all ranks' chunks a.")
    for place, name in enumerate([*FAMILY, "barrier"]):
        x, y = MARGIN + place % 3 * PANEL_WIDTH, TOP + place // 3 * PANEL_HEIGHT
        card.add(text(x, y + 12, name, 13, bold=True))
        card.add(_barrier(x, y + 24) if name == "barrier" else _before_and_after(*FAMILY[name], x, y + 24))
    changes = " ".join(
        f"{name}: {_in_words(before)} becomes {_in_words(after)}." for name, (before, after) in FAMILY.items()
    )
    names = f"{', '.join(FAMILY)}, and barrier, where every rank waits until all have arrived."
    return card.picture(TOP + 3 * PANEL_HEIGHT + 4, names, changes)


def _before_and_after(before: Grid, after: Grid, x: float, y: float) -> str:
    middle, right = y + 1.5 * ROW, x + NAMES + 3 * CELL + GAP
    names = "".join(aside(x, y + (rank + 0.65) * ROW, f"rank {rank}") for rank in RANKS)
    becomes = arrow(((right - GAP + 8, middle), (right - 10, middle)), 2)
    return names + _grid(before, x + NAMES, y) + becomes + _grid(after, right, y)


def _grid(grid: Grid, x: float, y: float) -> str:
    cells = []
    for rank, chunk in product(RANKS, range(len(CHUNKS))):
        content, cell_x, cell_y = grid[rank][chunk], x + chunk * CELL, y + rank * ROW
        fill, edge = (palette.PAPER, palette.MUTED) if content else (palette.PANEL, palette.IDLE)
        if content.startswith("Σ"):
            fill = palette.tint(palette.COMPLETE, 0.5)
        cells.append(rect(cell_x + 1, cell_y + 1, CELL - 2, ROW - 2, rx=3, fill=fill, stroke=edge))
        if content:
            cells.append(text(cell_x + CELL / 2, cell_y + ROW / 2 + 4, content, anchor="middle"))
    return "".join(cells)


def _barrier(x: float, y: float) -> str:
    """Draw a line for each rank, which arrives and waits, until all continue together."""
    start, length, parts = x + NAMES, PANEL_WIDTH - NAMES - 26, []
    release = start + length * max(ARRIVALS)
    for rank, share in zip(RANKS, ARRIVALS, strict=True):
        middle, arrival = y + (rank + 0.5) * ROW, start + length * share
        parts.append(aside(x, middle + 4, f"rank {rank}"))
        parts.append(rect(start, middle - 6, arrival - start, 12, fill=palette.COMPUTATION))
        parts.append(rect(arrival, middle - 6, release - arrival, 12, fill=palette.IDLE))
        parts.append(rect(release, middle - 6, start + length - release, 12, fill=palette.COMPUTATION))
    return "".join([*parts, line(release, y, release, y + 3 * ROW, palette.INK, 2, "5 3")])


def _in_words(grid: Grid) -> str:
    return ", ".join(f"rank {rank} {' '.join(filter(None, row)) or 'nothing'}" for rank, row in enumerate(grid))


MAX_RANKS = 32
LEFT, HEIGHT, FOOT = 104, 220, 308
MIN_WIDTH, PANEL_GAP = 700.0, 36
SENT, RECEIVED = palette.COMMUNICATION, palette.tint(palette.COMMUNICATION, 0.25)
BOUND = palette.INK, 2, "7 4"  # colour, width and dashes of the line of the lower bound


def draw_traffic(schedules: Sequence[Schedule], size: int, itemsize: int = 4) -> Picture:
    """Draw bytes sent and received per rank for buffers of ``size`` elements of ``itemsize`` bytes.

    All ``schedules`` must be of one world, at most 32. The line is `bandwidth_lower_bound`: some rank must send that
    much in any all-reduce. The title gives the busiest rank of each schedule. Raises `InvalidArgument`.
    """
    check_each("schedules", schedules, Schedule)
    world = check_int("world", schedules[0].world, 1, MAX_RANKS)
    for schedule in schedules:
        if schedule.world != world:
            raise InvalidArgument(f"world of {schedule.name}", schedule.world, f"{world}, as in the first schedule")
    nbytes = check_int("size", size, 1) * check_int("itemsize", itemsize, 1)
    traffic = [count(schedule, size, itemsize) for schedule in schedules]
    bound = bandwidth_lower_bound(world, nbytes)
    busiest = (f"{kind_name(s)} {bytes_in_words(t.busiest_bytes)}" for s, t in zip(schedules, traffic, strict=True))
    holders = "The only rank holds" if world == 1 else f"Each of {world} ranks holds"
    bar = 14.0 if world <= 8 else 5.0
    panel = max(190.0, world * (2 * bar + 10))
    width = LEFT + len(schedules) * (panel + PANEL_GAP) - PANEL_GAP + MARGIN
    width, shift = max(width, MIN_WIDTH), max(0.0, MIN_WIDTH - width) / 2
    top = max(bound, *(t.busiest_bytes for t in traffic), 1) * 1.12
    card = Card(width, f"Busiest rank: {', '.join(busiest)}", f"{holders} {bytes_in_words(nbytes)}.")
    card.add(*_axis(top, width))
    for place, (s, t) in enumerate(zip(schedules, traffic, strict=True)):
        card.add(_bars(s, t, LEFT + shift + place * (panel + PANEL_GAP), panel, bar, top))
    card.add(line(LEFT - 10, _y(bound, top), width - MARGIN, _y(bound, top), *BOUND))
    card.y = FOOT + 56
    marks = [
        Mark(words, rect(0, 0, 14, 14, fill=fill, stroke=SENT, stroke_width=1.5))
        for words, fill in (("sent", SENT), ("received", RECEIVED))
    ]
    least = f"some rank must send this much: {bytes_in_words(bound)}"
    card.legend([*marks, Mark(least, line(0, 7, 30, 7, *BOUND), 30)])
    buffers = f"{plural(world, 'rank')} with {bytes_in_words(nbytes)} each. The lower bound is {bytes_in_words(bound)}."
    return card.picture(card.y + 6, buffers, " ".join(map(_traffic_in_words, schedules, traffic)))


def _traffic_in_words(schedule: Schedule, traffic: Traffic) -> str:
    sent, received = (", ".join(map(bytes_in_words, b.tolist())) for b in (traffic.sent_bytes, traffic.received_bytes))
    return f"{schedule_name(schedule)}: sent {sent}; received {received}."


def _y(value: float, top: float) -> float:
    return FOOT - HEIGHT * value / top


def _axis(top: float, width: float) -> Iterator[str]:
    """Draw the axis of bytes, with round numbers, and the label of the axis of ranks."""
    for value in ticks(top, 6):
        yield line(LEFT - 10, _y(value, top), width - MARGIN, _y(value, top), palette.IDLE)
        yield aside(LEFT - 16, _y(value, top) + 4, bytes_in_words(value), anchor="end", room=62)
    turned = f"translate({MARGIN + 4} {number(FOOT - HEIGHT / 2)}) rotate(-90)"
    yield element("g", aside(0, 0, "bytes per rank", anchor="middle"), transform=turned)
    yield aside(LEFT - 16, FOOT + 18, "rank", anchor="end")


def _bars(schedule: Schedule, traffic: Traffic, panel_x: float, width: float, bar: float, top: float) -> str:
    """Draw two bars for each rank: sent is filled, received is outlined."""
    pitch = width / schedule.world
    sent, received, names = [], [], []
    for rank, (out, into) in enumerate(zip(traffic.sent_bytes.tolist(), traffic.received_bytes.tolist(), strict=True)):
        middle = panel_x + (rank + 0.5) * pitch
        sent.append(rect(middle - bar - 1, _y(out, top), bar, FOOT - _y(out, top)))
        received.append(rect(middle + 1, _y(into, top), bar, FOOT - _y(into, top)))
        if schedule.world <= 16 or rank % 4 == 0:
            names.append(text(middle, FOOT + 18, str(rank), anchor="middle"))
    names.append(text(panel_x + width / 2, FOOT + 38, kind_name(schedule), 13, anchor="middle", bold=True, room=width))
    bars = [element("g", b, fill=f, stroke=SENT, stroke_width=1.5) for b, f in ((sent, SENT), (received, RECEIVED))]
    return "".join(bars) + element("g", names)


CASE = 14


def broken_ring(case: int = CASE) -> Schedule:
    """Return a ring of five ranks in which one message, that of `fault`, is stored instead of added."""
    number, chunk = fault(case)
    rounds = [list(round_) for round_ in ring(5).rounds]
    rounds[number] = [m._replace(reduce=m.chunk != chunk) for m in rounds[number]]
    return Schedule(5, 5, [Round.from_messages(messages) for messages in rounds], name="a broken ring")


def fault(case: int) -> tuple[int, int]:
    """Return the round, from 0, and the chunk of the stored message in one of 20 cases."""
    return divmod(check_int("case", case, 0, 19), 5)
