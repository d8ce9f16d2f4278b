"""Timelines, one above the other on one axis of time, with the exposed part of communication marked under each."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf

from dpbook.core import InvalidArgument, check_int, check_type, milliseconds, palette, plural
from dpbook.figures.card.card import Card, Mark, ticks
from dpbook.figures.card.picture import Picture
from dpbook.figures.card.plot import check_named, check_title
from dpbook.figures.card.svg import MARGIN, aside, element, rect, text, text_width
from dpbook.figures.steps.lanes import HANDED_ON, LEFT, WIDTH, Lanes, Scale, cut, links, stripes
from dpbook.figures.steps.looks import FILLS, WORDS, look
from dpbook.overlap import Timeline
from dpbook.overlap.timeline import difference

NAME, STRIP, GAP, AXIS, GAUGE = 22, 16, 14, 40, 70
MOST_TIMELINES = 8

Note = Callable[[Timeline], str]
Gauges = Callable[[Timeline], Mapping[str, float]]
Below = Callable[[str, float, Scale], tuple[Iterable[str], float]]
"""What stands under a timeline: from its name, where there is room from, and the axis, the parts, and where they end.
"""


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


def outcome(timeline: Timeline) -> str:
    """How long a step takes, and how much communication is exposed in it, if there is any."""
    if not timeline.busy("communication"):
        return f"{milliseconds(timeline.duration)}, no communication"
    return f"{milliseconds(timeline.duration)}, exposed {milliseconds(timeline.exposed())}"


def draw_until(
    timelines: Mapping[str, Timeline], title: str, now: float = inf, *, note: Note = outcome,
    gauges: Gauges | None = None, end: float | None = None, meters: str = "", below: Below | None = None,
    marks: Sequence[Mark] = (),
) -> Picture:  # fmt: skip
    """Draw timelines of one rank each that begin at 0, as they are at ``now``.

    Beside each name stand a ``note`` and ``gauges``, shares from 0 to 1. ``meters`` is a line under the axis, which
    ends at ``end`` seconds (by default with the longest timeline). What stands ``below`` each timeline may need
    ``marks`` in a legend of its own.
    """
    scale = Scale(max(timeline.end for timeline in timelines.values()) if end is None else end)
    card = Card(WIDTH, title)
    card.legend(_marks(timelines))
    if marks:
        card.legend(marks)
    for name, timeline in timelines.items():
        shares = gauges(timeline) if gauges else {}
        card.add(*_named(name, note(timeline), shares, card.y), *_gauges(shares, card.y))
        lanes = Lanes(timeline, card.y + NAME, scale, now)
        card.add(*lanes, *_exposed(timeline, lanes.bottom, scale, now))
        if now < inf:
            card.add(*_clock(timeline.end, now, card.y + NAME, lanes.bottom, scale))
        card.y = lanes.bottom + (STRIP if timeline.busy("communication") else 0) + GAP
        if below:
            parts, card.y = below(name, card.y, scale)
            card.add(*parts)
    card.add(*_axis(card.y, scale))
    card.y += AXIS
    for line in _lines(meters):
        card.add(text(MARGIN, card.y + 12, line, 14))
        card.y += 24
    told = "; ".join(f"{name}: {note(timeline)}" for name, timeline in timelines.items())
    return card.picture(card.y + 6 * bool(meters), f"{told}." + (f" {meters}." if meters else ""))


def _named(name: str, note: str, shares: Mapping[str, float], y: float) -> Iterator[str]:
    """The name and what is noted beside it, in the room that the gauges leave."""
    room = WIDTH - 2 * MARGIN - sum(map(_width, shares))
    shown = cut(name, room - text_width(note, 13) - 12, 14, bold=True)
    yield text(MARGIN, y + 14, shown, 14, bold=True)
    yield text(MARGIN + text_width(shown, 14, bold=True) + 12, y + 14, note, 13, fill=palette.INK)


def _width(gauge: str) -> float:
    return 66 + GAUGE + text_width(gauge, 12)


def _clock(end: float, now: float, top: float, bottom: float, scale: Scale) -> Iterator[str]:
    """What time it is, and a thick mark at the end once that is reached."""
    yield rect(scale(now) - 1, top - 4, 2, bottom - top + STRIP, fill=palette.INK)
    if end <= now:
        yield rect(scale(end) - 2, top - 4, 4, bottom - top + 4, fill=palette.INK)


def _gauges(shares: Mapping[str, float], y: float) -> Iterator[str]:
    """From the right margin on: a name, a bar filled to a share, and the share."""
    x = float(WIDTH - MARGIN)
    for name, share in reversed(list(shares.items())):
        yield text(x, y + 14, f"{share:.0%}", 12, anchor="end")
        yield rect(x - 42 - GAUGE, y + 4, GAUGE, 11, fill=palette.PANEL, stroke=palette.MUTED, stroke_width=0.8)
        yield rect(x - 42 - GAUGE, y + 4, GAUGE * share, 11, fill=palette.MUTED)
        yield aside(x - 50 - GAUGE, y + 14, name, anchor="end")
        x -= _width(name)


def _exposed(timeline: Timeline, y: float, scale: Scale, now: float) -> Iterator[str]:
    """The strip under the lanes: when communication runs and computation does not, as far as it has come."""
    (rank,) = timeline.ranks
    if not timeline.busy("communication"):
        return
    bare = difference(timeline.when("communication", rank), timeline.when("computation", rank))
    for start, end in bare.tolist():
        if start < now:
            yield rect(scale(start), y, max(scale(min(end, now)) - scale(start), 1), 5, fill=palette.EXPOSED)
    yield text(LEFT - 8, y + 9, "exposed", 11, anchor="end", fill=palette.EXPOSED)


def _marks(timelines: Mapping[str, Timeline]) -> Iterator[Mark]:
    """What the colours and signs mean that occur."""
    spans = [span for timeline in timelines.values() for span in timeline.spans]
    looks = {look(span) for span in spans}
    for key in (key for key in FILLS if key in looks):
        yield Mark(WORDS.get(key, key), rect(0, 0, 14, 14, rx=3, fill=FILLS[key]))
    yield Mark("idle", rect(0, 0, 14, 14, fill=palette.PANEL) + stripes(0, 0, 14, palette.IDLE, high=14))
    handed_on = {link.made.kind for timeline in timelines.values() for link in links(timeline)}
    for key in (key for key in HANDED_ON if key in handed_on):
        yield Mark(HANDED_ON[key], element("path", d="M1 1v2L13 11v2", fill="none", stroke=palette.INK))
    if any(span.kind == "communication" for span in spans):
        yield Mark("exposed communication", rect(0, 4, 14, 5, fill=palette.EXPOSED))


def _axis(y: float, scale: Scale) -> Iterator[str]:
    """Ticks at round numbers of milliseconds."""
    if scale.end <= 0:
        return
    yield rect(LEFT, y, scale(scale.end) - LEFT, 1, fill=palette.MUTED)
    for ms in ticks(1e3 * scale.end, 8):
        x = scale(ms / 1e3)
        yield rect(x, y, 1, 5, fill=palette.MUTED)
        yield aside(x, y + 19, f"{ms:g}", 11, anchor="middle")
    yield aside(WIDTH - MARGIN, y + 34, "time from the start of the step (ms)", 11, anchor="end")


def _lines(meters: str) -> list[str]:
    """The meters in as many lines as they need, broken where a dot divides them."""
    lines: list[str] = []
    for part in meters.split(" · ") if meters else ():
        longer = f"{lines[-1]} · {part}" if lines else part
        if lines and text_width(longer, 14) <= WIDTH - 2 * MARGIN:
            lines[-1] = longer
        else:
            lines.append(part)
    return lines
