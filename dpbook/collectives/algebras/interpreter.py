"""The interpreter: a schedule is folded over cells, one cell per (rank, chunk).

What a cell holds is up to the algebra. `simulate` uses numbers and +; `verify` uses sets of contributors and a
union that notices overlap. The order of the messages, and that every message reads the state before its
round, is decided here and nowhere else.
"""

from collections.abc import Iterator
from typing import Any, Protocol

from dpbook.collectives.schedule.rounds import Round
from dpbook.collectives.schedule.schedule import Schedule, check_schedule


class Cells(Protocol):
    """The state of all ranks, in some algebra. Each method handles all messages of ``part`` at once."""

    def read(self, part: Round, within: Round) -> Any:
        """What the messages of ``part`` carry. It must not change while ``within`` is written."""

    def add(self, part: Round, payload: Any) -> None:
        """Add each payload to the receiver's cell."""

    def put(self, part: Round, payload: Any) -> None:
        """Replace the receiver's cell by each payload."""


def interpret(schedule: Schedule, cells: Cells) -> Iterator[Round]:
    """Carry out the rounds on ``cells``, yielding each round when it is done. Raises `ScheduleError`."""
    check_schedule(schedule)
    for round_ in schedule.walk():
        parts = round_.parts()
        payloads = [cells.read(part, round_) for part in parts]
        for part, payload in zip(parts, payloads, strict=True):
            if part.reduce:
                cells.add(part, payload)
            else:
                cells.put(part, payload)
        yield round_
