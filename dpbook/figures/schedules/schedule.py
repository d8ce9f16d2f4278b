"""A schedule after any of its rounds, as a picture or stepped through."""

from typing import Any

from dpbook.collectives import Schedule
from dpbook.core import check_int
from dpbook.figures.card.picture import Picture
from dpbook.figures.card.player import Viewer
from dpbook.figures.card.svg import document
from dpbook.figures.schedules import words
from dpbook.figures.schedules.frames import State, replay
from dpbook.figures.schedules.table import Table


def draw_schedule(schedule: Schedule, after: int = 0, *, buffers: Any = None, size: int | None = None) -> Picture:
    """Draw what every rank holds after ``after`` rounds, and the messages of the last of them.

    ``buffers`` are one 1-D array per rank; by default rank r contributes 10**r to each of ``size`` elements (one per
    chunk). Worlds up to 8 with up to 8 chunks are drawn with numbers and arrows, up to 32 ranks and 64 chunks as a
    matrix of how many contributions each cell holds. Raises `InvalidArgument` beyond that, and what `simulate` raises.
    """
    states = replay(schedule, buffers, size)
    index = check_int("after", after, 0, len(states) - 1)
    return draw_state(Table(states), states[index])


def play(schedule: Schedule, buffers: Any = None, *, size: int | None = None) -> Viewer:
    """Step through ``schedule``: a slider, buttons, and a player that can be paused.

    ``buffers`` are one 1-D array per rank; by default rank r contributes 10**r to each of ``size`` elements (one per
    chunk). Every control has a name and works from the keyboard: Tab moves between them, the arrow keys, Home and End
    move the slider. Limits and errors are those of `draw_schedule`.
    """
    states = replay(schedule, buffers, size)
    table = Table(states)
    return Viewer(lambda after: draw_state(table, states[after]), len(states) - 1, "round")


def draw_state(table: Table, state: State) -> Picture:
    """One state of a schedule that is laid out already."""
    cells = [table.cell(state, rank, chunk) for rank in range(table.world) for chunk in range(table.n_chunks)]
    alt = words.alternative(state)
    body = (
        table.frame, table.heading(state), table.written(state), *cells, table.arrows(state),
        table.labels(state), table.numbers(state),
    )  # fmt: skip
    described = words.description(state)
    return Picture(document(table.width, table.height, alt, described, body, data_round=state.index), alt)
