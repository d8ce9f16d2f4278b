"""Bytes that each rank sends and receives, schedule beside schedule, with the least that an all-reduce can do."""

from collections.abc import Sequence

from dpbook.collectives import Schedule, Traffic, bandwidth_lower_bound, count
from dpbook.collectives.schedule import check_schedule
from dpbook.core import InvalidArgument, bytes_in_words, check_int, plural
from dpbook.figures import Picture
from dpbook.figures.card import MARGIN, element, heading, number, palette, rect, text

MAX_RANKS = 32
LEFT, TOP, HEIGHT = 104, 88, 220
LEAST_WIDTH, PANEL_GAP = 700.0, 36
SENT, RECEIVED = palette.COMMUNICATION, palette.tint(palette.COMMUNICATION, 0.25)


def draw_traffic(schedules: Sequence[Schedule], size: int, itemsize: int = 4, *, title: str | None = None) -> Picture:
    """Draw bytes sent and received per rank for buffers of ``size`` elements of ``itemsize`` bytes.

    All ``schedules`` must be of one world, at most 32. The line is `bandwidth_lower_bound`: some rank must send that
    much in any all-reduce. ``title`` should state the finding; by default it gives the busiest rank of each schedule.
    Raises `InvalidArgument`.
    """
    schedules = list(schedules) if isinstance(schedules, Sequence) else [schedules]
    if not schedules:
        raise InvalidArgument("schedules", schedules, "at least one schedule")
    for schedule in schedules:
        check_schedule(schedule)
        if schedule.world != schedules[0].world:
            raise InvalidArgument(f"world of {schedule.name}", schedule.world, f"{schedules[0].world}, as of the first")
    world = check_int("world", schedules[0].world, 1, MAX_RANKS)
    nbytes = check_int("size", size, 1) * check_int("itemsize", itemsize, 1)
    traffic = [count(schedule, size, itemsize) for schedule in schedules]
    bound = bandwidth_lower_bound(world, nbytes)
    names = (schedule.name.partition("(")[0].replace("_", " ") for schedule in schedules)
    busiest = (f"{n} {bytes_in_words(t.busiest_bytes)}" for n, t in zip(names, traffic, strict=True))
    title = f"Busiest rank: {', '.join(busiest)}" if title is None else title
    holders = "The only rank holds" if world == 1 else f"Each of {world} ranks holds"
    bar = 14.0 if world <= 8 else 5.0
    panel = max(190.0, world * (2 * bar + 10))
    width = LEFT + len(schedules) * (panel + PANEL_GAP) - PANEL_GAP + MARGIN
    width, shift = max(width, LEAST_WIDTH), max(0.0, LEAST_WIDTH - width) / 2
    top = max(bound, *(t.busiest_bytes for t in traffic), 1) * 1.12
    places = [LEFT + shift + i * (panel + PANEL_GAP) for i in range(len(schedules))]
    body = [
        heading(width, 34, title, f"{holders} {bytes_in_words(nbytes)}."),
        _axis(top, width),
        *(_bars(s, t, x, panel, bar, top) for s, t, x in zip(schedules, traffic, places, strict=True)),
        _line(f"M{LEFT - 10} {number(_y(bound, top))}H{number(width - MARGIN)}"),
        _legend(TOP + HEIGHT + 56, bound),
    ]
    alt = f"{title}. {plural(world, 'rank')} with {bytes_in_words(nbytes)} each."
    alt += f" The lower bound is {bytes_in_words(bound)}."
    told = []
    for s, t in zip(schedules, traffic, strict=True):
        sent, received = (", ".join(map(bytes_in_words, b.tolist())) for b in (t.sent_bytes, t.received_bytes))
        told.append(f"{s.name}: sent {sent}; received {received}.")
    return Picture(width, TOP + HEIGHT + 88, body, alt, " ".join(told))


def _y(value: float, top: float) -> float:
    return TOP + HEIGHT * (1 - value / top)


def _axis(top: float, width: float) -> str:
    """The axis of bytes, with three to six round numbers."""
    digit = 10.0 ** (len(str(int(top))) - 1)
    tick = next(t for t in (digit / 5, digit / 2, digit, 2 * digit, 5 * digit) if top / t <= 6)
    lines, labels = "", ""
    for value in (i * tick for i in range(int(top / tick) + 1)):
        y = _y(value, top)
        lines += f"M{LEFT - 10} {number(y)}H{number(width - MARGIN)}"
        labels += text(LEFT - 16, y + 4, bytes_in_words(value), 11, anchor="end", fill=palette.MUTED, room=62)
    turned = f"translate({MARGIN + 4} {number(TOP + HEIGHT / 2)}) rotate(-90)"
    name = element("g", text(0, 0, "bytes per rank", 12, anchor="middle", fill=palette.MUTED), transform=turned)
    return element("path", d=lines, stroke=palette.IDLE) + labels + name


def _bars(schedule: Schedule, traffic: Traffic, left: float, width: float, bar: float, top: float) -> str:
    """Two bars for each rank: sent is filled, received is outlined."""
    pitch = width / schedule.world
    sent, received, names = [], [], []
    for rank, (out, into) in enumerate(zip(traffic.sent_bytes.tolist(), traffic.received_bytes.tolist(), strict=True)):
        middle = left + (rank + 0.5) * pitch
        sent.append(rect(middle - bar - 1, _y(out, top), bar, TOP + HEIGHT - _y(out, top)))
        received.append(rect(middle + 1, _y(into, top), bar, TOP + HEIGHT - _y(into, top)))
        if schedule.world <= 16 or rank % 4 == 0:
            names.append(text(middle, TOP + HEIGHT + 18, str(rank), 11, anchor="middle"))
    names.append(text(left + width / 2, TOP + HEIGHT + 38, schedule.name, 13, anchor="middle", bold=True, room=width))
    bars = [element("g", b, fill=f, stroke=SENT, stroke_width=1.5) for b, f in ((sent, SENT), (received, RECEIVED))]
    return "".join(bars) + element("g", names)


def _line(path: str) -> str:
    """The lower bound, or its mark in the legend."""
    return element("path", d=path, stroke=palette.INK, stroke_width=2, stroke_dasharray="7 4")


def _legend(y: float, bound: float) -> str:
    """What the two bars and the line are."""
    parts = [text(LEFT - 16, y - 38, "rank", 11, anchor="end")]
    for x, fill, label in ((MARGIN, SENT, "sent"), (MARGIN + 72, RECEIVED, "received")):
        parts.append(element("rect", x=x, fill=fill, y=y, width=14, height=14, stroke=SENT, stroke_width=1.5))
        parts.append(text(x + 22, y + 12, label, 12))
    parts.append(_line(f"M{MARGIN + 172} {number(y + 7)}h30"))
    parts.append(text(MARGIN + 210, y + 12, f"some rank must send this much: {bytes_in_words(bound)}", 12))
    return element("g", parts, fill=palette.MUTED)
