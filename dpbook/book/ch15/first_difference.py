"""What a run leaves, moment by moment: which ranks hold the same bits, up to the first place where that is wrong.

A rank's weights must be those of the others, and so must be the gradient with which it steps; its examples must not.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dpbook.core import InvalidArgument, palette
from dpbook.figures import Picture, Viewer
from dpbook.figures.card import MARGIN, Card, Mark, aside, rect, text
from dpbook.runs.audit import RunJournals

LABEL, CELL, TALL = 70, 82, 44
MOST, AFTER = 12, 1
"""Moments that a picture has room for, and those that are shown after the first difference."""
LETTERS = "ABCDEFGH"
FILLS = (palette.COMPUTATION, palette.COMMUNICATION, palette.PARTIAL, palette.COMPLETE)


@dataclass(frozen=True)
class Moment:
    """In ``update`` the ranks hold ``letters``, equal ones for equal bits, of ``what``; ``alike`` if that is right.

    ``tensor`` is the first that differs where all should be equal.
    """

    update: int
    what: str
    letters: tuple[str, ...]
    alike: bool
    tensor: str = ""

    @property
    def wrong(self) -> bool:
        """Whether ranks differ that should not, or agree that should not."""
        kinds = len(set(self.letters))
        return kinds > 1 if self.alike else kinds < len(self.letters)

    @property
    def told(self) -> str:
        """In a few words."""
        if not self.wrong:
            return "the same bits on every rank" if self.alike else "each rank its own"
        if not self.alike:
            return "the first difference that is missing: ranks read the same"
        odd = next(rank for rank, letter in enumerate(self.letters) if letter != self.letters[0])
        return f"the first difference: rank {odd}, {self.tensor}"


def moments(run: RunJournals) -> list[Moment]:
    """Those of the first optimizer's updates, in their order: weights, examples, gradient, weights, examples, …"""
    found = []
    for update in run.updates:
        if update.optimizer:
            continue
        if update.number == 1:
            found.append(_of_tensors(1, "weights", [step["before"] for step in update.steps]))
        rows = [tuple(row for event in events for row in event["rows"]) for events in update.of("forward")]
        if all(rows):
            found.append(Moment(update.number, "examples", _letters(rows), alike=False))
        found.append(_of_tensors(update.number, "gradient", [step["gradients"] for step in update.steps]))
        if update.stepped:
            found.append(_of_tensors(update.number, "weights", [after["parameters"] for after in update.stepped]))
    return found


def _of_tensors(update: int, what: str, hashes: Sequence[dict[str, str]]) -> Moment:
    names = [name for name in hashes[0] if len({repr(each.get(name)) for each in hashes}) > 1]
    return Moment(update, what, _letters(hashes), alike=True, tensor=names[0] if names else "")


def _letters(values: Sequence[Any]) -> tuple[str, ...]:
    known: list[Any] = []
    for value in values:
        if value not in known:
            known.append(value)
    return tuple(LETTERS[known.index(value)] for value in values)


def play_difference(run: RunJournals) -> Viewer:
    """Step through a watched run of 2 to 8 ranks, moment by moment, to its first difference.

    Raises `InvalidArgument`.
    """
    all_of_them = moments(run)
    if not all_of_them or not 2 <= run.world <= len(LETTERS):
        raise InvalidArgument("run", run, f"one of 2 to {len(LETTERS)} ranks, with an update")
    first = next((place for place, moment in enumerate(all_of_them) if moment.wrong), len(all_of_them))
    shown = all_of_them[: min(first + 1 + AFTER, MOST)]
    return Viewer(lambda after: _draw(shown, after, first), len(shown) - 1, "moment")


def _draw(shown: Sequence[Moment], after: int, first: int) -> Picture:
    now = shown[after]
    told = now.told if after <= first else "it follows from the first difference" if now.wrong else now.told
    width = max(620, 2 * MARGIN + LABEL + len(shown) * CELL)
    card = Card(width, f"Update {now.update}, {now.what}: {told}")
    frame = rect(1, 1, 12, 12, fill="none", stroke=palette.FAULT_EDGE, stroke_width=2)
    card.legend(
        [Mark("equal letters: equal bits", text(3, 12, "A", 13, bold=True)), Mark("not as it should be", frame)]
    )
    card.y += 12
    world = len(now.letters)
    for rank in range(world):
        card.add(text(MARGIN, card.y + 48 + rank * TALL, f"rank {rank}", 13))
    for place, moment in enumerate(shown[: after + 1]):
        card.add(*_column(MARGIN + LABEL + place * CELL, card.y, moment))
    listed = "; ".join(f"update {each.update} {each.what} {' '.join(each.letters)}" for each in shown[: after + 1])
    return card.picture(card.y + 24 + world * TALL + MARGIN, listed)


def _column(x: float, y: float, moment: Moment) -> Iterator[str]:
    yield aside(x, y, f"update {moment.update}")
    yield aside(x, y + 15, moment.what)
    for rank, letter in enumerate(moment.letters):
        top = y + 24 + rank * TALL
        fill = palette.tint(FILLS[LETTERS.index(letter) % len(FILLS)], 0.3)
        edge = palette.FAULT_EDGE if moment.wrong else palette.MUTED
        yield rect(x, top, CELL - 12, TALL - 8, fill=fill, stroke=edge, stroke_width=3 if moment.wrong else 1, rx=4)
        yield text(x + (CELL - 12) / 2, top + 24, letter, 15, anchor="middle", bold=True)
