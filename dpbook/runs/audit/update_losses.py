"""Losses of an update as their graphs show them, and the length of the gradient that they have as they are written."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dpbook.runs.audit.findings import CheckResult
from dpbook.runs.audit.journals import RunJournals, Update
from dpbook.runs.watching.journal import Event

TOLERANCE = 1e-4
"""Relative difference up to which two divisors count as equal."""


@dataclass(frozen=True)
class ScriptLoss:
    """A loss of the script in one update. Of several backwards after one forward each is a loss of its own.

    Attributes:
        line: the line that calls backward.
        backwards: rank and event of each backward; the divisors are without a gradient scaler's factor, and
            ``cleared_before`` is the number of earlier backwards whose gradients were cleared.
    """

    line: str
    backwards: list[tuple[int, Event]]

    @property
    def place(self) -> Any:
        """Line of the script, as `dpbook.runs.watching.journal.place` returns it."""
        return self.backwards[0][1]["place"]

    @property
    def parts(self) -> list[list[dict[str, Any]]]:
        """The first mean or sum of every backward, then the second, and so on; empty if their numbers differ."""
        losses = [event["losses"] for _, event in self.backwards]
        if not all(losses) or len({len(loss) for loss in losses}) > 1:
            return []
        return [list(part) for part in zip(*losses, strict=True)]


def losses_of(update: Update) -> list[ScriptLoss]:
    """Return the losses of an update.

    Backwards before gradients were cleared do not belong to it. If another optimizer (a critic's) steps between the
    backwards of a line, only those after its last step do.
    """
    lines: dict[str, list[tuple[int, Event]]] = {}
    for rank, events in enumerate(update.before):
        factor = 1.0
        known: dict[str, list[tuple[int, Event]]] = {}
        earlier: set[str] = set()  # lines with backwards before another optimizer's step
        cleared: Counter[str] = Counter()
        for event in events:
            if event["kind"] == "scaled":
                factor = event["factor"]
            elif event["kind"] == "step":
                earlier = set(known)
            elif event["kind"] == "backward":
                line = event["line"]
                if event.get("cleared"):
                    cleared.update({each: len(found) for each, found in known.items() if each not in earlier})
                    known.clear()
                if line in earlier:
                    earlier.remove(line)
                    known[line] = []
                unscaled = [part | {"divisor": part["divisor"] * factor} for part in event["losses"] or ()]
                changes = {"losses": unscaled or event["losses"], "cleared_before": cleared[line]}
                known.setdefault(line, []).append((rank, event | changes))
                factor = 1.0
        for line, backwards in known.items():
            lines.setdefault(line, []).extend(backwards)
    return [ScriptLoss(line, backwards) for line, backwards in lines.items()]


def mean_length(parts: Sequence[dict[str, Any]], world: int) -> float:
    """Return the length of the ranks' mean gradient relative to the gradient of the mean over all terms."""
    terms, divisor = sum(part["terms"] for part in parts), parts[0]["divisor"]
    return terms / (world * divisor) if divisor else 0.0


def _by_part(update: Update) -> dict[str, tuple[ScriptLoss, list[dict[str, Any]]]]:
    """Return the micro-batches of each mean or sum in each loss, by line and number."""
    return {f"{loss.place} {nth}": (loss, parts) for loss in losses_of(update) for nth, parts in enumerate(loss.parts)}


def usual_micro_batches(run: RunJournals) -> dict[str, tuple[int, bool]]:
    """Return the usual number of micro-batches of each mean or sum, and whether its divisor fits that number.

    It is that of the first update where the divisor fits, else of the first update.
    """
    usual: dict[str, tuple[int, bool]] = {}
    for update in run.updates:
        for key, (_, parts) in _by_part(update).items():
            fits = abs(mean_length(parts, run.world) - 1) < TOLERANCE
            if key not in usual or (fits and not usual[key][1]):
                usual[key] = len(parts) // run.world, fits
    return usual


class WrongLength(NamedTuple):
    """A warning, and the ``length`` of the mean gradient as the losses are written, relative to the mean's."""

    length: float
    result: CheckResult


def wrong_length(update: Update, world: int, usual: Mapping[str, tuple[int, bool]]) -> WrongLength | None:
    """Warn of micro-batches whose means are added instead of averaged, or of more or fewer than the divisor assumes.

    ``usual`` is that of `usual_micro_batches`.
    """
    for key, (loss, parts) in _by_part(update).items():
        number, length, message = len(parts) // world, mean_length(parts, world), ""
        usual_number, fits = usual[key]
        cleared = loss.backwards[0][1]["cleared_before"]
        if not parts[0]["mean"]:
            continue
        if number > 1 and abs(length - number) < TOLERANCE * number:
            message = f"the means of {number} micro-batches are added, not averaged: {number} times the mean's gradient"
            message += f" (divide each loss by {number})"
        elif cleared and abs(length * (number + cleared) - number) < TOLERANCE * number:
            message = f"the gradients of {cleared} of its {number + cleared} micro-batches are cleared before the step "
            message += "(zero_grad in their loop?)"
        elif fits and number != usual_number and abs(length * usual_number - number) < TOLERANCE * number:
            first = "a step after the first micro-batch, i % N == 0?"
            rest = first if update.number == 1 else "the rest at the end of an epoch?"
            why = "what was left over before?" if length > 1 else rest
            counted = f"{number} micro-batch{'es' if number > 1 else ''}"
            message = f"it has {counted}, each divided as if there were {usual_number}: "
            message += f"{length:.4g} times the mean's gradient ({why})"
        if message:
            return WrongLength(length, CheckResult("WARN", message, None, None, update.number, loss.place))
    return None


@dataclass(frozen=True)
class WrittenLength:
    """Length of the ranks' mean gradient, as one loss is written, relative to that of a mean over the batch.

    Attributes:
        parts: by the terms of each mean or sum in the loss; 1 is a mean over all terms of all ranks and micro-batches.
        by_examples: the same for all parts together, by the examples that the model was given.
        means: whether every part is a mean, whose divisor torch has counted.
        divisors: divisor of each backward.
    """

    parts: tuple[float, ...]
    by_examples: float
    means: bool
    divisors: tuple[float, ...]

    @property
    def total(self) -> float:
        """Sum over the parts, as of two halves of a loss."""
        return sum(self.parts)

    @property
    def even(self) -> bool:
        """Whether all parts weigh the same; others have weights of their own, whose sum says nothing."""
        return max(self.parts) - min(self.parts) < TOLERANCE * max(self.parts)


def written_lengths(update: Update, world: int) -> list[WrittenLength]:
    """Return the length for each loss of the script whose parts can be read."""
    examples = sum(len(event["rows"]) for events in update.of("forward") for event in events)
    lengths = []
    for parts in filter(None, (loss.parts for loss in losses_of(update))):
        length = tuple(mean_length(part, world) for part in parts)
        terms = sum(part["terms"] for part in parts[0])
        means = all(each["mean"] for part in parts for each in part)
        divisors = tuple(each["divisor"] for each in parts[0])
        lengths.append(WrittenLength(length, sum(length) * examples / (terms or 1), means, divisors))
    return lengths
