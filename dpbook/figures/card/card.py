"""What the pictures of the book share: a title, a legend, boxes for text, and round numbers along an axis."""

from collections.abc import Iterable
from math import floor, log10
from typing import NamedTuple

from dpbook.core import palette
from dpbook.figures.card.picture import Picture
from dpbook.figures.card.svg import MARGIN, aside, element, number, rect, text, text_width


class Mark(NamedTuple):
    """What a sign means, in words; ``drawn`` is 14 pixels high and begins at (0, 0)."""

    words: str
    drawn: str
    width: float = 14


class Card:
    """A picture that is drawn from top to bottom: under its title the next part begins at ``y``."""

    def __init__(self, width: float, title: str, subtitle: str = "") -> None:
        self.width, self.title = width, title
        self.body = [heading(width, title, subtitle)]
        self.y = 70.0 if subtitle else 48.0

    def add(self, *parts: str) -> None:
        """Draw ``parts`` on what is there."""
        self.body += parts

    def legend(self, marks: Iterable[Mark]) -> None:
        """Draw a `legend` across the card."""
        drawn, self.y = legend(marks, self.width, self.y)
        self.body += drawn

    def picture(self, height: float, told: str, description: str = "") -> Picture:
        """The finished picture. Its alternative text is the title and what is ``told``."""
        return Picture(self.width, height, self.body, f"{self.title}. {told}", description)


def heading(width: float, title: str, subtitle: str = "") -> str:
    """The title of a picture ``width`` wide, and a line under it."""
    room = width - 2 * MARGIN
    return text(MARGIN, 34, title, 17, bold=True, room=room) + (
        aside(MARGIN, 56, subtitle, 13, room=room) if subtitle else ""
    )


def legend(marks: Iterable[Mark], width: float, y: float) -> tuple[list[str], float]:
    """Signs and their meaning in as many lines as they need from ``y`` on, and where what is below may begin."""
    x, drawn = float(MARGIN), []
    for words, sign, wide in marks:
        across = wide + 6 + text_width(words, 12)
        if x > MARGIN and x + across > width - MARGIN:
            x, y = float(MARGIN), y + 20
        drawn.append(element("g", sign, transform=f"translate({number(x)} {number(y)})"))
        drawn.append(aside(x + wide + 6, y + 12, words))
        x += across + 14
    return drawn, y + 26


def box(x: float, y: float, width: float, height: float, colour: str | None, share: float, now: bool = False) -> str:
    """A box for text: tinted with a ``share`` of its ``colour``, with a strong edge ``now``; empty without a colour."""
    if colour is None:
        return rect(x, y, width, height, rx=6, fill=palette.PANEL)
    return rect(
        x, y, width, height, rx=6, fill=palette.tint(colour, share), stroke=colour, stroke_width=3 if now else 1.2
    )


def ticks(end: float, most: int) -> list[float]:
    """Round numbers from 0 to ``end`` > 0: at most ``most`` steps of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** floor(log10(end / most))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if end / (power * factor) <= most)
    return [index * step for index in range(int(end / step + 1e-9) + 1)]
