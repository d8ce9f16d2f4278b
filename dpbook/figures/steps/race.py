"""A race of steps: several timelines on one clock, each with meters."""

from collections.abc import Mapping

from dpbook.core import milliseconds
from dpbook.figures.card.picture import Picture
from dpbook.figures.card.viewer import Viewer
from dpbook.figures.steps.timelines import check_timelines, draw_until, from_zero, until
from dpbook.overlap import Timeline

MOMENTS = 24
"""Pictures of the player, at equal intervals of time."""
PACE = 0.25
"""Seconds for each picture."""


def play_race(timelines: Mapping[str, Timeline], *, rank: int = 0) -> Viewer:
    """Play 2 to 8 timelines, by name, on one clock, each with its meters; the last picture names the winner.

    The meters show the elapsed part of the step, the share of that time with computation (utilisation), and the share
    of the communication so far that computation has hidden. Raises `InvalidArgument`.
    """
    check_timelines(timelines, rank)
    runners = {name: from_zero(timeline, rank) for name, timeline in timelines.items()}
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

    return Viewer(draw, MOMENTS, "moment", pace=PACE)


def _standing(runners: Mapping[str, Timeline], now: float) -> str:
    if now == 0:
        return f"{', '.join(runners)}: one step each, on one clock"
    finished = [name for name, timeline in runners.items() if timeline.end <= now]
    return f"After {milliseconds(now)}: {' and '.join(finished) + ' finished' if finished else 'all are running'}"


def _result(runners: Mapping[str, Timeline]) -> str:
    order = sorted(runners, key=lambda name: runners[name].end)
    first, last = runners[order[0]].end, runners[order[-1]].end
    if milliseconds(first) == milliseconds(last):
        return f"All finished after {milliseconds(first)}"
    saved = f"{1 - first / last:.0%} less than {order[-1]}"
    return f"First: {order[0]} with {milliseconds(first)}, {saved} ({milliseconds(last)})"
