"""Where the time of a step goes in which a rank does not compute: to bytes, to waiting for peers, or to nothing."""

from typing import NamedTuple

from dpbook.overlap import Timeline, split_waits
from dpbook.overlap.timeline import difference, length, union


class Loss(NamedTuple):
    """Seconds of one rank's step without computation; the three and computation make up the step.

    ``transfer``: bytes move. ``waiting``: the rank is in a collective that not all ranks have entered, and no bytes of
    another one move. ``idle``: it is in no collective either, as where it waits for its input.
    """

    transfer: float
    waiting: float
    idle: float


def time_lost(timeline: Timeline) -> dict[int, Loss]:
    """Return the loss of every rank. The timeline needs all ranks of the run, on one clock.

    A collective's span may hold its waiting, as in a profiler's trace, or have it apart. Raises `InvalidArgument` where
    the ranks have different numbers of collectives: see `split_waits`.
    """
    split = split_waits(timeline)
    found = {}
    for rank in split.ranks:
        transfer = split.exposed(rank)
        moving = union([*split.when("computation", rank), *split.when("communication", rank)])
        waiting = length(difference(split.when("wait", rank), moving))
        found[rank] = Loss(transfer, waiting, split.idle(rank) - transfer - waiting)
    return found
