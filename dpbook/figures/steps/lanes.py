"""Lanes of one rank: its spans, the gaps between them, and lines from a gradient to the call that sends it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import inf
from typing import NamedTuple

import numpy as np

from dpbook.core import palette
from dpbook.figures.card.picture import Mark
from dpbook.figures.card.svg import aside, cut, element, line, rect, text, text_width
from dpbook.overlap import Span, Timeline
from dpbook.overlap.timeline import difference, union

FILLS = {
    "forward": palette.FORWARD,
    "backward": palette.BACKWARD,
    "recompute": palette.COMPUTATION,
    "update": palette.UPDATE,
    "computation": palette.COMPUTATION,
    "all-gather": palette.tint(palette.COMMUNICATION, 0.6),
    "reduce-scatter": palette.COMMUNICATION,
    "communication": palette.COMMUNICATION,
    "wait": palette.tint(palette.COMMUNICATION, 0.3),
    "launch": palette.MUTED,
    "copy": palette.IDLE,
}
"""Colour of each kind of span, in the order of the legend. Its name, its letter or its lane also shows the kind."""
PHASES = {"forward": "forward", "recompute": "recompute", "backward": "backward", "optimizer": "update"}
"""Kinds in the legend by the first word of a computation's name."""
HALVES = ("all-gather", "reduce-scatter")
"""First words of the names of collectives that have a kind of their own: the two halves of an all-reduce."""
WORDS = {
    "forward": "F: forward", "recompute": "R: forward once more", "backward": "B: backward", "update": "U: update",
    "all-gather": "G: all-gather", "reduce-scatter": "S: reduce-scatter", "wait": "waiting",
}  # fmt: skip
"""Words of the legend that differ from the name of the kind."""
LETTERS = {name: words[0] for name, words in WORDS.items() if words[1] == ":"}
"""Letter in a span that has no room for its name, by its kind."""


def fill_key(span: Span) -> str:
    """Return the key of a span in `FILLS`."""
    first = span.name.partition(" ")[0]
    if span.kind == "computation":
        return PHASES.get(first, "computation")
    return first if span.kind == "communication" and first in HALVES else span.kind


def labels(span: Span, calls: Sequence[str] = ()) -> Iterator[str]:
    """Yield labels for a span, the longest first; ``calls`` are numbers of the calls whose gradients it completes."""
    number = trailing_number(span.name)
    letter = LETTERS.get(fill_key(span), "")
    if calls:
        numbers = calls[0] if len(calls) == 1 else f"{calls[0]}–{calls[-1]}"
        yield f"{span.name} → {numbers}"
        yield f"{letter}{number}→{numbers}"
    yield span.name
    if letter and number:
        yield letter + number
    yield letter or (number if span.kind == "communication" else "")


def trailing_number(name: str) -> str:
    """Return the number at the end of a span's name, "3" for "all-reduce 3", or an empty text."""
    last = name.rpartition(" ")[2]
    return last if last.isdigit() else ""


WIDTH, LEFT, RIGHT = 900, 136, 20
LANE, BAR, LINK, FAN = 26, 22, 10, 24
"""Pixels: from lane to lane, the height of a bar, and the room for lines between two lanes. Launches begin close
together, so their lines need more room."""
MOST_DARK_LINES = 6
"""More lines than this are drawn paler."""
MIN_GAP, MAX_MERGED = 0.75, 4.0
"""Pixels: spans closer together than the first are drawn as one, up to the width of the second."""
LANE_ORDER = ("launch", "computation", "copy", "wait", "communication")
"""Order of lanes: that in which work passes through them."""


TimeScale = Callable[[float], float]
"""Map from seconds to pixels of the card."""
LINK_MEANING = {"computation": "gradient to its call", "launch": "launch to its kernel"}
"""Meaning of a line by the kind of span at whose end it begins."""


class SpanLink(NamedTuple):
    """Span at whose end a gradient is complete, and the call that sends it; or a launch and its kernel."""

    source: Span
    call: Span


def links(timeline: Timeline) -> list[SpanLink]:
    """Return the links of one rank: from the span of a call's last gradient to the call, from a launch to its kernel.

    A call begins where it first waits or transfers. A call or kernel whose source is unknown has no link.
    """
    sources = {span.end: span for span in timeline.spans if span.kind in LINK_MEANING}
    calls = sorted((span for span in timeline.spans if span.ready in sources), key=lambda span: span.start)
    first = {(span.name, span.ready): span for span in reversed(calls)}
    return [SpanLink(sources[span.ready], span) for span in calls if span is first[span.name, span.ready]]  # type: ignore[index]


class Lanes:
    """Lanes of a timeline of one rank, from ``y`` on, as they are at ``now``. Iterating draws them."""

    def __init__(self, timeline: Timeline, y: float, scale: TimeScale, now: float = inf) -> None:
        self.timeline, self.scale, self.now = timeline, scale, now
        self.links = links(timeline)
        targets = {link.call.lane for link in self.links}
        room = FAN if any(link.source.kind == "launch" for link in self.links) else LINK
        self.tops: dict[str, float] = {}
        self.bottom = y
        kinds: dict[str, int] = {}
        for span in timeline.spans:
            kinds[span.lane] = min(kinds.get(span.lane, len(LANE_ORDER)), LANE_ORDER.index(span.kind))
        for lane in sorted(kinds, key=lambda lane: (kinds[lane], lane)):
            if lane in targets and not targets & self.tops.keys():
                self.bottom += room
            self.tops[lane] = self.bottom
            self.bottom += LANE

    def __iter__(self) -> Iterator[str]:
        for lane, top in self.tops.items():
            yield aside(LEFT - 8, top + 15, cut(lane, LEFT - 20, 12), anchor="end")
            yield from self._background(lane, top)
        yield from self._lines()
        for lane, top in self.tops.items():
            spans = [span for span in self.timeline.spans if span.lane == lane]
            merged = sorted(_merged(spans, self.scale), key=lambda span: span.start)
            for span in merged:
                yield from self._bar(span, top)
            yield from self._names(merged, top)

    def _background(self, lane: str, top: float) -> Iterator[str]:
        """Yield the whole step in pale; time that has passed without work is striped and labelled idle."""
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
                yield aside(x + width / 2, top + 15, "idle", anchor="middle", halo=palette.PANEL)

    def _lines(self) -> Iterator[str]:
        """Yield a line from each complete gradient to its call; lines that look the same are drawn once."""
        begun = [link for link in self.links if link.source.end <= self.now]
        ends = ((self.scale(a.end), self.tops[a.lane] + BAR, self.scale(b.start), self.tops[b.lane]) for a, b in begun)
        path = dict.fromkeys(f"M{a:.0f} {b:g}v2L{c:.0f} {d - 2:g}v2" for a, b, c, d in ends)
        if path:
            is_dark = len(self.links) <= MOST_DARK_LINES
            stroke, width = (palette.INK, 1) if is_dark else (palette.tint(palette.INK, 0.5), 0.7)
            yield element("path", d="".join(path), fill="none", stroke=stroke, stroke_width=width)

    def _bar(self, span: Span, top: float) -> Iterator[str]:
        """Yield a bar, solid as far as the span has run; the rest is an outline, striped if the span has begun."""
        x, end = self.scale(span.start), self.scale(span.end)
        width, fill = max(end - x, 0.5), FILLS[fill_key(span)]
        gap, rx = (0.8, 2) if width > 4 else (0.0, None)
        elapsed = min(max(self.scale(self.now) - x, 0.0), width) if self.now < span.end else width
        if elapsed < width:
            edge = palette.tint(fill, 0.6) if width > 4 else None
            pale = palette.tint(fill, 0.12)
            yield rect(x + 0.5, top + 0.5, max(width - gap - 1, 0.5), BAR - 1, rx=rx, fill=pale, stroke=edge)
            if 0 < elapsed < width - 3:
                yield stripes(x + elapsed, top, width - elapsed - gap, palette.tint(fill, 0.6))
        if elapsed:
            yield rect(x, top, max(elapsed - gap, 0.4), BAR, rx=rx, fill=fill)

    def _names(self, spans: list[Span], top: float) -> Iterator[str]:
        """Yield in each span the longest label that fits; if none fits, one for the whole run of its kind."""
        completes: dict[Span, list[str]] = {}
        for link in self.links:
            if link.source.kind == "computation" and (number := trailing_number(link.call.name)):
                completes.setdefault(link.source, []).append(number)
        for name, group in groupby(spans, key=fill_key):
            run = list(group)
            fitting = [self._fitting(span, completes.get(span, ())) for span in run]
            for span, label in zip(run, fitting, strict=True):
                if label:
                    x = (self.scale(span.start) + self.scale(span.end)) / 2
                    ink = palette.text_on(FILLS[name]) if (span.start + span.end) / 2 < self.now else palette.INK
                    yield text(x, top + 15, label, anchor="middle", fill=ink)
            if not any(fitting) and run[0].kind == "computation":
                yield from self._name_of_run(name, run[0].start, run[-1].end, sum(span.duration for span in run), top)

    def _fitting(self, span: Span, calls: Sequence[str]) -> str:
        room = self.scale(span.end) - self.scale(span.start) - 2
        return next((label for label in labels(span, calls) if text_width(label, 12) <= room), "")

    def _name_of_run(self, name: str, start: float, end: float, seconds: float, top: float) -> Iterator[str]:
        left, right = self.scale(start), self.scale(end)
        if seconds > 0.8 * (end - start) and text_width(name, 12) < right - left - 8:
            ended = end <= self.now
            ink = palette.text_on(FILLS[name]) if ended else palette.INK
            halo = FILLS[name] if ended else palette.PAPER
            yield text((left + right) / 2, top + 15, name, anchor="middle", fill=ink, halo=halo)


def stripes(x: float, y: float, width: float, colour: str, height: float = BAR) -> str:
    """Return a bar of upright stripes: one thick dashed line, because a pattern would need an id."""
    return line(x, y + height / 2, x + width, y + height / 2, colour, height, "1.5 4.5")


def _merged(spans: Iterable[Span], scale: TimeScale) -> Iterator[Span]:
    """Yield the spans of a lane; neighbours too narrow to be distinguished are one span without a number."""
    runs: dict[str, list[list[Span]]] = {}
    for span in spans:
        of_kind = runs.setdefault(fill_key(span), [])
        near = of_kind and scale(span.start) - scale(of_kind[-1][-1].end) < MIN_GAP
        if near and scale(span.end) - scale(of_kind[-1][0].start) < MAX_MERGED:
            of_kind[-1].append(span)
        else:
            of_kind.append([span])
    for run in (run for of_kind in runs.values() for run in of_kind):
        name = run[0].name.partition(" ")[0]
        yield run[0] if len(run) == 1 else run[0]._replace(name=name, end=max(span.end for span in run))


def legend_of(timelines: Mapping[str, Timeline]) -> Iterator[Mark]:
    """Yield the legend of the colours and signs that occur."""
    spans = [span for timeline in timelines.values() for span in timeline.spans]
    keys = {fill_key(span) for span in spans}
    for key in (key for key in FILLS if key in keys):
        yield Mark(WORDS.get(key, key), rect(0, 0, 14, 14, rx=3, fill=FILLS[key]))
    yield Mark("idle", rect(0, 0, 14, 14, fill=palette.PANEL) + stripes(0, 0, 14, palette.IDLE, height=14))
    linked = {link.source.kind for timeline in timelines.values() for link in links(timeline)}
    for key in (key for key in LINK_MEANING if key in linked):
        yield Mark(LINK_MEANING[key], element("path", d="M1 1v2L13 11v2", fill="none", stroke=palette.INK))
    if any(span.kind == "communication" for span in spans):
        yield Mark("exposed communication", rect(0, 4, 14, 5, fill=palette.EXPOSED))
