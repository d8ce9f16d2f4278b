"""Journals of all ranks, arranged by update."""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpbook.runs.watching.journal import Event, read_journal

REDUCTIONS = (
    "all_reduce", "all_reduce_coalesced", "reduce", "reduce_scatter", "reduce_scatter_tensor", "all_to_all",
    "all_to_all_single",
)  # fmt: skip
"""Collectives by which an optimizer can average gradients inside its step."""


@dataclass(frozen=True)
class Update:
    """One update of one optimizer.

    Attributes:
        optimizer: number of the optimizer.
        number: number of the update, from 1.
        steps: event ``step`` of each rank.
        stepped: event ``stepped`` of each rank; empty if a rank has none.
        before: for each rank, its events since the update before this one.
        inside: for each rank, its events while the optimizer stepped.
    """

    optimizer: int
    number: int
    steps: tuple[Event, ...]
    stepped: tuple[Event, ...]
    before: tuple[tuple[Event, ...], ...]
    inside: tuple[tuple[Event, ...], ...]

    @property
    def unseen(self) -> str:
        """Reason why different gradients of the ranks may be right, because the step may average them, or ""."""
        for event in itertools.chain.from_iterable(self.inside):
            if event["kind"] == "collective" and event["name"] in REDUCTIONS and math.prod(event["shape"] or ()) > 1:
                return f"the optimizer averages inside its step (it calls {event['name']}), and the result is not seen"
        return "" if self.stepped else "the run ended inside the optimizer's step, which may average"

    def of(self, kind: str) -> list[list[Event]]:
        """Return the events of one kind before this update, in order, for each rank."""
        return _of_kind(self.before, kind)

    def in_step(self, kind: str) -> Iterator[tuple[Event, ...]]:
        """Yield the first event of this kind of every rank, then the second of every rank, and so on."""
        yield from zip(*self.of(kind), strict=False)


@dataclass(frozen=True)
class RunJournals:
    """Journals of one run.

    Attributes:
        ranks: events of each rank.
        folder: folder with the journals and arrays of the ranks, or None.
        ended: error that ended the run, or "".
    """

    ranks: tuple[tuple[Event, ...], ...]
    folder: Path | None = None
    ended: str = ""

    @property
    def world(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def of(self, kind: str) -> list[list[Event]]:
        """Return all events of one kind, for each rank."""
        return _of_kind(self.ranks, kind)

    @functools.cached_property
    def optimizers(self) -> dict[int, tuple[Event, ...]]:
        """Events ``optimizer`` of all ranks, by the number of each optimizer with which every rank has stepped."""
        by_number = [{event["optimizer"]: event for event in events} for events in self.of("optimizer")]
        common = set(by_number[0]).intersection(*by_number[1:]) if by_number else set()
        return {number: tuple(of_rank[number] for of_rank in by_number) for number in sorted(common)}

    @functools.cached_property
    def updates(self) -> tuple[Update, ...]:
        """Updates that every rank has begun, sorted by optimizer and then by number.

        Inside torch's `Join` ranks make different numbers of updates: those of each entry are counted anew.
        """
        updates = []
        for optimizer in self.optimizers:
            ranks = [_updates_of_rank(events, optimizer) for events in self.ranks]
            for joined in sorted(set.intersection(*map(set, ranks))):
                for of_ranks in zip(*(each[joined] for each in ranks), strict=False):
                    before, steps, inside, after = zip(*of_ranks, strict=True)
                    if joined or len({step["update"] for step in steps}) == 1:
                        stepped = after if all(after) else ()
                        updates.append(Update(optimizer, steps[0]["update"], steps, stepped, before, inside))
        return tuple(updates)

    def shared(self, optimizer: int) -> list[str]:
        """Return the parameters of which every rank has a replica; sharded parameters are left out."""
        about = self.optimizers[optimizer]
        common = set(about[0]["names"]).intersection(*(each["names"] for each in about[1:]))
        spread = {name for each in about for name in each["sharded"]}
        return [name for name in about[0]["names"] if name in common - spread]

    @functools.cached_property
    def rejoined(self) -> dict[int, list[tuple[Update, Update]]]:
        """Updates of each optimizer whose step left other parameters on each rank, with the next, where they are equal.

        The script has made them equal in between: by their mean, or by a copy of one rank's.
        """
        found: dict[int, list[tuple[Update, Update]]] = {number: [] for number in self.optimizers}
        for update, later in itertools.pairwise(self.updates):
            names, befores = self.shared(update.optimizer), [step["before"] for step in later.steps]
            if later.optimizer != update.optimizer or not update.stepped or not all(befores):
                continue
            differ = first_difference([after["parameters"] for after in update.stepped], names)
            if differ and not first_difference(befores, names):
                found[update.optimizer].append((update, later))
        return found

    @property
    def replicated(self) -> bool:
        """Whether every rank has a whole replica of the model."""
        return all(each["replicas"] == self.world for about in self.optimizers.values() for each in about)

    def frozen(self, update: Update) -> list[dict[str, str]]:
        """Return, for each rank, the hashes of parameters that are not trained, before the first update of replicas."""
        return [(step.get("frozen") if self.replicated else None) or {} for step in update.steps]

    @functools.cached_property
    def used_forwards(self) -> tuple[dict[int, Event], ...]:
        """Forwards of each rank, by number, with a node in the graph of a backward or of `torch.autograd.grad`."""
        of_ranks = []
        for forwards, graphs in zip(self.of("forward"), self.of("used"), strict=True):
            used = {number for event in graphs for number in event["forwards"]}
            of_ranks.append({event["number"]: event for event in forwards if event["number"] in used})
        return tuple(of_ranks)

    def forwards_in_step(self, update: Update) -> Iterator[tuple[Event, ...]]:
        """Yield the first used forward of every rank before this update, then the second of every rank, and so on."""
        pairs = zip(update.of("forward"), self.used_forwards, strict=True)
        of_ranks = ([event for event in events if event["number"] in used] for events, used in pairs)
        yield from zip(*of_ranks, strict=False)


def _of_kind(ranks: Sequence[Sequence[Event]], kind: str) -> list[list[Event]]:
    return [[event for event in events if event["kind"] == kind] for events in ranks]


Events = tuple[Event, ...]


def _updates_of_rank(events: Events, optimizer: int) -> dict[int, list[tuple[Events, Event, Events, Event | None]]]:
    """Return the updates of a rank, by how often it had entered `Join`.

    An update is the events before its step, the step, those inside it, and ``stepped``, if there is one. What happens
    inside a step, as further evaluations of L-BFGS, is not before the next update.
    """
    updates: dict[int, list[tuple[Events, Event, Events, Event | None]]] = {}
    earlier: list[Event] = []
    inside: list[Event] = []
    step: Event | None = None
    joined = 0

    def end_update(step: Event, inside: Sequence[Event], stepped: Event | None) -> None:
        nonlocal joined
        joined += sum(event["kind"] == "join" for event in earlier)
        updates.setdefault(joined, []).append((tuple(earlier), step, tuple(inside), stepped))

    for event in events:
        mine = event.get("optimizer") == optimizer
        if mine and event["kind"] == "step":
            if step is not None:
                end_update(step, (), None)
                earlier = inside
            step, inside = event, []
        elif mine and event["kind"] == "stepped" and step is not None:
            end_update(step, inside, event)
            earlier, step = [], None
        elif step is not None:
            inside.append(event)
        elif event["kind"] == "scaler" and any(each["kind"] == "backward" for each in earlier):
            earlier = [event]  # the gradient scaler found an infinity and skipped the update
        else:
            earlier.append(event)
    if step is not None:
        end_update(step, inside, None)
    return updates


def read_journals(folder: Path, world: int, ended: str = "") -> RunJournals:
    """Read the journals that the ranks of a run wrote in ``folder``; ``ended`` is the error that ended it, or ""."""
    return RunJournals(tuple(tuple(read_journal(folder, rank)) for rank in range(world)), folder, ended)


def first_deviating_rank(values: Sequence[Any]) -> int | None:
    """Return the first rank whose value is not the most frequent one, or None if all values are equal."""
    texts = [repr(value) for value in values]
    most = max(texts, key=texts.count)
    return next((rank for rank, value in enumerate(texts) if value != most), None)


def first_difference(of_ranks: Sequence[dict[str, Any]], names: Sequence[str]) -> tuple[str, int, int] | None:
    """Compare named values over ranks.

    Returns:
        The first of ``names`` whose value differs, the rank that deviates, and the number of names that differ; None if
        all values are the same.
    """
    common = [name for name in names if all(name in values for values in of_ranks)]
    odd = [(name, first_deviating_rank([values[name] for values in of_ranks])) for name in common]
    differing = [(name, rank) for name, rank in odd if rank is not None]
    return (*differing[0], len(differing)) if differing else None
