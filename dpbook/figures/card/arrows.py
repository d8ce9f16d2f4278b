"""Arrows: a way through corners, and a head at its end."""

from dpbook.core import palette
from dpbook.figures.card.svg import Attributes, element, number

Point = tuple[float, float]
Points = tuple[Point, ...]


def arrow(points: Points, width: float, *, stored: bool = False) -> str:
    """A message on its way through ``points``; dashed where it is ``stored`` and not added."""
    tip, back = points[-1], towards(points[-1], points[-2], 4 + 1.6 * width)
    dx, dy = 0.55 * (tip[0] - back[0]), 0.55 * (tip[1] - back[1])
    head = f"M{_pair(*tip)}L{_pair(back[0] - dy, back[1] + dx)}L{_pair(back[0] + dy, back[1] - dx)}z"
    line: Attributes = {
        "stroke": palette.COMMUNICATION,
        "stroke_width": width,
        "stroke_dasharray": "6 3" if stored else None,
    }
    way = element("path", d=path((*points[:-1], back)), fill="none", **line)
    return way + element("path", d=head, fill=palette.COMMUNICATION)


def path(points: Points, radius: float = 7) -> str:
    """Path data through ``points``, with rounded corners."""
    data = f"M{_pair(*points[0])}"
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        begin, end = towards(corner, before, radius), towards(corner, after, radius)
        data += f"L{_pair(*begin)}Q{_pair(*corner)} {_pair(*end)}"
    return data + f"L{_pair(*points[-1])}"


def towards(start: Point, end: Point, distance: float) -> Point:
    """The point at ``distance`` from ``start`` on the way to ``end``, at most half-way."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    length = (dx * dx + dy * dy) ** 0.5
    share = min(distance / length, 0.5) if length else 0.0
    return start[0] + share * dx, start[1] + share * dy


def _pair(x: float, y: float) -> str:
    return f"{number(x)} {number(y)}"
