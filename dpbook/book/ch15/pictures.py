"""Pictures of chapter 15: where a run's ranks first differ, and the table of all exhibits against all checks.

The first difference is found state by state. All ranks must have the same weights, and step with the same gradient;
their examples must differ. The table is recorded, since its runs take minutes;
``python -m tests.benchmarks.record_exhibits`` records it anew.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from dpbook.book.ch15.collection import exhibit
from dpbook.core import DATA, InvalidArgument, palette
from dpbook.figures import Picture, Viewer
from dpbook.figures.card import MARGIN, Card, Mark, aside, rect, text
from dpbook.runs.audit import RunJournals

LABEL_WIDTH, COLUMN_WIDTH, RANK_HEIGHT = 70, 82, 44
MAX_STATES, STATES_AFTER = 12, 1
"""States that a picture has room for, and states that are shown after the first difference."""
LETTERS = "ABCDEFGH"
FILLS = (palette.COMPUTATION, palette.COMMUNICATION, palette.PARTIAL, palette.COMPLETE)


class RankStates(NamedTuple):
    """State of all ranks at one point of an ``update``: its ``content``, and a letter per rank.

    Equal ``letters`` stand for equal bits. ``alike`` is True if all ranks should be equal; ``tensor`` is then the first
    one that differs.
    """

    update: int
    content: str
    letters: tuple[str, ...]
    alike: bool
    tensor: str = ""

    @property
    def wrong(self) -> bool:
        """Whether ranks differ although they should be equal, or agree although they should differ."""
        kinds = len(set(self.letters))
        return kinds > 1 if self.alike else kinds < len(self.letters)

    @property
    def verdict(self) -> str:
        """Verdict in a few words."""
        if not self.wrong:
            return "the same bits on every rank" if self.alike else "each rank its own"
        if not self.alike:
            return "the first difference that is missing: ranks read the same"
        odd = next(rank for rank, letter in enumerate(self.letters) if letter != self.letters[0])
        return f"the first difference: rank {odd}, {self.tensor}"


def rank_states(run: RunJournals) -> list[RankStates]:
    """Return the states of a run's first optimizer in order: weights, examples, gradient, weights, examples, …"""
    states = []
    for update in run.updates:
        if update.optimizer:
            continue
        if update.number == 1:
            states.append(_of_tensors(1, "weights", [step["before"] for step in update.steps]))
        rows = [tuple(row for event in events for row in event["rows"]) for events in update.of("forward")]
        if all(rows):
            states.append(RankStates(update.number, "examples", _letters(rows), alike=False))
        states.append(_of_tensors(update.number, "gradient", [step["gradients"] for step in update.steps]))
        if update.stepped:
            states.append(_of_tensors(update.number, "weights", [after["parameters"] for after in update.stepped]))
    return states


def _of_tensors(update: int, content: str, hashes: Sequence[dict[str, str]]) -> RankStates:
    differing = [name for name in hashes[0] if len({repr(of_rank.get(name)) for of_rank in hashes}) > 1]
    return RankStates(update, content, _letters(hashes), alike=True, tensor=differing[0] if differing else "")


def _letters(values: Sequence[Any]) -> tuple[str, ...]:
    distinct = [value for place, value in enumerate(values) if value not in values[:place]]
    return tuple(LETTERS[distinct.index(value)] for value in values)


def play_difference(run: RunJournals) -> Viewer:
    """Step through a recorded run of 2 to 8 ranks, state by state, to its first difference.

    Raises `InvalidArgument` for other numbers of ranks, and for a run without an update.
    """
    states = rank_states(run)
    if not states or not 2 <= run.world <= len(LETTERS):
        raise InvalidArgument("run", run, f"one of 2 to {len(LETTERS)} ranks, with an update")
    first = next((place for place, state in enumerate(states) if state.wrong), len(states))
    shown = states[: min(first + 1 + STATES_AFTER, MAX_STATES)]
    return Viewer(lambda after: _draw_states(shown, after, first), len(shown) - 1, "moment")


def _draw_states(shown: Sequence[RankStates], after: int, first: int) -> Picture:
    now = shown[after]
    verdict = "it follows from the first difference" if after > first and now.wrong else now.verdict
    width = max(620, 2 * MARGIN + LABEL_WIDTH + len(shown) * COLUMN_WIDTH)
    card = Card(width, f"Update {now.update}, {now.content}: {verdict}")
    frame = rect(1, 1, 12, 12, fill="none", stroke=palette.FAULT_EDGE, stroke_width=2)
    letter = text(3, 12, "A", 13, bold=True)
    card.legend([Mark("equal letters: equal bits", letter), Mark("not as it should be", frame)])
    card.y += 12
    world = len(now.letters)
    for rank in range(world):
        card.add(text(MARGIN, card.y + 48 + rank * RANK_HEIGHT, f"rank {rank}", 13))
    for place, state in enumerate(shown[: after + 1]):
        card.add(*_column(MARGIN + LABEL_WIDTH + place * COLUMN_WIDTH, card.y, state))
    alt = "; ".join(f"update {s.update} {s.content} {' '.join(s.letters)}" for s in shown[: after + 1])
    return card.picture(card.y + 24 + world * RANK_HEIGHT + MARGIN, alt)


def _column(x: float, y: float, state: RankStates) -> Iterator[str]:
    yield aside(x, y, f"update {state.update}")
    yield aside(x, y + 15, state.content)
    width = COLUMN_WIDTH - 12
    for rank, letter in enumerate(state.letters):
        top = y + 24 + rank * RANK_HEIGHT
        fill = palette.tint(FILLS[LETTERS.index(letter) % len(FILLS)], 0.3)
        edge = palette.FAULT_EDGE if state.wrong else palette.MUTED
        yield rect(x, top, width, RANK_HEIGHT - 8, fill=fill, stroke=edge, stroke_width=3 if state.wrong else 1, rx=4)
        yield text(x + width / 2, top + 24, letter, 15, anchor="middle", bold=True)


RECORDED = DATA / "measurements" / "museum.json"
WIDTH, TITLES, LINE, GAP = 720, 146, 20, 6
CAUSE, CONSEQUENCE = "cause", "consequence"
Matrix = Mapping[str, Mapping[str, str]]
"""For each exhibit, by check that fires or by tool that reports: "cause" or "consequence"."""


def recorded() -> Matrix:
    """Return the recorded table."""
    matrix: Matrix = json.loads(RECORDED.read_text(encoding="utf-8"))
    return matrix


def draw_matrix(matrix: Matrix) -> Picture:
    """Draw a line for each exhibit, beside the check that names its cause, with the checks that fire because of it."""
    causes = {name: _cause(fired) for name, fired in matrix.items()}
    ordered = sorted(matrix, key=lambda name: (not causes[name], causes[name]))
    named = len(matrix) - sum(not cause for cause in causes.values())
    title = f"{named} of {len(matrix)} causes are named, each by one check"
    card = Card(WIDTH, title, "left: what names the cause; right: the checks that fire because of it")
    for cause, group in groupby(ordered, key=causes.__getitem__):
        names = list(group)
        card.add(rect(MARGIN - 6, card.y, WIDTH - 2 * MARGIN + 12, len(names) * LINE, fill=palette.PANEL, rx=4))
        card.add(
            text(MARGIN, card.y + 15, cause or "no check", bold=True, fill=palette.FAULT if cause else palette.MUTED)
        )
        for name in names:
            follow = ", ".join(check for check, role in matrix[name].items() if role == CONSEQUENCE)
            card.add(text(TITLES, card.y + 15, exhibit(name).title))
            if follow:
                card.add(aside(WIDTH - MARGIN, card.y + 15, follow, anchor="end"))
            card.y += LINE
        card.y += GAP
    checks = len({*causes.values()} - {""})
    return card.picture(
        card.y + MARGIN, f"{named} are named by one of {checks} checks and tools, {len(matrix) - named} by none"
    )


def _cause(fired: Mapping[str, str]) -> str:
    return next((check for check, role in fired.items() if role == CAUSE), "")
