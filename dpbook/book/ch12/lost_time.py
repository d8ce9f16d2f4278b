"""Lost time of a step, in which a rank does not compute: it transfers bytes, waits for peers, or is idle.

A player shows a slow step three times: rank 0 alone, all ranks, and with the waiting separated from the transfer.
"""

from typing import NamedTuple

from dpbook.core import InvalidArgument, milliseconds
from dpbook.figures import Picture, Viewer
from dpbook.figures.steps import MOST_TIMELINES, check_timelines, draw_until, from_zero
from dpbook.overlap import Timeline, split_waits
from dpbook.overlap.timeline import difference, length, union


class Loss(NamedTuple):
    """Seconds of one rank's step without computation; with the computation they make up the step.

    Attributes:
        transfer: bytes move.
        waiting: the rank is in a collective that not all ranks have entered, and no other collective moves bytes.
        idle: the rank is in no collective, for example because it waits for its input.
    """

    transfer: float
    waiting: float
    idle: float


def time_lost(timeline: Timeline) -> dict[int, Loss]:
    """Return the loss of every rank. The timeline needs all ranks of the run, on one clock.

    A collective's span may include its waiting, as in a profiler's trace, or the waiting may be a span of its own.
    Raises `InvalidArgument` if the ranks have different numbers of collectives: see `split_waits`.
    """
    split = split_waits(timeline)
    losses = {}
    for rank in split.ranks:
        transfer = split.exposed(rank)
        moving = union([*split.when("computation", rank), *split.when("communication", rank)])
        waiting = length(difference(split.when("wait", rank), moving))
        losses[rank] = Loss(transfer, waiting, split.idle(rank) - transfer - waiting)
    return losses


MIN_WAITING = 0.05
"""Share of the step below which waiting needs no diagnosis."""


def play_diagnosis(timeline: Timeline) -> Viewer:
    """Step through the diagnosis of a step of 2 to 8 ranks, rank 0 among them, whose collectives include their waiting.

    The first picture shows rank 0 as its own profiler does, the second all ranks on one clock, and the third separates
    the waiting for peers from the collectives. The line below each tells each rank's loss, as far as that picture shows
    it. Raises `InvalidArgument` for other timelines.
    """
    ranks = timeline.ranks if isinstance(timeline, Timeline) else ()
    if not 2 <= len(ranks) <= MOST_TIMELINES or ranks[0] != 0:
        raise InvalidArgument("timeline", timeline, f"a Timeline of 2 to {MOST_TIMELINES} ranks, from rank 0 on")
    check_timelines({"step": timeline}, "step", 0)
    if timeline.busy("communication", 0) == 0:
        raise InvalidArgument("timeline", timeline, "one in which rank 0 communicates")
    views = _views(timeline)
    return Viewer(lambda after: views[after], len(views) - 1, "look")


def _views(timeline: Timeline) -> list[Picture]:
    """Draw rank 0 alone, all ranks, and all ranks with the waiting separated."""
    exposed = milliseconds(timeline.exposed(0))
    alone = f"A slow network? Rank 0 alone: {exposed} of {milliseconds(timeline.duration)} are exposed"
    shortest = min(timeline.ranks, key=lambda rank: timeline.busy("communication", rank))
    here, there = (milliseconds(timeline.busy("communication", rank)) for rank in (0, shortest))
    together = f"All ranks: in the same collectives rank 0 spends {here}, rank {shortest} {there}"
    split, lost = split_waits(timeline), time_lost(timeline)
    separated = f"The bytes need {milliseconds(split.busy('communication', 0))}; {_verdict(timeline, lost)}"
    parts = {rank: " + ".join(f"{1e3 * max(s, 0):.3g}" for s in loss) for rank, loss in lost.items()}  # rounding: -0
    losses = " · ".join(f"rank {rank} {loss} ms" for rank, loss in parts.items())
    views = (
        ({"rank 0": from_zero(timeline, 0)}, alone, _unexplained(timeline, (0,))),
        (_ranks(timeline), together, _unexplained(timeline, timeline.ranks)),
        (_ranks(split), separated, f"transfer + waiting + idle: {losses}"),
    )
    return [draw_until(lines, title, meters=m) for lines, title, m in views]


def _verdict(timeline: Timeline, lost: dict[int, Loss]) -> str:
    """Say which rank the others wait for, and what that rank does meanwhile."""
    longest = max(loss.waiting for loss in lost.values())
    if longest < MIN_WAITING * timeline.duration:
        return f"no rank waits for more than {milliseconds(longest)}"
    last = min(lost, key=lambda rank: lost[rank].waiting)
    computes = {rank: timeline.busy("computation", rank) for rank in timeline.ranks}
    if lost[last].idle < computes[last] - min(computes.values()):
        return f"the ranks wait for rank {last}: it computes for {milliseconds(computes[last])}"
    return f"the ranks wait for rank {last}: it is without work for {milliseconds(lost[last].idle)}"


def _ranks(timeline: Timeline) -> dict[str, Timeline]:
    return {f"rank {rank}": from_zero(timeline, rank) for rank in timeline.ranks}


def _unexplained(timeline: Timeline, ranks: tuple[int, ...]) -> str:
    exposed = (f"rank {rank} {milliseconds(timeline.exposed(rank))}" for rank in ranks)
    return f"in collectives and not computing: {' · '.join(exposed)}"
