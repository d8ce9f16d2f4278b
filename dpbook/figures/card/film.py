"""Pictures one after another as one drawing that moves by itself, without scripts.

The frames are groups of one SVG, each seen for its time; what several frames share is there once. Where nothing moves,
on paper or for readers who ask their system for less motion, the last frame is seen. A viewer takes the same frames out
of it and steps through them (``player.js``).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from dpbook.figures.card.picture import Drawing, Picture, address
from dpbook.figures.card.svg import document, element, escape, number

WAY = 0.6

STILL = "(prefers-reduced-motion:reduce),print"
STYLE = f"@media {STILL}{{.way,.frame{{display:none}}.frame:last-child{{display:inline;visibility:visible!important}}}}"


def way_seconds(pace: float) -> float:
    """How long what is under way to a frame is seen, if a frame has ``pace`` seconds."""
    return min(WAY, WAY * pace)


class Frame(NamedTuple):
    """A picture, and what is seen ``under_way`` to it, before it: things that move.

    What moves to frame n begins at ``way{n}.begin``.
    """

    picture: Picture
    under_way: tuple[str, ...] = ()


class Film(Drawing):
    """``frames`` of one size, ``pace`` seconds each; the last one stands for three times as long, then all repeats."""

    def __init__(self, frames: Sequence[Frame], pace: float, alt: str) -> None:
        self.frames, self.pace, self.alt = frames, pace, alt
        self.width = max(frame.picture.width for frame in frames)
        self.height = max(frame.picture.height for frame in frames)

    @property
    def seconds(self) -> float:
        """How long it takes, once."""
        return (len(self.frames) + 2) * self.pace

    @cached_property
    def svg(self) -> str:  # type: ignore[override]
        """The markup."""
        often = Counter(part for frame in self.frames for part in (*frame.picture.body, *frame.under_way))
        names = {part: f"p{place}" for place, part in enumerate(part for part, n in often.items() if n > 1)}
        shared = element("defs", (element("g", part, id=name) for part, name in names.items()))
        body = [self._clock(), shared]
        for place, frame in enumerate(self.frames):
            body += self._shots(place, frame, names)
        return document(self.width, self.height, self.alt, "", body, STYLE)

    @property
    def image(self) -> str:
        """The moving image, or the last frame for who asks for less motion and on paper.

        The page chooses: Chromium 156 does not tell an image what its reader asks for.
        """
        still = address("svg+xml", self.frames[-1].picture.svg.encode())
        return f'<picture><source media="{STILL}" srcset="{still}">{super().image}</picture>'

    def _clock(self) -> str:
        """All times are told from the beginning of this animation, which changes nothing."""
        still = element(
            "animate", id="clock", attributeName="x", values="0;0", begin="0s;clock.end", dur=f"{number(self.seconds)}s"
        )  # fmt: skip
        return element("rect", still, width=0, height=0)

    def _shots(self, place: int, frame: Frame, names: dict[str, str]) -> Iterator[str]:
        """What is under way to a frame, and the frame itself."""
        start, last = place * self.pace, place == len(self.frames) - 1
        way = way_seconds(self.pace) if frame.under_way else 0.0
        if way:
            seen = _seen(start, way, name=f"way{place}")
            yield element("g", [*_parts(frame.under_way, names), seen], class_="way", visibility="hidden")
        words = [element("title", escape(frame.picture.alt))]
        words += [element("desc", escape(frame.picture.description))] if frame.picture.description else []
        parts = [*words, *_parts(frame.picture.body, names)]
        if last:  # seen where nothing moves
            yield element("g", [*parts, _seen(0, start + way, "hidden")] if start + way else parts, class_="frame")
        else:
            yield element("g", [*parts, _seen(start + way, self.pace - way)], class_="frame", visibility="hidden")


def _parts(markup: Sequence[str], names: dict[str, str]) -> Iterator[str]:
    """Each part itself, or where it is shared a reference to it."""
    return (element("use", href=f"#{names[part]}") if part in names else part for part in markup)


def _seen(start: float, seconds: float, to: str = "visible", name: str | None = None) -> str:
    begin, dur = f"clock.begin+{number(start)}s", f"{number(seconds)}s"
    return element("set", id=name, attributeName="visibility", to=to, begin=begin, dur=dur)
