"""The lanes of one rank: its spans, the gaps between them, and lines from a gradient to the call that carries it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf
from typing import NamedTuple

import numpy as np

from dpbook.core import palette
from dpbook.figures.card.svg import aside, element, line, rect, text, text_width
from dpbook.figures.steps.looks import FILLS, labels, look, number_of
from dpbook.overlap import Span, Timeline
from dpbook.overlap.timeline import difference, union

WIDTH, LEFT, RIGHT = 900, 132, 20
LANE, BAR, LINK, FAN = 26, 22, 10, 24
"""Pixels: from lane to lane, of a bar, and between two lanes where lines join them; launches begin close together."""
MANY = 6
"""Lines; more of them are drawn paler."""
FINEST, NARROW = 0.75, 4.0
"""Pixels: spans closer together than the first are drawn as one, up to the second."""
ORDER = ("launch", "computation", "copy", "wait", "communication")
"""The order of lanes: that in which work passes through them."""


@dataclass(frozen=True)
class Scale:
    """Time in seconds to a place on the page."""

    end: float

    def __call__(self, seconds: float) -> float:
        return LEFT + min(seconds, self.end) / (self.end or 1.0) * (WIDTH - LEFT - RIGHT)


HANDED_ON = {"computation": "gradient to its call", "launch": "launch to its kernel"}
"""What lines mean, by the kind of span at whose end they begin."""


class Link(NamedTuple):
    """The span at whose end a gradient was complete, and the one that carries it; or a launch and its kernel."""

    made: Span
    call: Span


def links(timeline: Timeline) -> list[Link]:
    """Each call of one rank, from where it first waits or moves, with what made its last gradient, where known.

    Each kernel with its launch, where that is known.
    """
    made = {span.end: span for span in timeline.spans if span.kind in HANDED_ON}
    calls = sorted((span for span in timeline.spans if span.ready in made), key=lambda span: span.start)
    first = {(span.name, span.ready): span for span in reversed(calls)}
    return [Link(made[span.ready], span) for span in calls if span is first[span.name, span.ready]]  # type: ignore[index]


class Lanes:
    """The lanes of a timeline of one rank, from ``y`` on, as they are at ``now``. Iterating draws them."""

    def __init__(self, timeline: Timeline, y: float, scale: Scale, now: float = inf) -> None:
        self.timeline, self.scale, self.now = timeline, scale, now
        self.links = links(timeline)
        targets = {link.call.lane for link in self.links}
        room = FAN if any(link.made.kind == "launch" for link in self.links) else LINK
        self.tops: dict[str, float] = {}
        self.bottom = y
        for lane in _in_order(timeline):
            if lane in targets and not targets & self.tops.keys():
                self.bottom += room
            self.tops[lane] = self.bottom
            self.bottom += LANE

    def __iter__(self) -> Iterator[str]:
        for lane, top in self.tops.items():
            yield aside(LEFT - 8, top + 15, cut(lane, LEFT - 20, 11), 11, anchor="end")
            yield from self._ground(lane, top)
        yield from self._lines()
        for lane, top in self.tops.items():
            spans = [span for span in self.timeline.spans if span.lane == lane]
            merged = sorted(_merged(spans, self.scale), key=lambda span: span.start)
            for span in merged:
                yield from self._bar(span, top)
            yield from self._names(merged, top)

    def _ground(self, lane: str, top: float) -> Iterator[str]:
        """The whole step in pale; what of it has passed without work is striped and called idle."""
        left, right = self.scale(self.timeline.start), self.scale(self.timeline.end)
        yield rect(left, top, right - left, BAR, fill=palette.PANEL)
        spans = [(s.start, s.end) for s in self.timeline.spans if s.lane == lane]
        kinds = {s.kind for s in self.timeline.spans if s.lane == lane}
        passed = np.array([[self.timeline.start, min(self.now, self.timeline.end)]])
        if not kinds & {"computation", "communication", "wait"} or passed[0, 1] <= passed[0, 0]:
            return
        for start, end in difference(union(passed), union(spans)).tolist():
            x, width = self.scale(start), self.scale(end) - self.scale(start)
            if width >= 3:
                yield stripes(x, top, width, palette.IDLE)
            if width >= 34:
                yield aside(x + width / 2, top + 15, "idle", 11, anchor="middle", halo=palette.PANEL)

    def _lines(self) -> Iterator[str]:
        """From each gradient that is complete to its call; those that look the same are drawn once."""
        shown = [link for link in self.links if link.made.end <= self.now]
        ends = ((self.scale(a.end), self.tops[a.lane] + BAR, self.scale(b.start), self.tops[b.lane]) for a, b in shown)
        path = dict.fromkeys(f"M{a:.0f} {b:g}v2L{c:.0f} {d - 2:g}v2" for a, b, c, d in ends)
        if path:
            stroke, width = (palette.INK, 1) if len(self.links) <= MANY else (palette.tint(palette.INK, 0.5), 0.7)
            yield element("path", d="".join(path), fill="none", stroke=stroke, stroke_width=width)

    def _bar(self, span: Span, top: float) -> Iterator[str]:
        """Solid as far as it has run; what is still to come is an outline, striped if it has begun."""
        x, end = self.scale(span.start), self.scale(span.end)
        width, fill = max(end - x, 0.5), FILLS[look(span)]
        gap, rx = (0.8, 2) if width > 4 else (0.0, None)
        done = min(max(self.scale(self.now) - x, 0.0), width) if self.now < span.end else width
        if done < width:
            edge = palette.tint(fill, 0.6) if width > 4 else None
            wide, ghost = max(width - gap - 1, 0.5), palette.tint(fill, 0.12)
            yield rect(x + 0.5, top + 0.5, wide, BAR - 1, rx=rx, fill=ghost, stroke=edge)
            if 0 < done < width - 3:
                yield stripes(x + done, top, width - done - gap, palette.tint(fill, 0.6))
        if done:
            yield rect(x, top, max(done - gap, 0.4), BAR, rx=rx, fill=fill)

    def _names(self, spans: list[Span], top: float) -> Iterator[str]:
        """In each span the longest of its labels that fits; where none does, one for the whole run of its kind."""
        completes: dict[Span, list[str]] = {}
        for link in self.links:
            if link.made.kind == "computation" and (number := number_of(link.call.name)):
                completes.setdefault(link.made, []).append(number)
        for name, together in groupby(spans, key=look):
            run = list(together)
            found = [self._fitting(span, completes.get(span, ())) for span in run]
            for span, label in zip(run, found, strict=True):
                if label:
                    x = (self.scale(span.start) + self.scale(span.end)) / 2
                    yield text(x, top + 15, label, 11, anchor="middle", fill=self._on(span))
            if not any(found) and run[0].kind == "computation":
                yield from self._name_of_run(name, run[0].start, run[-1].end, sum(span.duration for span in run), top)

    def _fitting(self, span: Span, calls: Sequence[str]) -> str:
        room = self.scale(span.end) - self.scale(span.start) - 2
        return next((label for label in labels(span, calls) if text_width(label, 11) <= room), "")

    def _name_of_run(self, name: str, start: float, end: float, seconds: float, top: float) -> Iterator[str]:
        left, right = self.scale(start), self.scale(end)
        if seconds > 0.8 * (end - start) and text_width(name, 11) < right - left - 8:
            over = end <= self.now
            ink = palette.text_on(FILLS[name]) if over else palette.INK
            halo = FILLS[name] if over else palette.PAPER
            yield text((left + right) / 2, top + 15, name, 11, anchor="middle", fill=ink, halo=halo)

    def _on(self, span: Span) -> str:
        """The colour of a text in the middle of a span."""
        return palette.text_on(FILLS[look(span)]) if (span.start + span.end) / 2 < self.now else palette.INK


def stripes(x: float, y: float, width: float, colour: str, high: float = BAR) -> str:
    """A bar of upright stripes: one thick dashed line, as a pattern would need an id."""
    return line(x, y + high / 2, x + width, y + high / 2, colour, high, "1.5 4.5")


def _in_order(timeline: Timeline) -> list[str]:
    (rank,) = timeline.ranks
    kinds = {lane: min(ORDER.index(s.kind) for s in timeline.spans if s.lane == lane) for lane in timeline.lanes(rank)}
    return sorted(kinds, key=lambda lane: (kinds[lane], lane))


def _merged(spans: Iterable[Span], scale: Scale) -> Iterator[Span]:
    """Spans too narrow to tell apart, as one without a number."""
    runs: dict[str, list[list[Span]]] = {}
    for span in spans:
        own = runs.setdefault(look(span), [])
        near = own and scale(span.start) - scale(own[-1][-1].end) < FINEST
        if near and scale(span.end) - scale(own[-1][0].start) < NARROW:
            own[-1].append(span)
        else:
            own.append([span])
    for run in (run for own in runs.values() for run in own):
        name = run[0].name.partition(" ")[0]
        yield run[0] if len(run) == 1 else run[0]._replace(name=name, end=max(span.end for span in run))


def cut(words: str, room: float, size: float, bold: bool = False) -> str:
    """As much of the words as fits: unlike `svg.fit`, in no smaller letters."""
    while len(words) > 1 and text_width(words, size, bold=bold) > room:
        words = words.rstrip("…")[:-1] + "…"
    return words
