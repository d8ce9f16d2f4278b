"""Timelines, one above the other on one axis of time, with the exposed part of communication marked under each."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf

import numpy as np

from dpbook.core import InvalidArgument, check_int, check_type, milliseconds, plural
from dpbook.figures.card.palette import COMMUNICATION, COMPUTATION, EXPOSED, IDLE, INK, MUTED, PANEL, text_on, tint
from dpbook.figures.card.picture import Picture
from dpbook.figures.card.plot import check_named, check_title
from dpbook.figures.card.svg import MARGIN, document, heading, rect, text, text_width
from dpbook.overlap import Span, Timeline
from dpbook.overlap.timeline import difference

WIDTH, LEFT, TOP = 900, 210, 84
LANE, STRIP, GAP, AXIS = 26, 16, 22, 44
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

    end: float

    def __call__(self, seconds: float) -> float:
        return LEFT + min(seconds, self.end) / (self.end or 1.0) * (WIDTH - LEFT - MARGIN)


def draw_timelines(timelines: Mapping[str, Timeline] | Timeline, title: str, *, rank: int = 0) -> Picture:
    """Draw the lanes of ``rank`` in each of up to 8 timelines, by name, all beginning at 0 of one axis.

    ``title`` states the finding. Under each timeline a strip marks exposed communication: it runs, and computation
    does not. Raises `InvalidArgument`.
    """
    named = {"step": timelines} if isinstance(timelines, Timeline) else timelines
    check_timelines(named, title, rank)
    return draw_until({name: from_zero(timeline, rank) for name, timeline in named.items()}, title)


def draw_ranks(timeline: Timeline, title: str) -> Picture:
    """Draw the lanes of every rank of ``timeline``, up to 8, on one axis of time. ``title`` states the finding.

    Raises `InvalidArgument`.
    """
    ranks = timeline.ranks if isinstance(timeline, Timeline) else ()
    if not 1 <= len(ranks) <= MOST_TIMELINES:
        found = plural(len(ranks), "rank") if isinstance(timeline, Timeline) else timeline
        raise InvalidArgument("timeline", found, f"a Timeline of 1 to {MOST_TIMELINES} ranks")
    check_timelines({"step": timeline}, title, ranks[0])
    return draw_until({f"rank {rank}": from_zero(timeline, rank) for rank in ranks}, title)


def check_timelines(named: Mapping[str, Timeline], title: str, rank: int) -> None:
    """Raise `InvalidArgument` unless ``rank`` of 1 to 8 named timelines can be drawn."""
    check_title(title)
    check_int("rank", rank, 0)
    check_named("timelines", named, MOST_TIMELINES, object, f"a Timeline, or 1 to {MOST_TIMELINES} of them by name")
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
    scale = Scale(max(timeline.end for timeline in timelines.values()))
    body = [heading(WIDTH, 32, title), *_legend(timelines)]
    y, told = float(TOP), []
    for name, timeline in timelines.items():
        (rank,) = timeline.ranks
        body += _lanes(timeline, name, rank, y, scale, now)
        y += len(timeline.lanes(rank)) * LANE + STRIP + GAP
        told.append(f"{name}: {milliseconds(timeline.duration)}, exposed {milliseconds(timeline.exposed(rank))}")
    body += _axis(y, scale)
    if now < inf:
        body.append(rect(scale(now) - 1, TOP - 6, 2, y - TOP, fill=INK))
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
        yield rect(LEFT, top, scale(timeline.end) - LEFT, LANE - 4, fill=PANEL)
        for span in _merged([span for span in timeline.spans if span.lane == lane], scale):
            yield from _bar(span, top, scale, now)
    strip = y + len(lanes) * LANE
    bare = difference(timeline.when("communication", rank), timeline.when("computation", rank))
    for start, end in bare.tolist():
        if start < now:
            yield rect(scale(start), strip, max(scale(min(end, now)) - scale(start), 1), 5, fill=EXPOSED)
    exposed = until(timeline, now).exposed(rank) if 0 < now < inf else timeline.exposed(rank) if now else 0.0
    label = f"exposed {milliseconds(exposed)}"
    yield text(LEFT - 8, strip + 9, label, 11, anchor="end", fill=EXPOSED, room=LEFT - MARGIN)


def _in_order(timeline: Timeline, rank: int) -> list[str]:
    """Lanes in the order in which work passes through them: launched, computed, communicated."""
    order = ("launch", "computation", "copy", "wait", "communication")
    kinds = {lane: min(order.index(s.kind) for s in timeline.spans if s.lane == lane) for lane in timeline.lanes(rank)}
    return sorted(kinds, key=lambda lane: (kinds[lane], lane))


def _merged(spans: list[Span], scale: Scale) -> Iterator[Span]:
    """Spans too narrow to tell apart, as one without a name."""
    for kind in dict.fromkeys(span.kind for span in spans):
        runs: list[list[Span]] = []
        for span in (span for span in spans if span.kind == kind):
            near = runs and scale(span.start) - scale(runs[-1][-1].end) < FINEST
            if near and scale(span.end) - scale(runs[-1][0].start) < NARROW:
                runs[-1].append(span)
            else:
                runs.append([span])
        for run in runs:
            yield run[0] if len(run) == 1 else run[0]._replace(name="", end=max(span.end for span in run))


def _bar(span: Span, top: float, scale: Scale, now: float) -> Iterator[str]:
    x, width = scale(span.start), max(scale(span.end) - scale(span.start), 0.5)
    colour = COLOURS[span.kind] if span.start < now else tint(COLOURS[span.kind], 0.25)
    gap, rx = (0.8, 2) if width > 4 else (0.0, None)
    yield rect(x, top, width - gap, LANE - 4, rx=rx, fill=colour)
    if span.name and text_width(span.name, 11) < width - 4:
        yield text(x + width / 2, top + 15, span.name, 11, anchor="middle", fill=text_on(colour))


def _legend(timelines: Mapping[str, Timeline]) -> Iterator[str]:
    kinds = {span.kind for timeline in timelines.values() for span in timeline.spans}
    x = float(MARGIN)
    for label, colour in (*((k, c) for k, c in COLOURS.items() if k in kinds), ("exposed communication", EXPOSED)):
        yield rect(x, 48, 14, 14, rx=3, fill=colour)
        yield text(x + 20, 60, label, 12, fill=MUTED)
        x += 20 + text_width(label, 12) + 22


def _axis(y: float, scale: Scale) -> Iterator[str]:
    """Ticks at round numbers of milliseconds."""
    span = 1e3 * scale.end
    if span <= 0:
        return
    step = 10.0 ** np.floor(np.log10(span / 4))
    step = float(step * next(f for f in (1, 2, 5, 10) if span / (step * f) <= 8))
    yield rect(LEFT, y, WIDTH - LEFT - MARGIN, 1, fill=MUTED)
    for index in range(int(span / step + 1e-9) + 1):
        x = scale(index * step / 1e3)
        yield rect(x, y, 1, 5, fill=MUTED)
        yield text(x, y + 19, f"{index * step:g}", 11, anchor="middle", fill=MUTED)
    yield text(WIDTH - MARGIN, y + 36, "time from the start of the step (ms)", 11, anchor="end", fill=MUTED)
