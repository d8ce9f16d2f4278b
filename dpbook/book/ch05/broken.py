"""A ring with a mistake in it, to be found."""

from dpbook.collectives import Round, Schedule, ring

BROKEN_ROUND, BROKEN_CHUNK = 2, 4


def broken_ring() -> Schedule:
    """A ring of five ranks in which one message is stored where it should be added."""
    rounds = [list(round_) for round_ in ring(5).rounds]
    rounds[BROKEN_ROUND] = [m._replace(reduce=m.chunk != BROKEN_CHUNK) for m in rounds[BROKEN_ROUND]]
    return Schedule(5, 5, [Round.from_messages(messages) for messages in rounds], name="a broken ring")
