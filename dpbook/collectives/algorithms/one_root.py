"""The parameter server: one rank that all others talk to."""

from dpbook.collectives.schedule.rounds import LazyRounds, Round
from dpbook.collectives.schedule.schedule import Schedule
from dpbook.core import check_int


def parameter_server(world: int) -> Schedule:
    """Every rank sends its whole buffer to rank 0, one after another, and gets the sum back the same way."""
    check_int("world", world, 1)

    def make(s: int) -> Round:
        worker = s % (world - 1) + 1
        return Round.of(worker, 0, 0, True) if s < world - 1 else Round.of(0, worker, 0, False)

    return Schedule(world, 1, LazyRounds(2 * (world - 1), make), name=f"parameter_server(world={world})")
