"""Does a run that is ended and goes on from its checkpoint go on as the run that was not ended?

Three runs of the script: one of 2k updates; one that is ended after k, when it has had the time to save; one that goes
on from there. At the first update after the restart everything must be, on every rank and bit for bit, what it was in
the first run at that place. After that the bits are no promise: with three ranks or more torch's DDP adds in another
order after a restart (its buckets follow the order of a process's first update), so the end is judged as a number.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpbook.core import plural
from dpbook.runs.audit.findings import Found, Line, passed, untested, with_causes
from dpbook.runs.audit.journals import Seen, Update, first_difference, odd_one
from dpbook.runs.audit.replay_gradients import load
from dpbook.runs.watching.journal import FINAL_PARAMETERS, Event

BOOK = "chapter 11"
CLOSE = 1e-5
"""Relative: what the order of additions makes of some updates is far below, what a lost state makes far above."""


@dataclass(frozen=True)
class Resumed:
    """``whole``: the run that was not ended; ``after``: its update after which ``resumed`` goes on."""

    whole: Seen
    resumed: Seen
    after: int

    @property
    def first(self) -> Iterator[tuple[Update, Update]]:
        """For each optimizer, the update that should be the same in both: of the whole run, and of the other."""
        for update in self.resumed.updates:
            if update.number == 1:
                yield from (
                    (other, update)
                    for other in self.whole.updates
                    if (other.optimizer, other.number) == (update.optimizer, self.after + 1)
                )


def resume_lines(whole: Seen, resumed: Seen) -> list[Line]:
    """What of the run came back from the checkpoint, and what did not."""
    claim = "a resumed run begins with the parameters that were saved"
    if not resumed.updates or not whole.updates:
        return [Line("resume", claim, untested("one of the runs made no update"), BOOK)]
    after = _place(whole, resumed)
    if after is None:
        told = "before its first update they are those of no update of the run that was not ended"
        found = Found("FAIL", told, place=resumed.updates[0].steps[0]["place"])
        return [Line("resume", claim, found, BOOK)]
    if after == 0:
        found = Found("FAIL", "it begins anew", place=resumed.updates[0].steps[0]["place"])
        return [Line("resume", claim, found, BOOK)]
    both = Resumed(whole, resumed, after)
    lines = [Line("resume", claim, passed(f"those after update {after}, bit for bit"), BOOK)]
    for name, says, judge in _ASPECTS:
        found_here = judge(both)
        if found_here is not None:
            lines.append(Line(f"resume {name}", says, found_here, BOOK))
    names = tuple(line.name for line in lines)
    return with_causes(lines, {"resume end": names[:-1]})


def _place(whole: Seen, resumed: Seen) -> int | None:
    """After which update of the whole run the parameters were those with which the other begins."""
    start = [update for update in resumed.updates if update.number == 1]
    matches: set[int] | None = None
    for update in start:
        before = [step["before"] for step in update.steps]
        same = {
            other.number
            for other in whole.updates
            if other.optimizer == update.optimizer and [each["parameters"] for each in other.stepped] == before
        }
        first = next(
            (other for other in whole.updates if (other.optimizer, other.number) == (update.optimizer, 1)), None
        )
        if first is not None and [step["before"] for step in first.steps] == before:
            same.add(0)
        matches = same if matches is None else matches & same
    return max(matches) if matches else None


def _compared(both: Resumed, take: Callable[[Update, int], Any], lost: str, good: str) -> Found | None:
    """The first rank on which ``take`` gives something else after the restart."""
    compared = 0
    for other, update in both.first:
        for rank in range(both.resumed.world):
            there, here = take(other, rank), take(update, rank)
            if there is None or here is None:
                continue
            compared += 1
            if there != here:
                return Found("FAIL", lost.format(there=there, here=here), rank, None, 1, update.steps[rank]["place"])
    return passed(good) if compared else None


def _optimizer(both: Resumed) -> Found | None:
    for _, update in both.first:
        saved = next(
            each for each in both.whole.updates if (each.optimizer, each.number) == (update.optimizer, both.after)
        )
        for rank in range(both.resumed.world):
            there, here = saved.stepped[rank]["state"], update.steps[rank]["held"]
            if there and not here:
                told = "the optimizer begins without what it had gathered (momentum, moments)"
                return Found("FAIL", told, rank, None, 1, update.steps[rank]["place"])
            differs = first_difference([there, here], list(there))
            if differs:
                told = f"{plural(differs[2], 'tensor')} of the optimizer's {len(there)} are others"
                return Found("FAIL", told, rank, differs[0], 1, update.steps[rank]["place"])
    return passed("bit for bit, on every rank")


def _first(update: Update, rank: int, kind: str) -> Event | None:
    return next((event for event in update.before[rank] if event["kind"] == kind), None)


def _rates(both: Resumed) -> Found | None:
    def take(update: Update, rank: int) -> Any:
        return update.steps[rank]["rates"]

    return _compared(both, take, "the learning rate is {here} where it was {there}", "the same")


def _random(both: Resumed) -> Found | None:
    def take(update: Update, rank: int) -> Any:
        event = _first(update, rank, "forward")
        return event["random"] if event and event["drawn"] else None

    lost = "the random state is another, so dropout drops others: each rank must save its own"
    return _compared(both, take, lost, "the same on every rank")


def _examples(both: Resumed) -> Found | None:
    def take(update: Update, rank: int) -> Any:
        return [event["rows"] for event in update.before[rank] if event["kind"] == "forward"] or None

    return _compared(both, take, "it reads other examples: the place in the epoch is lost, or the order", "the same")


def _buffers(both: Resumed) -> Found | None:
    def take(update: Update, rank: int) -> Any:
        event = _first(update, rank, "forward")
        return (event["buffers"] or None) if event else None

    return _compared(both, take, "buffers such as running statistics are others", "bit for bit, on every rank")


def _scaler(both: Resumed) -> Found | None:
    def take(update: Update, rank: int) -> Any:
        event = _first(update, rank, "scaler")
        return event["scale"] if event else None

    return _compared(both, take, "the scaler's factor is {here:g} where it was {there:g}", "the same")


def _end(both: Resumed) -> Found | None:
    """How far the two are apart after the last update that both have made."""
    whole = {(update.optimizer, update.number): update for update in both.whole.updates if update.stepped}
    compared = 0
    for update in both.resumed.updates:
        other = whole.get((update.optimizer, update.number + both.after))
        if other is None or not update.stepped:
            continue
        compared += 1
        rank = odd_one(
            [
                there["parameters"] == here["parameters"]
                for there, here in zip(other.stepped, update.stepped, strict=True)
            ]
        )
        same = rank is None and other.stepped[0]["parameters"] == update.stepped[0]["parameters"]
        if not same:
            return _apart(both, update)
    return passed(f"{plural(compared, 'update')}, bit for bit") if compared else None


def _apart(both: Resumed, update: Update) -> Found:
    assert both.whole.folder is not None
    assert both.resumed.folder is not None
    here, there = (
        both.resumed.folder / FINAL_PARAMETERS.format(0, update.optimizer),
        both.whole.folder / FINAL_PARAMETERS.format(0, update.optimizer),
    )
    if not here.exists() or not there.exists():
        return untested("the bits differ, and the two runs do not end with the same update")
    ours, theirs = load(here), load(there)
    errors = {name: _relative(ours[name], theirs[name]) for name in ours if name in theirs}
    name = max(errors, key=errors.__getitem__)
    if errors[name] <= CLOSE:
        told = f"relative difference {errors[name]:.1e} ({name}), as another order of additions makes"
        return passed(f"{told}; the bits differ from update {both.after + update.number} on")
    told = f"relative difference {errors[name]:.1e}, beyond what rounding makes"
    return Found("FAIL", told, 0, name, both.after + update.number)


def _relative(one: Any, other: Any) -> float:
    return float(np.linalg.norm(one - other) / (np.linalg.norm(other) or 1.0))


_ASPECTS: tuple[tuple[str, str, Callable[[Resumed], Found | None]], ...] = (
    ("optimizer", "the optimizer's state is restored", _optimizer),
    ("rates", "the learning rate goes on", _rates),
    ("random", "random states are restored", _random),
    ("examples", "the data go on where they were", _examples),
    ("buffers", "buffers are restored", _buffers),
    ("scaler", "the gradient scaler's factor is restored", _scaler),
    ("end", "the resumed run ends as the other does", _end),
)
