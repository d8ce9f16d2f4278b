"""Timelines, one above the other on one axis of time, with the exposed part of communication marked under each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf

import numpy as np

from dpbook.core import InvalidArgument, check_int, check_type, milliseconds
from dpbook.figures.card.palette import COMMUNICATION, COMPUTATION, EXPOSED, IDLE, INK, MUTED, PANEL, text_on, tint
from dpbook.figures.card.picture import Picture
from dpbook.figures.card.svg import document, element, text, text_width
from dpbook.overlap import Span, Timeline
from dpbook.overlap.timeline import difference

WIDTH, MARGIN, LEFT, TOP = 900, 20, 210, 84
LANE, STRIP, GAP = 26, 16, 22
AXIS = 44
COLOURS = {
    "computation": COMPUTATION,
    "communication": COMMUNICATION,
    "wait": tint(COMMUNICATION, 0.3),
    "launch": MUTED,
    "copy": IDLE,
}
"""What a span is, by colour; its name or its lane says it too."""
MOST_TIMELINES = 8
FINEST, NARROW = 0.75, 4.0
"""Pixels: spans closer together than the first are drawn as one, up to the second."""


@dataclass(frozen=True)
class Scale:
    """Time in seconds to a place on the page."""

    start: float
    end: float

    def __call__(self, seconds: float) -> float:
        share = (min(seconds, self.end) - self.start) / (self.end - self.start or 1.0)
        return LEFT + share * (WIDTH - LEFT - MARGIN)


def draw_timelines(timelines: Mapping[str, Timeline] | Timeline, title: str, *, rank: int = 0) -> Picture:
    """Draw the lanes of ``rank`` in each of up to 8 timelines, by name, all beginning at 0 of one axis.

    ``title`` states the finding. Under each timeline a strip marks exposed communication: it runs, and computation
    does not. Raises `InvalidArgument`.
    """
    named = {"step": timelines} if isinstance(timelines, Timeline) else timelines
    check_timelines(named, title, rank)
    return draw_until({name: from_zero(timeline, rank) for name, timeline in named.items()}, title)


def check_timelines(named: Mapping[str, Timeline], title: str, rank: int) -> None:
    """Raise `InvalidArgument` unless ``rank`` of 1 to 8 named timelines can be drawn."""
    if not isinstance(title, str) or not title.strip():
        raise InvalidArgument("title", title, "a sentence that states the finding")
    check_int("rank", rank, 0)
    if not isinstance(named, Mapping) or not 1 <= len(named) <= MOST_TIMELINES:
        raise InvalidArgument("timelines", named, f"a Timeline, or 1 to {MOST_TIMELINES} of them by name")
    for name, timeline in named.items():
        check_type(f"timelines[{name!r}]", timeline, Timeline, "a Timeline")
        if rank not in timeline.ranks:
            raise InvalidArgument("rank", rank, f"one of the ranks of {name}: {timeline.ranks}")


def from_zero(timeline: Timeline, rank: int) -> Timeline:
    """One rank's spans, the window beginning at 0."""
    return timeline.of(rank).shifted(-timeline.start)


def until(timeline: Timeline, now: float) -> Timeline:
    """What has happened ``now``."""
    spans = tuple(s._replace(end=min(s.end, now)) for s in timeline.spans if s.start < now)
    return Timeline(spans, (0.0, now))


def draw_until(
    timelines: Mapping[str, Timeline], title: str, now: float = inf, *, meters: str = "", **attributes: float
) -> Picture:
    """Draw timelines of one rank each that begin at 0, as they are at ``now``; ``meters`` is a line under the axis."""
    scale = Scale(0.0, max(timeline.end for timeline in timelines.values()))
    body = [text(MARGIN, 32, title, 17, bold=True, room=WIDTH - 2 * MARGIN), *_legend(timelines)]
    y, told = float(TOP), []
    for name, timeline in timelines.items():
        (rank,) = timeline.ranks
        body += _lanes(timeline, name, rank, y, scale, now)
        y += len(timeline.lanes(rank)) * LANE + STRIP + GAP
        told.append(f"{name}: {milliseconds(timeline.duration)}, exposed {milliseconds(timeline.exposed(rank))}")
    body += _axis(y, scale)
    if now < inf:
        body.append(element("rect", x=scale(now) - 1, y=TOP - 6, width=2, height=y - TOP, fill=INK))
    height = y + AXIS
    if meters:
        body.append(text(MARGIN, height + 12, meters, 14, room=WIDTH - 2 * MARGIN))
        height += 30
    alt = f"{title}. {'; '.join(told)}." + (f" {meters}." if meters else "")
    return Picture(document(WIDTH, height, alt, "", body, "", **attributes), alt)


def _lanes(timeline: Timeline, name: str, rank: int, y: float, scale: Scale, now: float) -> Iterator[str]:
    """One timeline: its name and figures at the left, a row per lane, and the strip of what is exposed."""
    lanes = _in_order(timeline, rank)
    yield text(MARGIN, y + 14, name, 14, bold=True, room=LEFT - MARGIN - 96)
    yield text(MARGIN, y + 33, milliseconds(timeline.duration), 14, fill=INK)
    for row, lane in enumerate(lanes):
        top = y + row * LANE
        yield text(LEFT - 8, top + 15, lane, 11, anchor="end", fill=MUTED, room=92)
        yield element("rect", x=LEFT, y=top, width=scale(timeline.end) - LEFT, height=LANE - 4, fill=PANEL)
        spans = [span for span in timeline.spans if span.lane == lane]
        for span in _merged(spans, scale):
            yield from _bar(span, top, scale, now)
    strip = y + len(lanes) * LANE
    bare = difference(timeline.when("communication", rank), timeline.when("computation", rank))
    for start, end in bare.tolist():
        if start < now:
            end = min(end, now)
            yield element(
                "rect", x=scale(start), y=strip, width=max(scale(end) - scale(start), 1), height=5, fill=EXPOSED
            )
    exposed = until(timeline, now).exposed(rank) if now < inf and now > 0 else timeline.exposed(rank) if now else 0.0
    yield text(
        LEFT - 8, strip + 9, f"exposed {milliseconds(exposed)}", 11, anchor="end", fill=EXPOSED, room=LEFT - MARGIN
    )


def _in_order(timeline: Timeline, rank: int) -> list[str]:
    """Lanes in the order in which work passes through them: launched, computed, communicated."""
    order = ("launch", "computation", "copy", "wait", "communication")
    kinds = {lane: min(order.index(s.kind) for s in timeline.spans if s.lane == lane) for lane in timeline.lanes(rank)}
    return sorted(kinds, key=lambda lane: (kinds[lane], lane))


def _merged(spans: list[Span], scale: Scale) -> Iterator[Span]:
    """Spans too narrow to tell apart, as one without a name."""
    for kind in dict.fromkeys(span.kind for span in spans):
        run: list[Span] = []
        for span in (span for span in spans if span.kind == kind):
            if run and not _blurred(run, span, scale):
                yield _one(run)
                run = []
            run.append(span)
        yield _one(run)


def _blurred(run: list[Span], span: Span, scale: Scale) -> bool:
    near = scale(span.start) - scale(run[-1].end) < FINEST
    return near and scale(span.end) - scale(run[0].start) < NARROW


def _one(run: list[Span]) -> Span:
    return run[0] if len(run) == 1 else run[0]._replace(name="", end=max(span.end for span in run))


def _bar(span: Span, top: float, scale: Scale, now: float) -> Iterator[str]:
    x, width = scale(span.start), max(scale(span.end) - scale(span.start), 0.5)
    done = span.start < now
    colour = COLOURS[span.kind] if done else tint(COLOURS[span.kind], 0.25)
    gap = 0.8 if width > 4 else 0.0
    yield element("rect", x=x, y=top, width=width - gap, height=LANE - 4, rx=2 if width > 4 else None, fill=colour)
    if span.name and text_width(span.name, 11) < width - 4:
        yield text(x + width / 2, top + 15, span.name, 11, anchor="middle", fill=text_on(colour))


def _legend(timelines: Mapping[str, Timeline]) -> Iterator[str]:
    kinds = {span.kind for timeline in timelines.values() for span in timeline.spans}
    x = float(MARGIN)
    for label, colour in (*((k, c) for k, c in COLOURS.items() if k in kinds), ("exposed communication", EXPOSED)):
        yield element("rect", x=x, y=48, width=14, height=14, rx=3, fill=colour)
        yield text(x + 20, 60, label, 12, fill=MUTED)
        x += 20 + text_width(label, 12) + 22


def _axis(y: float, scale: Scale) -> Iterator[str]:
    """Ticks at round numbers of milliseconds."""
    span = 1e3 * (scale.end - scale.start)
    if span <= 0:
        return
    step = 10.0 ** np.floor(np.log10(span / 4))
    step = float(step * next(f for f in (1, 2, 5, 10) if span / (step * f) <= 8))
    yield element("rect", x=LEFT, y=y, width=WIDTH - LEFT - MARGIN, height=1, fill=MUTED)
    for index in range(int(span / step + 1e-9) + 1):
        x = scale(scale.start + index * step / 1e3)
        yield element("rect", x=x, y=y, width=1, height=5, fill=MUTED)
        yield text(x, y + 19, f"{index * step:g}", 11, anchor="middle", fill=MUTED)
    yield text(WIDTH - MARGIN, y + 36, "time from the start of the step (ms)", 11, anchor="end", fill=MUTED)
