"""The interpreter: a schedule is folded over cells, one cell per (rank, chunk).

The algebra defines the content of a cell. `simulate` uses numbers and +; `verify` uses sets of contributors and a
union that detects overlap. The order of the messages, and the rule that every message reads the state before its
round, are implemented here and nowhere else.
"""

from collections.abc import Iterator
from typing import Any, Protocol

from dpbook.collectives.schedule.rounds import Round
from dpbook.collectives.schedule.schedule import Schedule, check_schedule


class Cells(Protocol):
    """The state of all ranks, in some algebra. Each method handles all messages of ``part`` at once."""

    def read(self, part: Round, within: Round) -> Any:
        """Return the payloads of the messages of ``part``, which must not change while ``within`` is written."""

    def add(self, part: Round, payload: Any) -> None:
        """Add each payload to the receiver's cell."""

    def put(self, part: Round, payload: Any) -> None:
        """Replace the receiver's cell by each payload."""


def interpret(schedule: Schedule, cells: Cells) -> Iterator[Round]:
    """Run the rounds on ``cells``, and yield each round when it is complete. Raises `ScheduleError`."""
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
