"""A ring with a mistake in it, to be found."""

from dpbook.collectives import Round, Schedule, ring
from dpbook.core import check_int

CASE = 14


def broken_ring(case: int = CASE) -> Schedule:
    """A ring of five ranks in which one message is stored where it should be added: the one of `fault`."""
    number, chunk = fault(case)
    rounds = [list(round_) for round_ in ring(5).rounds]
    rounds[number] = [m._replace(reduce=m.chunk != chunk) for m in rounds[number]]
    return Schedule(5, 5, [Round.from_messages(messages) for messages in rounds], name="a broken ring")


def fault(case: int) -> tuple[int, int]:
    """Round, from 0, and chunk of the message that is stored in this one of 20 cases."""
    return divmod(check_int("case", case, 0, 19), 5)
