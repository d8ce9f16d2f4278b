"""Timelines above each other on one axis of time, also as a race, and for sharded steps with their memory below."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf

import numpy as np

from dpbook.core import InvalidArgument, bytes_in_words, milliseconds, palette, plural
from dpbook.figures.card.axes import Scale
from dpbook.figures.card.picture import Card, Mark, Picture, check_named, ticks
from dpbook.figures.card.svg import MARGIN, aside, cut, element, number, rect, text, text_width
from dpbook.figures.card.viewer import Viewer
from dpbook.figures.steps.lanes import LEFT, RIGHT, WIDTH, Lanes, TimeScale, legend_of
from dpbook.overlap import CONTENTS, Content, MemoryCurve, ShardedStep, Timeline
from dpbook.overlap.timeline import difference

NAME, STRIP, GAP, AXIS, GAUGE = 22, 16, 14, 40, 70
"""Pixels: heights of a name, the strip of exposed communication, a gap and the axis; width of a gauge."""
MOST_TIMELINES = 8

Note = Callable[[Timeline], str]
Gauges = Callable[[Timeline], Mapping[str, float]]
Below = Callable[[str, float, TimeScale], tuple[Iterable[str], float]]
"""Drawing below a timeline: maps its name, the ``y`` at which there is room and the axis to parts and their end."""

MEMORY_HEIGHT, MEMORY_TOP, MEMORY_FOOT = 120, 22, 20
"""Pixels: height of the area of memory, and of the room above and below it."""
MOST_STEPS = 4
CONTENT_FILLS: dict[Content, str] = {
    "optimizer": palette.IDLE, "weights": palette.MUTED, "gathered": palette.tint(palette.PARTIAL, 0.7),
    "gradients": palette.GRADIENT, "reduced": palette.COMPLETE, "activations": palette.ACTIVATION,
}  # fmt: skip
"""Greys, yellows, greens and lilac: in the lanes above, blue is computation and orange is communication."""
CONTENT_WORDS: dict[Content, str] = {
    "optimizer": "optimizer state", "weights": "weights", "gathered": "gathered weights",
    "gradients": "whole gradients", "reduced": "own gradients", "activations": "activations",
}  # fmt: skip
"""Words of the legend, in the order in which the contents are stacked."""


def draw_timelines(timelines: Mapping[str, Timeline] | Timeline, title: str, *, rank: int = 0) -> Picture:
    """Draw the lanes of ``rank`` in each of up to 8 timelines, by name, all beginning at 0 of one axis.

    ``title`` states the finding. Below each timeline a strip marks exposed communication, during which nothing
    is computed. Raises `InvalidArgument`.
    """
    named = {"step": timelines} if isinstance(timelines, Timeline) else timelines
    check_timelines(named, rank)
    return draw_until({name: from_zero(timeline, rank) for name, timeline in named.items()}, title)


def draw_ranks(timeline: Timeline, title: str) -> Picture:
    """Draw the lanes of every rank of ``timeline``, up to 8, on one axis of time. ``title`` states the finding.

    Raises `InvalidArgument`.
    """
    ranks = timeline.ranks if isinstance(timeline, Timeline) else ()
    if not 1 <= len(ranks) <= MOST_TIMELINES:
        value = plural(len(ranks), "rank") if isinstance(timeline, Timeline) else timeline
        raise InvalidArgument("timeline", value, f"a Timeline of 1 to {MOST_TIMELINES} ranks")
    return draw_until({f"rank {rank}": from_zero(timeline, rank) for rank in ranks}, title)


def check_timelines(named: Mapping[str, Timeline], rank: int) -> None:
    """Raise `InvalidArgument` unless ``rank`` of 1 to 8 named timelines can be drawn."""
    check_named("timelines", named, MOST_TIMELINES, Timeline, f"a Timeline, or 1 to {MOST_TIMELINES} of them by name")
    for name, timeline in named.items():
        if rank not in timeline.ranks:
            raise InvalidArgument("rank", rank, f"one of the ranks of {name}: {timeline.ranks}")


def from_zero(timeline: Timeline, rank: int) -> Timeline:
    """Return the timeline of one rank, shifted so that its window begins at 0."""
    return timeline.of(rank).shifted(-timeline.start)


def until(timeline: Timeline, now: float) -> Timeline:
    """Return the part of a timeline before ``now``."""
    spans = tuple(s._replace(end=min(s.end, now)) for s in timeline.spans if s.start < now)
    return Timeline(spans, (0.0, now))


def outcome(timeline: Timeline) -> str:
    """Return the duration of a step and its exposed communication in words."""
    if not timeline.busy("communication"):
        return f"{milliseconds(timeline.duration)}, no communication"
    return f"{milliseconds(timeline.duration)}, exposed {milliseconds(timeline.exposed())}"


def draw_until(
    timelines: Mapping[str, Timeline], title: str, now: float = inf, *, note: Note = outcome,
    gauges: Gauges | None = None, end: float | None = None, meters: str = "", below: Below | None = None,
    marks: Sequence[Mark] = (),
) -> Picture:  # fmt: skip
    """Draw timelines of one rank each that begin at 0, as they are at ``now``.

    Beside each name are a ``note`` and ``gauges``, shares from 0 to 1. ``meters`` is a line below the axis, which ends
    at ``end`` seconds (by default with the longest timeline). The drawing ``below`` each timeline may need ``marks`` in
    a legend of its own.
    """
    end = max(timeline.end for timeline in timelines.values()) if end is None else end
    scale = Scale(0, end or 1.0, LEFT, WIDTH - RIGHT).within
    card = Card(WIDTH, title)
    card.legend(legend_of(timelines))
    if marks:
        card.legend(marks)
    for name, timeline in timelines.items():
        shares = gauges(timeline) if gauges else {}
        card.add(*_name_and_note(name, note(timeline), shares, card.y), *_gauges(shares, card.y))
        lanes = Lanes(timeline, card.y + NAME, scale, now)
        card.add(*lanes, *_exposed(timeline, lanes.bottom, scale, now))
        if now < inf:
            card.add(*_clock(timeline.end, now, card.y + NAME, lanes.bottom, scale))
        card.y = lanes.bottom + (STRIP if timeline.busy("communication") else 0) + GAP
        if below:
            parts, card.y = below(name, card.y, scale)
            card.add(*parts)
    card.add(*_axis(card.y, scale, end))
    card.y += AXIS
    for line in _lines(meters):
        card.add(text(MARGIN, card.y + 12, line, 14))
        card.y += 24
    alt = "; ".join(f"{name}: {note(timeline)}" for name, timeline in timelines.items())
    return card.picture(card.y + 6 * bool(meters), f"{alt}." + (f" {meters}." if meters else ""))


def _name_and_note(name: str, note: str, shares: Mapping[str, float], y: float) -> Iterator[str]:
    """Yield the name and the note beside it, in the room that the gauges leave."""
    room = WIDTH - 2 * MARGIN - sum(map(_gauge_width, shares))
    shown = cut(name, room - text_width(note, 13) - 12, 14, bold=True)
    yield text(MARGIN, y + 14, shown, 14, bold=True)
    yield text(MARGIN + text_width(shown, 14, bold=True) + 12, y + 14, note, 13, fill=palette.INK)


def _gauge_width(gauge: str) -> float:
    return 66 + GAUGE + text_width(gauge, 12)


def _clock(end: float, now: float, top: float, bottom: float, scale: TimeScale) -> Iterator[str]:
    """Yield the line of the time ``now``, and a thick mark at the end once that is reached."""
    yield rect(scale(now) - 1, top - 4, 2, bottom - top + STRIP, fill=palette.INK)
    if end <= now:
        yield rect(scale(end) - 2, top - 4, 4, bottom - top + 4, fill=palette.INK)


def _gauges(shares: Mapping[str, float], y: float) -> Iterator[str]:
    """Yield gauges from the right margin on: a name, a bar filled to a share, and the share."""
    x = float(WIDTH - MARGIN)
    for name, share in reversed(list(shares.items())):
        yield text(x, y + 14, f"{share:.0%}", 12, anchor="end")
        yield rect(x - 42 - GAUGE, y + 4, GAUGE, 11, fill=palette.PANEL, stroke=palette.MUTED, stroke_width=0.8)
        yield rect(x - 42 - GAUGE, y + 4, GAUGE * share, 11, fill=palette.MUTED)
        yield aside(x - 50 - GAUGE, y + 14, name, anchor="end")
        x -= _gauge_width(name)


def _exposed(timeline: Timeline, y: float, scale: TimeScale, now: float) -> Iterator[str]:
    """Yield the strip of exposed communication below the lanes, up to ``now``."""
    (rank,) = timeline.ranks
    if not timeline.busy("communication"):
        return
    exposed = difference(timeline.when("communication", rank), timeline.when("computation", rank))
    for start, end in exposed.tolist():
        if start < now:
            yield rect(scale(start), y, max(scale(min(end, now)) - scale(start), 1), 5, fill=palette.EXPOSED)
    yield text(LEFT - 8, y + 9, "exposed", anchor="end", fill=palette.EXPOSED)


def _axis(y: float, scale: TimeScale, end: float) -> Iterator[str]:
    """Yield the axis of time with ticks at round numbers of milliseconds."""
    if end <= 0:
        return
    yield rect(LEFT, y, scale(end) - LEFT, 1, fill=palette.MUTED)
    for ms in ticks(1e3 * end, 8):
        x = scale(ms / 1e3)
        yield rect(x, y, 1, 5, fill=palette.MUTED)
        yield aside(x, y + 19, f"{ms:g}", anchor="middle")
    yield aside(WIDTH - MARGIN, y + 34, "time from the start of the step (ms)", anchor="end")


def _lines(meters: str) -> list[str]:
    """Break the meters into as many lines as they need, at the dots between them."""
    lines: list[str] = []
    for part in meters.split(" · ") if meters else ():
        longer = f"{lines[-1]} · {part}" if lines else part
        if lines and text_width(longer, 14) <= WIDTH - 2 * MARGIN:
            lines[-1] = longer
        else:
            lines.append(part)
    return lines


MOMENTS = 24
"""Pictures of a race, at equal intervals of time."""
MOMENT_SECONDS = 0.25
"""Seconds for each picture."""


def play_race(timelines: Mapping[str, Timeline]) -> Viewer:
    """Play 2 to 8 timelines, by name, on one clock, each with its meters; the last picture names the winner.

    The meters show the elapsed part of the step, the share of that time with computation (utilisation), and the share
    of the communication so far that computation has hidden. Raises `InvalidArgument`.
    """
    check_timelines(timelines, 0)
    runners = {name: from_zero(timeline, 0) for name, timeline in timelines.items()}
    longest = max(timeline.end for timeline in runners.values())

    def draw(after: int) -> Picture:
        now = longest * after / MOMENTS if after < MOMENTS else longest

        def note(timeline: Timeline) -> str:
            whole = milliseconds(timeline.end)
            return f"finished after {whole}" if timeline.end <= now else f"{milliseconds(now)} of {whole}"

        def gauges(timeline: Timeline) -> Mapping[str, float]:
            so_far = until(timeline, min(now, timeline.end))
            utilised = so_far.busy("computation") / so_far.duration if so_far.duration else 0.0
            return {"utilisation": utilised, "hidden": so_far.overlap()}

        title = _result(runners) if after == MOMENTS else _standing(runners, now)
        return draw_until(runners, title, now, note=note, gauges=gauges)

    return Viewer(draw, MOMENTS, "moment", pace=MOMENT_SECONDS)


def _standing(runners: Mapping[str, Timeline], now: float) -> str:
    if now == 0:
        return f"{', '.join(runners)}: all start together"
    finished = [name for name, timeline in runners.items() if timeline.end <= now]
    return f"After {milliseconds(now)}: {' and '.join(finished) + ' finished' if finished else 'all are running'}"


def _result(runners: Mapping[str, Timeline]) -> str:
    order = sorted(runners, key=lambda name: runners[name].end)
    first, last = runners[order[0]].end, runners[order[-1]].end
    if milliseconds(first) == milliseconds(last):
        return f"All finished after {milliseconds(first)}"
    saved = f"{1 - first / last:.0%} less than {order[-1]}"
    return f"First: {order[0]} with {milliseconds(first)}, {saved} ({milliseconds(last)})"


def draw_memory(steps: Mapping[str, ShardedStep] | ShardedStep, title: str) -> Picture:
    """Draw the lanes of up to 4 steps by name, and below each the memory that is alive, all on the same axes.

    ``title`` states the finding. Raises `InvalidArgument`.
    """
    named = {"step": steps} if isinstance(steps, ShardedStep) else steps
    check_named("steps", named, MOST_STEPS, ShardedStep, f"a ShardedStep, or 1 to {MOST_STEPS} of them by name")
    return draw_memory_until(named, title)


def draw_memory_until(named: Mapping[str, ShardedStep], title: str, now: float = inf) -> Picture:
    """Draw steps with their memory as they are at ``now``."""
    curves = {name: step.memory for name, step in named.items()}
    most = max(memory.peak for memory in curves.values())

    def below(name: str, y: float, scale: TimeScale) -> tuple[Iterator[str], float]:
        return _area(curves[name], y + MEMORY_TOP, scale, most, now), y + MEMORY_TOP + MEMORY_HEIGHT + MEMORY_FOOT

    present = [content for content in CONTENTS if any(memory.alive[content].any() for memory in curves.values())]
    marks = [Mark(CONTENT_WORDS[content], rect(0, 0, 14, 14, rx=3, fill=CONTENT_FILLS[content])) for content in present]
    timelines = {name: step.timeline for name, step in named.items()}
    picture = draw_until(timelines, title, now, below=below, marks=marks)
    peaks = []
    for name, memory in curves.items():
        alive = {content: nbytes for content, nbytes in memory.at(memory.peak_time).items() if nbytes}
        parts = ", ".join(f"{CONTENT_WORDS[content]} {bytes_in_words(nbytes)}" for content, nbytes in alive.items())
        peaks.append(f"{name}: {bytes_in_words(memory.peak)} ({parts})")
    alt = f"{picture.alt} Peak of memory: {'; '.join(peaks)}."
    return Picture(picture.width, picture.height, picture.body, alt)


def _area(memory: MemoryCurve, top: float, scale: TimeScale, most: int, now: float) -> Iterator[str]:
    """Yield the contents stacked, their outline, and the peak once it is reached; from ``now`` on they are pale."""
    foot, end = top + MEMORY_HEIGHT, memory.end
    up = MEMORY_HEIGHT / (most or 1)
    yield aside(LEFT - 8, top - 10, "memory", anchor="end")
    for nbytes in ticks(most, 4) if most else ():
        yield rect(LEFT, foot - nbytes * up, scale(end) - LEFT, 1, fill=palette.IDLE)
        yield aside(LEFT - 8, foot - nbytes * up + 4, bytes_in_words(nbytes), anchor="end")
    edges = [scale(t) for t in (*memory.times.tolist(), end)]
    low = np.zeros(len(memory.times))
    for content in CONTENTS:
        high = low + memory.alive[content]
        if (high > low).any():
            upper, lower = (_steps(edges, (foot - nbytes * up).tolist()) for nbytes in (high, low))
            yield element("path", d=f"M{'L'.join(upper + lower[::-1])}Z", fill=CONTENT_FILLS[content])
        low = high
    if now < end:  # a veil over the whole area, which the frames of a film share
        x = scale(now)
        yield rect(x, top, scale(end) - x, MEMORY_HEIGHT, fill=palette.PAPER, fill_opacity=0.85)
    line = _steps(edges, (foot - memory.total * up).tolist())
    stroke = palette.INK if now >= end else palette.MUTED
    yield element("path", d="M" + "L".join(line), fill="none", stroke=stroke, stroke_width=1)
    if now >= memory.peak_time:
        x, y, words = scale(memory.peak_time), foot - memory.peak * up, f"peak {bytes_in_words(memory.peak)}"
        anchor = "end" if x - text_width(words, 12) > LEFT else None
        label = text(x, y - 8, words, 12, anchor=anchor, halo=palette.PAPER)
        yield rect(x - 1, y - 5, 2, 10, fill=palette.INK) + label


def _steps(edges: list[float], heights: list[float]) -> list[str]:
    """Return the corners of a step line: each height from its edge to the next."""
    steps = zip(edges, edges[1:], heights, strict=False)
    return [f"{number(x)} {number(y)}" for left, right, y in steps for x in (left, right)]
