"""Messages between cells of one row: which way an arrow takes, and what it carries."""

from collections.abc import Sequence
from typing import NamedTuple

from dpbook.collectives import Message
from dpbook.core import palette
from dpbook.figures.card.arrows import Points
from dpbook.figures.card.svg import text
from dpbook.figures.schedules import words

LANE = 20
"""Height of the lane of one arc above a row."""


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
