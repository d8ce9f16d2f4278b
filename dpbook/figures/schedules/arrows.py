"""Messages between cells of one row: which way an arrow takes, and how it is drawn."""

from collections.abc import Sequence
from typing import NamedTuple

from dpbook.collectives import Message
from dpbook.figures.card import palette
from dpbook.figures.card.svg import element, number, text
from dpbook.figures.schedules import words

LANE = 20
"""Height of the lane of one arc above a row."""

Points = tuple[tuple[float, float], ...]


class Way(NamedTuple):
    """A message, the corners of its way, and whether its label is below it."""

    message: Message
    points: Points
    below: bool


def levels(messages: Sequence[Message]) -> list[int]:
    """The lane of each message of one row: 0 runs straight to a neighbour, the others arch over the cells between.

    Short arcs are nearest to the row, and no two that overlap share a lane.
    """
    lanes: list[list[tuple[int, int]]] = []
    found = [0] * len(messages)
    for i in sorted(range(len(messages)), key=lambda i: abs(messages[i].source - messages[i].dest)):
        low, high = sorted(messages[i][:2])
        if high - low == 1:
            continue
        lane = next((n for n, taken in enumerate(lanes) if all(high <= a or b <= low for a, b in taken)), len(lanes))
        if lane == len(lanes):
            lanes.append([])
        lanes[lane].append((low, high))
        found[i] = lane + 1
    return found


def route(source: float, dest: float, top: float, width: float, height: float, level: int, facing: bool) -> Points:
    """The corners of a message's way between the cells whose left edges are ``source`` and ``dest``.

    ``facing``: another message goes the opposite way, so each keeps to its side.
    """
    right = 1 if dest > source else -1
    if level == 0:
        y = top + height / 2 + (-8 * right if facing else 0)
        begin, end = (source + width, dest) if right > 0 else (source, dest + width)
        return (begin + 2 * right, y), (end - 3 * right, y)
    lane = top - 8 - LANE * (level - 0.5)
    begin, end = source + width / 2 + 14 * right, dest + width / 2 - 14 * right
    return (begin, top - 1), (begin, lane), (end, lane), (end, top - 3)


def path(points: Points, radius: float = 7) -> str:
    """Path data through ``points``, with rounded corners."""
    (x, y), last = points[0], points[-1]
    data = f"M{number(x)} {number(y)}"
    for (ax, ay), (bx, by), (cx, cy) in zip(points, points[1:], points[2:], strict=False):
        before, after = towards((bx, by), (ax, ay), radius), towards((bx, by), (cx, cy), radius)
        data += f"L{_pair(*before)}Q{_pair(bx, by)} {_pair(*after)}"
    return data + f"L{_pair(*last)}"


def arrow(points: Points, length: float, broad: float, dashes: str | None) -> str:
    """A line through ``points`` with a head so long, and so broad for its length."""
    tip, back = points[-1], towards(points[-1], points[-2], length)
    dx, dy = (tip[0] - back[0]) * broad / 2, (tip[1] - back[1]) * broad / 2
    head = f"M{_pair(*tip)}L{_pair(back[0] - dy, back[1] + dx)}L{_pair(back[0] + dy, back[1] - dx)}z"
    line = element("path", d=path((*points[:-1], back)), stroke_dasharray=dashes)
    return line + element("path", d=head, fill=palette.COMMUNICATION, stroke="none")


def load(message: Message, n_chunks: int) -> str:
    """What a message carries: "+a" is added, "=a" is stored."""
    return ("+" if message.reduce else "=") + words.chunk_name(message.chunk, n_chunks)


def label(way: Way, n_chunks: int) -> str:
    """What the arrow carries: beside the line of a straight arrow, and on that of an arc."""
    middle = len(way.points) // 2
    (x1, y), (x2, _) = way.points[middle - 1 : middle + 1]
    y += 5 if len(way.points) > 2 else 17 if way.below else -7
    sign = load(way.message, n_chunks)
    return text((x1 + x2) / 2, y, sign, 14, anchor="middle", bold=True, fill=palette.INK, halo=palette.PAPER)


def towards(start: tuple[float, float], end: tuple[float, float], distance: float) -> tuple[float, float]:
    """The point at ``distance`` from ``start`` on the way to ``end``, at most half-way."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    length = (dx * dx + dy * dy) ** 0.5
    share = min(distance / length, 0.5) if length else 0.0
    return start[0] + share * dx, start[1] + share * dy


def _pair(x: float, y: float) -> str:
    return f"{number(x)} {number(y)}"
