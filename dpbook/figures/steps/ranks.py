"""The ranks of one timeline, one above the other: who waits for whom."""

from __future__ import annotations

from dpbook.core import InvalidArgument, plural
from dpbook.figures.card.picture import Picture
from dpbook.figures.steps.timelines import MOST_TIMELINES, check_timelines, draw_until, from_zero
from dpbook.overlap import Timeline


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
