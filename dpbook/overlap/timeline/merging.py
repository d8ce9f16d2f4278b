"""Timelines of several ranks laid over each other."""

from collections.abc import Iterable
from operator import attrgetter

from dpbook.core import InvalidArgument
from dpbook.overlap.timeline.spans import Timeline


def merge(timelines: Iterable[Timeline]) -> Timeline:
    """Return all spans of several timelines, such as one trace per rank, in a window that holds all of theirs.

    Raises:
        InvalidArgument: there are none, or two of them have the same rank.
    """
    timelines = list(timelines)
    if not timelines:
        raise InvalidArgument("timelines", timelines, "one or more")
    seen: set[int] = set()
    for index, timeline in enumerate(timelines):
        if twice := seen.intersection(timeline.ranks):
            raise InvalidArgument(f"timelines[{index}]", timeline, f"without rank {min(twice)}, which came before")
        seen.update(timeline.ranks)
    window = min(t.start for t in timelines), max(t.end for t in timelines)
    return Timeline(tuple(span for t in timelines for span in t.spans), window)


def split_waits(timeline: Timeline) -> Timeline:
    """Return the timeline with waiting kept apart from transfer, where a collective's span holds both.

    The n-th collective of each rank is taken to be the same one: until the last rank starts it, the others wait.
    The ranks' clocks must agree.

    Raises:
        InvalidArgument: the ranks have different numbers of communication spans.
    """
    calls = {
        r: sorted((s for s in timeline.spans if s.rank == r and s.kind == "communication"), key=attrgetter("start"))
        for r in timeline.ranks
    }
    counts = {rank: len(spans) for rank, spans in calls.items()}
    if len(set(counts.values())) > 1:
        raise InvalidArgument("timeline", counts, "one with as many collectives on every rank")
    spans = [span for span in timeline.spans if span.kind != "communication"]
    for together in zip(*calls.values(), strict=True):
        begun = max(span.start for span in together)
        for span in together:
            moved = min(begun, span.end)
            if moved > span.start:
                spans.append(span._replace(kind="wait", end=moved))
            spans.append(span._replace(start=moved))
    return Timeline(tuple(spans), timeline.window)
