"""Is the mean of the ranks' losses the mean over the batch? What each loss was divided by says it."""

from collections.abc import Iterator, Sequence
from typing import Any

from dpbook.runs.audit.checks.definition import check
from dpbook.runs.audit.findings import Found, passed, untested
from dpbook.runs.audit.journals import Seen, Update
from dpbook.runs.watching.journal import Event

SMALL = 1.1
"""A term that weighs up to so much too much is a warning: counts that vary a little, as in masked language models."""
_SAME = 1e-4


@check("mean", "the mean over ranks is the batch's mean", "chapter 03")
def mean(seen: Seen) -> Found | None:
    """In one update every term of a loss must be divided by the same number, on all ranks and in all micro-batches."""
    backwards = [event for events in seen.of("backward") for event in events]
    if not backwards:
        return untested("no backward was seen")
    unread = next((event for event in backwards if event["losses"] is None), None)
    worst: Found | None = None
    for update in seen.updates:
        found = uneven(seen, update)
        if found and found.status == "FAIL":
            return found
        worst = worst or found
    if worst or (worst := _wrong_length(seen)):
        return worst
    if unread:
        return Found(
            "----", "not tested: what the loss is divided by cannot be read from its graph", place=unread["place"]
        )
    return passed(_told(seen.updates[-1])) if seen.updates else untested("no update was seen")


def uneven(seen: Seen, update: Update) -> Found | None:
    """What is said of the means of one update, if they are over different numbers of terms."""
    found = [each for of_line in by_line(update) if (each := _uneven(of_line, update, _short(seen, update)))]
    return next((each for each in found if each.status == "FAIL"), found[0] if found else None)


def by_line(update: Update) -> Iterator[list[tuple[int, Event]]]:
    """The backwards of one update that one line of the script makes, on all ranks, without a scaler's factor.

    Of a line after whose backwards another optimizer steps each time (a critic's) only the last ones are of one update.
    """
    lines: dict[str, list[tuple[int, Event]]] = {}
    for rank, events in enumerate(update.before):
        factor, others = 1.0, 0
        known: dict[str, tuple[int, list[tuple[int, Event]]]] = {}
        for event in events:
            if event["kind"] == "scaled":
                factor = event["factor"]
            elif event["kind"] == "step":
                others += 1
            elif event["kind"] == "backward":
                after, made = known.get(str(event["place"]), (others, []))
                made = made if after == others else []
                known[str(event["place"])] = others, [*made, (rank, _unscaled(event, factor))]
                factor = 1.0
        for line, (_, made) in known.items():
            lines.setdefault(line, []).extend(made)
    yield from lines.values()


def _unscaled(event: Event, factor: float) -> Event:
    losses = event["losses"]
    return event | {"losses": losses and [part | {"divisor": part["divisor"] * factor} for part in losses]}


def reduced(events: Sequence[Event]) -> Iterator[list[dict[str, Any]]]:
    """The first mean or sum of every loss, the second of each, and so on; none where they are built differently."""
    losses = [event["losses"] for event in events]
    if all(losses) and len({len(loss) for loss in losses}) == 1:
        yield from (list(part) for part in zip(*losses, strict=True))


def _uneven(of_line: list[tuple[int, Event]], update: Update, short: bool) -> Found | None:
    events = [event for _, event in of_line]
    for parts in reduced(events):
        divisors = [part["divisor"] for part in parts]
        fair = sum(abs(each) for each in divisors) / len(divisors)
        lowest = min(range(len(parts)), key=lambda place: abs(divisors[place]))
        highest = max(abs(each) for each in divisors)
        if highest <= abs(divisors[lowest]) * (1 + _SAME) or not divisors[lowest]:  # over nothing it is no number
            continue
        most = fair / abs(divisors[lowest])
        counts = " ".join(f"{part['terms']:g}" for part in parts)
        told = (
            f"the means of ranks and micro-batches are over {counts} terms: one weighs up to {most:.2f} times too much"
        )
        small = most < SMALL or short
        told += "" if not small else " (the end of an epoch)" if most >= SMALL else ""
        rank, event = of_line[lowest]
        return Found("WARN" if small else "FAIL", told, rank, None, update.number, event["place"])
    return None


def _short(seen: Seen, update: Update) -> bool:
    """Whether a rank has fewer examples in a forward of this update than as a rule: the end of an epoch. Where most of
    its forwards have fewer than the largest, there is no rule.
    """
    for events, known in zip(update.of("forward"), seen.of("forward"), strict=True):
        lengths = [len(event["rows"]) for event in known]
        most = max(lengths, default=0)
        if 2 * lengths.count(most) >= len(lengths) and any(len(event["rows"]) < most for event in events):
            return True
    return False


def _wrong_length(seen: Seen) -> Found | None:
    """Micro-batches whose means are added where they should be averaged, or more of them than before."""
    usual: dict[str, float] = {}
    for update in seen.updates:
        for of_line in by_line(update):
            events = [event for _, event in of_line]
            for parts in reduced(events):
                micro, length = len(parts) // seen.world, _length(parts, seen.world)
                before = usual.setdefault(str(events[0]["place"]), length)
                told = ""
                if parts[0]["mean"] and micro > 1 and abs(length - micro) < _SAME * micro:
                    told = (
                        f"the means of {micro} micro-batches are added, not averaged: {micro} times the mean's gradient"
                    )
                elif parts[0]["mean"] and abs(before - 1) < _SAME and length > 1 + _SAME:
                    told = f"it has {micro} micro-batches, each divided as if there were {micro / length:g}: "
                    told += f"{length:.4g} times the mean's gradient (what was left over before?)"
                if told:
                    return Found("WARN", told, None, None, update.number, events[0]["place"])
    return None


def _length(parts: Sequence[dict[str, Any]], world: int) -> float:
    """How long the mean over ranks of these losses' gradients is beside that of the mean over all terms."""
    terms, divisor = sum(part["terms"] for part in parts), parts[0]["divisor"]
    return terms / (world * divisor) if divisor else 0.0


def as_written(update: Update, world: int) -> float:
    """By what the losses of an update are longer than a mean over all their terms; 1 where they are no plain mean."""
    lines = [list(reduced([event for _, event in of_line])) for of_line in by_line(update)]
    if len(lines) != 1 or len(lines[0]) != 1 or not lines[0][0][0]["mean"]:
        return 1.0
    return _length(lines[0][0], world)


def _told(update: Update) -> str:
    for of_line in by_line(update):
        for parts in reduced([event for _, event in of_line]):
            terms = sum(part["terms"] for part in parts)
            return f"{terms:g} terms in {len(parts)} losses of an update, each divided by {parts[0]['divisor']:g}"
    return "no loss that can be read"
