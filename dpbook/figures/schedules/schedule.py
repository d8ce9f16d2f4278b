"""A schedule after any of its rounds: as a picture, stepped through, or moving by itself."""

from functools import partial
from typing import Any

from dpbook.collectives import Schedule
from dpbook.core import InvalidArgument, check_int
from dpbook.figures.card.film import Film, way_seconds
from dpbook.figures.card.picture import Picture
from dpbook.figures.card.player import PACE, Viewer
from dpbook.figures.schedules import words
from dpbook.figures.schedules.animation import under_way
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
    return _draw(Table(states), states[index])


def play(schedule: Schedule, buffers: Any = None, *, size: int | None = None) -> Viewer:
    """Step through ``schedule``: a slider, buttons, and a player that can be paused.

    ``buffers`` are one 1-D array per rank; by default rank r contributes 10**r to each of ``size`` elements (one per
    chunk). Every control has a name and works from the keyboard: Tab moves between them, the arrow keys, Home and End
    move the slider. Limits and errors are those of `draw_schedule`.
    """
    return _viewer(replay(schedule, buffers, size), PACE)


def animate(schedule: Schedule, buffers: Any = None, *, size: int | None = None, seconds: float = 1.6) -> Film:
    """Draw all rounds of ``schedule`` as one picture that moves and repeats without end, ``seconds`` per round.

    Arguments and errors are those of `draw_schedule`.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0.1 <= seconds <= 60:
        raise InvalidArgument("seconds", seconds, "a number from 0.1 to 60")
    return _viewer(replay(schedule, buffers, size), float(seconds)).film


def _viewer(states: list[State], pace: float) -> Viewer:
    table = Table(states)
    moving = partial(under_way, table, states, seconds=way_seconds(pace))
    return Viewer(lambda after: _draw(table, states[after]), len(states) - 1, "round", under_way=moving, pace=pace)


def _draw(table: Table, state: State) -> Picture:
    """One state of a schedule that is laid out already."""
    body = (
        table.frame, table.heading(state), table.written(state), *table.cells(state), table.arrows(state),
        table.labels(state), table.numbers(state),
    )  # fmt: skip
    return Picture(table.width, table.height, body, words.alternative(state), words.description(state))
