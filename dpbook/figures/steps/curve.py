"""A small curve with the point that is chosen: where one is among all positions of a knob."""

from collections.abc import Mapping

from dpbook.core import milliseconds, palette
from dpbook.figures.card.picture import Picture
from dpbook.figures.card.svg import MARGIN, Attributes, aside, circle, element, rect, text

WIDTH, LEFT, RIGHT, TOP, HEIGHT = 900, 132, 60, 34, 80


def here(
    curve: Mapping[str, float], chosen: str, title: str, most: float, last: tuple[str, float] | None = None
) -> Picture:
    """Draw ``curve``, seconds by the position of a knob, from 0 to ``most``, and mark the ``chosen`` position.

    ``last`` is where one was before, a position and its seconds: a ring, its ghost.
    """
    apart, foot = (WIDTH - LEFT - RIGHT) / max(len(curve) - 1, 1), TOP + HEIGHT
    places = {name: (LEFT + k * apart, foot - HEIGHT * s / most) for k, (name, s) in enumerate(curve.items())}
    body = [text(MARGIN, 18, title, 13, bold=True)]
    for value, y in ((most, float(TOP)), (0.0, float(foot))):
        body.append(rect(LEFT - 6, y, WIDTH - LEFT - RIGHT + 12, 1, fill=palette.IDLE))
        body.append(aside(LEFT - 12, y + 4, milliseconds(value), 11, anchor="end"))
    x, y = places[chosen]
    body.append(rect(x - 0.5, TOP, 1, HEIGHT, fill=palette.INK))
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in places.values())
    body.append(element("polyline", points=points, fill="none", stroke=palette.COMPUTATION, stroke_width=2))
    body += [circle(a, b, 3, fill=palette.COMPUTATION) for a, b in places.values()]
    if last:
        ring: Attributes = {"fill": "none", "stroke": palette.MUTED, "stroke_width": 2, "stroke_dasharray": "3 2"}
        body.append(circle(places[last[0]][0], foot - HEIGHT * last[1] / most, 7, **ring))
        body.append(aside(WIDTH - MARGIN, 18, "dashed ring: the last position", 11, anchor="end"))
    body.append(circle(x, y, 6, fill=palette.INK))
    for name, (a, _) in places.items():
        now = name == chosen
        body.append(text(a, foot + 17, name, 11, anchor="middle", fill=palette.INK if now else palette.MUTED, bold=now))
    where = f"you are here: {milliseconds(curve[chosen])}"
    side, anchor = (6, None) if x < WIDTH / 2 else (-6, "end")
    body.append(text(x + side, foot - 6, where, 12, anchor=anchor, halo=palette.PAPER))
    alt = f"{title}: {', '.join(f'{name} {milliseconds(seconds)}' for name, seconds in curve.items())}; {where}."
    return Picture(WIDTH, foot + 30, body, alt)
