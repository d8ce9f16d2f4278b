"""Check that the mean of the ranks' losses is the mean over the batch, by the divisor of each loss."""

from collections.abc import Iterator, Sequence
from typing import Any

from dpbook.runs.audit.checks.definition import check
from dpbook.runs.audit.findings import CheckResult, passed, untested
from dpbook.runs.audit.journals import RunJournals, Update
from dpbook.runs.watching.journal import Event

SMALL_EXCESS = 1.1
"""Factor up to which a term may weigh too much for a mere warning: counts vary a little in masked language models."""
_TOLERANCE = 1e-4


@check("mean", "the mean over ranks is the batch's mean", "chapter 03")
def mean(run: RunJournals) -> CheckResult | None:
    """Check that all ranks and micro-batches of an update divide every term of a loss by the same number."""
    backwards = [event for events in run.of("backward") for event in events]
    if not backwards:
        return untested("no backward was seen")
    unread = next((event for event in backwards if event["losses"] is None), None)
    worst: CheckResult | None = None
    for update in run.updates:
        found = uneven(run, update)
        if found and found.status == "FAIL":
            return found
        worst = worst or found
    if worst or (worst := _wrong_length(run)):
        return worst
    if unread:
        return CheckResult(
            "----", "not tested: what the loss is divided by cannot be read from its graph", place=unread["place"]
        )
    return passed(_summary(run.updates[-1])) if run.updates else untested("no update was seen")


def uneven(run: RunJournals, update: Update) -> CheckResult | None:
    """Return a failure or warning if the means of one update are over different numbers of terms, or None."""
    results = [each for of_line in by_line(update) if (each := _uneven(of_line, update, _short(run, update)))]
    return next((each for each in results if each.status == "FAIL"), results[0] if results else None)


def by_line(update: Update) -> Iterator[list[tuple[int, Event]]]:
    """Yield, for each line of the script, the backwards of one update that it calls, as pairs of rank and event.

    The divisors are without a gradient scaler's factor. If another optimizer (a critic's) steps between the backwards
    of a line, only those after its last step belong to the update.
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
                after, backwards = known.get(str(event["place"]), (others, []))
                backwards = backwards if after == others else []
                known[str(event["place"])] = others, [*backwards, (rank, _unscaled(event, factor))]
                factor = 1.0
        for line, (_, backwards) in known.items():
            lines.setdefault(line, []).extend(backwards)
    yield from lines.values()


def _unscaled(event: Event, factor: float) -> Event:
    losses = event["losses"]
    return event | {"losses": losses and [part | {"divisor": part["divisor"] * factor} for part in losses]}


def reduced(events: Sequence[Event]) -> Iterator[list[dict[str, Any]]]:
    """Yield the first mean or sum of every loss, then the second of every loss, and so on.

    Nothing is yielded if the losses do not consist of the same number of parts.
    """
    losses = [event["losses"] for event in events]
    if all(losses) and len({len(loss) for loss in losses}) == 1:
        yield from (list(part) for part in zip(*losses, strict=True))


def _uneven(of_line: list[tuple[int, Event]], update: Update, short: bool) -> CheckResult | None:
    events = [event for _, event in of_line]
    for parts in reduced(events):
        divisors = [part["divisor"] for part in parts]
        fair = sum(abs(each) for each in divisors) / len(divisors)
        lowest = min(range(len(parts)), key=lambda place: abs(divisors[place]))
        highest = max(abs(each) for each in divisors)
        if (
            highest <= abs(divisors[lowest]) * (1 + _TOLERANCE) or not divisors[lowest]
        ):  # a mean over no term is NaN, which another check reports
            continue
        most = fair / abs(divisors[lowest])
        counts = " ".join(f"{part['terms']:g}" for part in parts)
        message = (
            f"the means of ranks and micro-batches are over {counts} terms: one weighs up to {most:.2f} times too much"
        )
        small = most < SMALL_EXCESS or short
        message += "" if not small else " (the end of an epoch)" if most >= SMALL_EXCESS else ""
        rank, event = of_line[lowest]
        return CheckResult("WARN" if small else "FAIL", message, rank, None, update.number, event["place"])
    return None


def _short(run: RunJournals, update: Update) -> bool:
    """Whether a rank has a shorter batch in this update than usual, as at the end of an epoch.

    The usual length is the largest one. If fewer than half of a rank's batches have it, no length is usual.
    """
    for events, known in zip(update.of("forward"), run.of("forward"), strict=True):
        lengths = [len(event["rows"]) for event in known]
        most = max(lengths, default=0)
        if 2 * lengths.count(most) >= len(lengths) and any(len(event["rows"]) < most for event in events):
            return True
    return False


def _wrong_length(run: RunJournals) -> CheckResult | None:
    """Warn of micro-batches whose means are added instead of averaged, or of more of them than the divisor assumes."""
    usual: dict[str, float] = {}
    for update in run.updates:
        for of_line in by_line(update):
            events = [event for _, event in of_line]
            for parts in reduced(events):
                micro, length = len(parts) // run.world, _length(parts, run.world)
                before = usual.setdefault(str(events[0]["place"]), length)
                message = ""
                if parts[0]["mean"] and micro > 1 and abs(length - micro) < _TOLERANCE * micro:
                    message = (
                        f"the means of {micro} micro-batches are added, not averaged: {micro} times the mean's gradient"
                    )
                elif parts[0]["mean"] and abs(before - 1) < _TOLERANCE and length > 1 + _TOLERANCE:
                    message = f"it has {micro} micro-batches, each divided as if there were {micro / length:g}: "
                    message += f"{length:.4g} times the mean's gradient (what was left over before?)"
                if message:
                    return CheckResult("WARN", message, None, None, update.number, events[0]["place"])
    return None


def _length(parts: Sequence[dict[str, Any]], world: int) -> float:
    """Return the length of the ranks' mean gradient relative to the gradient of the mean over all terms."""
    terms, divisor = sum(part["terms"] for part in parts), parts[0]["divisor"]
    return terms / (world * divisor) if divisor else 0.0


def as_written(update: Update, world: int) -> float:
    """Return the factor by which the losses of an update exceed a mean over all terms; 1 if they are no plain mean."""
    lines = [list(reduced([event for _, event in of_line])) for of_line in by_line(update)]
    if len(lines) != 1 or len(lines[0]) != 1 or not lines[0][0][0]["mean"]:
        return 1.0
    return _length(lines[0][0], world)


def _summary(update: Update) -> str:
    for of_line in by_line(update):
        for parts in reduced([event for _, event in of_line]):
            terms = sum(part["terms"] for part in parts)
            return f"{terms:g} terms in {len(parts)} losses of an update, each divided by {parts[0]['divisor']:g}"
    return "no loss that can be read"
