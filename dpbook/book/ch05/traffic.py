"""Bytes that each rank sends and receives, schedule beside schedule, with the least that an all-reduce can do."""

from collections.abc import Iterator, Sequence

from dpbook.collectives import Schedule, Traffic, bandwidth_lower_bound, count
from dpbook.collectives.schedule import check_schedule
from dpbook.core import InvalidArgument, bytes_in_words, check_int, palette, plural
from dpbook.figures import Picture
from dpbook.figures.card import MARGIN, Card, Mark, aside, element, line, number, rect, text, ticks
from dpbook.figures.schedules import kind_name, schedule_name

MAX_RANKS = 32
LEFT, HEIGHT, FOOT = 104, 220, 308
LEAST_WIDTH, PANEL_GAP = 700.0, 36
SENT, RECEIVED = palette.COMMUNICATION, palette.tint(palette.COMMUNICATION, 0.25)
BOUND = palette.INK, 2, "7 4"
"""The line of the lower bound."""


def draw_traffic(schedules: Sequence[Schedule], size: int, itemsize: int = 4, *, title: str | None = None) -> Picture:
    """Draw bytes sent and received per rank for buffers of ``size`` elements of ``itemsize`` bytes.

    All ``schedules`` must be of one world, at most 32. The line is `bandwidth_lower_bound`: some rank must send that
    much in any all-reduce. ``title`` should state the finding; by default it gives the busiest rank of each schedule.
    Raises `InvalidArgument`.
    """
    schedules = _checked(schedules)
    world = check_int("world", schedules[0].world, 1, MAX_RANKS)
    nbytes = check_int("size", size, 1) * check_int("itemsize", itemsize, 1)
    traffic = [count(schedule, size, itemsize) for schedule in schedules]
    bound = bandwidth_lower_bound(world, nbytes)
    busiest = (f"{kind_name(s)} {bytes_in_words(t.busiest_bytes)}" for s, t in zip(schedules, traffic, strict=True))
    title = f"Busiest rank: {', '.join(busiest)}" if title is None else title
    holders = "The only rank holds" if world == 1 else f"Each of {world} ranks holds"
    bar = 14.0 if world <= 8 else 5.0
    panel = max(190.0, world * (2 * bar + 10))
    width = LEFT + len(schedules) * (panel + PANEL_GAP) - PANEL_GAP + MARGIN
    width, shift = max(width, LEAST_WIDTH), max(0.0, LEAST_WIDTH - width) / 2
    top = max(bound, *(t.busiest_bytes for t in traffic), 1) * 1.12
    card = Card(width, title, f"{holders} {bytes_in_words(nbytes)}.")
    card.add(*_axis(top, width))
    for place, (s, t) in enumerate(zip(schedules, traffic, strict=True)):
        card.add(_bars(s, t, LEFT + shift + place * (panel + PANEL_GAP), panel, bar, top))
    card.add(line(LEFT - 10, _y(bound, top), width - MARGIN, _y(bound, top), *BOUND))
    card.y = FOOT + 56
    card.legend(_marks(bound))
    held = f"{plural(world, 'rank')} with {bytes_in_words(nbytes)} each. The lower bound is {bytes_in_words(bound)}."
    return card.picture(card.y + 6, held, " ".join(map(_told, schedules, traffic)))


def _checked(schedules: Sequence[Schedule] | Schedule) -> list[Schedule]:
    """One or more schedules of one world, as a list."""
    several = list(schedules) if isinstance(schedules, Sequence) else [schedules]
    if not several:
        raise InvalidArgument("schedules", schedules, "at least one schedule")
    for schedule in several:
        check_schedule(schedule)
        if schedule.world != several[0].world:
            raise InvalidArgument(f"world of {schedule.name}", schedule.world, f"{several[0].world}, as of the first")
    return several


def _told(schedule: Schedule, traffic: Traffic) -> str:
    sent, received = (", ".join(map(bytes_in_words, b.tolist())) for b in (traffic.sent_bytes, traffic.received_bytes))
    return f"{schedule_name(schedule)}: sent {sent}; received {received}."


def _y(value: float, top: float) -> float:
    return FOOT - HEIGHT * value / top


def _axis(top: float, width: float) -> Iterator[str]:
    """The axis of bytes, with round numbers, and the name of that of ranks."""
    for value in ticks(top, 6):
        yield line(LEFT - 10, _y(value, top), width - MARGIN, _y(value, top), palette.IDLE)
        yield aside(LEFT - 16, _y(value, top) + 4, bytes_in_words(value), 11, anchor="end", room=62)
    turned = f"translate({MARGIN + 4} {number(FOOT - HEIGHT / 2)}) rotate(-90)"
    yield element("g", aside(0, 0, "bytes per rank", anchor="middle"), transform=turned)
    yield aside(LEFT - 16, FOOT + 18, "rank", 11, anchor="end")


def _bars(schedule: Schedule, traffic: Traffic, left: float, width: float, bar: float, top: float) -> str:
    """Two bars for each rank: sent is filled, received is outlined."""
    pitch = width / schedule.world
    sent, received, names = [], [], []
    for rank, (out, into) in enumerate(zip(traffic.sent_bytes.tolist(), traffic.received_bytes.tolist(), strict=True)):
        middle = left + (rank + 0.5) * pitch
        sent.append(rect(middle - bar - 1, _y(out, top), bar, FOOT - _y(out, top)))
        received.append(rect(middle + 1, _y(into, top), bar, FOOT - _y(into, top)))
        if schedule.world <= 16 or rank % 4 == 0:
            names.append(text(middle, FOOT + 18, str(rank), 11, anchor="middle"))
    names.append(text(left + width / 2, FOOT + 38, kind_name(schedule), 13, anchor="middle", bold=True, room=width))
    bars = [element("g", b, fill=f, stroke=SENT, stroke_width=1.5) for b, f in ((sent, SENT), (received, RECEIVED))]
    return "".join(bars) + element("g", names)


def _marks(bound: float) -> Iterator[Mark]:
    """What the two bars and the line are."""
    for words, fill in (("sent", SENT), ("received", RECEIVED)):
        yield Mark(words, rect(0, 0, 14, 14, fill=fill, stroke=SENT, stroke_width=1.5))
    yield Mark(f"some rank must send this much: {bytes_in_words(bound)}", line(0, 7, 30, 7, *BOUND), 30)
