"""Bytes that each rank sends and receives, schedule beside schedule, with the least that an all-reduce can do."""

from __future__ import annotations

from collections.abc import Sequence

from dpbook.collectives import Schedule, Traffic, bandwidth_lower_bound, count
from dpbook.collectives.schedule import check_schedule
from dpbook.core import InvalidArgument, bytes_in_words, check_int, plural
from dpbook.figures import Picture
from dpbook.figures.card import document, element, number, palette, text

MAX_RANKS = 32
MARGIN, LEFT, TOP, HEIGHT = 20, 104, 88, 220
LEAST_WIDTH = 700.0
PANEL_GAP = 36


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
    if title is None:
        title = "Busiest rank: " + ", ".join(
            f"{s.name.partition('(')[0].replace('_', ' ')} {bytes_in_words(t.busiest_bytes)}"
            for s, t in zip(schedules, traffic, strict=True)
        )
    holders = "The only rank holds" if world == 1 else f"Each of {world} ranks holds"
    bar = 14.0 if world <= 8 else 5.0
    panel = max(190.0, world * (2 * bar + 10))
    width = LEFT + len(schedules) * (panel + PANEL_GAP) - PANEL_GAP + MARGIN
    width, shift = max(width, LEAST_WIDTH), max(0.0, LEAST_WIDTH - width) / 2
    top = max(bound, *(t.busiest_bytes for t in traffic), 1) * 1.12
    body = [
        text(MARGIN, 34, title, 17, bold=True, room=width - 2 * MARGIN),
        text(MARGIN, 56, f"{holders} {bytes_in_words(nbytes)}.", 13, fill=palette.MUTED),
        _axis(top, width),
        *(
            _bars(s, t, LEFT + shift + i * (panel + PANEL_GAP), panel, bar, top)
            for i, (s, t) in enumerate(zip(schedules, traffic, strict=True))
        ),
        _bound(bound, top, width),
        _legend(TOP + HEIGHT + 56, bound),
    ]
    alt = f"{title}. {plural(world, 'rank')} with {bytes_in_words(nbytes)} each."
    alt += f" The lower bound is {bytes_in_words(bound)}."
    described = " ".join(
        f"{s.name}: sent {', '.join(map(bytes_in_words, t.sent_bytes.tolist()))}; "
        f"received {', '.join(map(bytes_in_words, t.received_bytes.tolist()))}."
        for s, t in zip(schedules, traffic, strict=True)
    )
    return Picture(document(width, TOP + HEIGHT + 88, alt, described, body), alt)


def _y(value: float, top: float) -> float:
    return TOP + HEIGHT * (1 - value / top)


def _axis(top: float, width: float) -> str:
    """The axis of bytes, with three to six round numbers."""
    digit = 10.0 ** (len(str(int(top))) - 1)
    tick = next(t for t in (digit / 5, digit / 2, digit, 2 * digit, 5 * digit) if top / t <= 6)
    values = [i * tick for i in range(int(top / tick) + 1)]
    lines = element(
        "path", d="".join(f"M{LEFT - 10} {number(_y(v, top))}H{number(width - MARGIN)}" for v in values),
        stroke=palette.IDLE,
    )  # fmt: skip
    labels = [
        text(LEFT - 16, _y(v, top) + 4, bytes_in_words(v), 11, anchor="end", fill=palette.MUTED, room=62)
        for v in values
    ]
    middle = TOP + HEIGHT / 2
    name = element(
        "g", text(0, 0, "bytes per rank", 12, anchor="middle", fill=palette.MUTED),
        transform=f"translate({MARGIN + 4} {number(middle)}) rotate(-90)",
    )  # fmt: skip
    return lines + "".join(labels) + name


def _bars(schedule: Schedule, traffic: Traffic, left: float, width: float, bar: float, top: float) -> str:
    """Two bars for each rank: sent is filled, received is outlined."""
    pitch = width / schedule.world
    sent, received, names = [], [], []
    for rank, (out, into) in enumerate(zip(traffic.sent_bytes.tolist(), traffic.received_bytes.tolist(), strict=True)):
        middle = left + (rank + 0.5) * pitch
        sent.append(_bar(middle - bar - 1, bar, out, top))
        received.append(_bar(middle + 1, bar, into, top))
        if schedule.world <= 16 or rank % 4 == 0:
            names.append(text(middle, TOP + HEIGHT + 18, str(rank), 11, anchor="middle"))
    names.append(text(left + width / 2, TOP + HEIGHT + 38, schedule.name, 13, anchor="middle", bold=True, room=width))
    return (
        element("g", sent, fill=palette.COMMUNICATION, stroke=palette.COMMUNICATION, stroke_width=1.5)
        + element("g", received, fill=palette.tint(palette.COMMUNICATION, 0.25), stroke=palette.COMMUNICATION,
                  stroke_width=1.5)
        + element("g", names)
    )  # fmt: skip


def _bar(x: float, width: float, value: int, top: float) -> str:
    y = _y(value, top)
    return element("rect", x=x, y=y, width=width, height=TOP + HEIGHT - y)


def _bound(bound: float, top: float, width: float) -> str:
    line = f"M{LEFT - 10} {number(_y(bound, top))}H{number(width - MARGIN)}"
    return element("path", d=line, stroke=palette.INK, stroke_width=2, stroke_dasharray="7 4")


def _legend(y: float, bound: float) -> str:
    """What the two bars and the line are."""
    square: dict[str, str | float] = {
        "y": y,
        "width": 14,
        "height": 14,
        "stroke": palette.COMMUNICATION,
        "stroke_width": 1.5,
    }
    return element(
        "g",
        (
            text(LEFT - 16, y - 38, "rank", 11, anchor="end"),
            element("rect", x=MARGIN, fill=palette.COMMUNICATION, **square),
            text(MARGIN + 22, y + 12, "sent", 12),
            element("rect", x=MARGIN + 72, fill=palette.tint(palette.COMMUNICATION, 0.25), **square),
            text(MARGIN + 94, y + 12, "received", 12),
            element("path", d=f"M{MARGIN + 172} {number(y + 7)}h30", stroke=palette.INK, stroke_width=2,
                    stroke_dasharray="7 4"),
            text(MARGIN + 210, y + 12, f"some rank must send this much: {bytes_in_words(bound)}", 12),
        ),
        fill=palette.MUTED,
    )  # fmt: skip
