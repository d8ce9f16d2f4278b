"""Length of the gradient that losses have as they are written, relative to that of the mean over the whole batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dpbook.runs.audit.findings import CheckResult
from dpbook.runs.audit.journals import RunJournals, Update
from dpbook.runs.audit.update_losses import TOLERANCE, by_line, parts_of_line


class WrongLength(NamedTuple):
    """A warning: the micro-batches of an update are more or fewer than their losses are divided for.

    ``length`` is that of the mean gradient as the losses are written, relative to the mean's.
    """

    length: float
    result: CheckResult


class MicroBatches(NamedTuple):
    """Micro-batches of an update, for one mean or sum in the loss of one line.

    Attributes:
        number: micro-batches of one rank.
        length: length of the ranks' mean gradient as the losses are written, relative to the mean's.
        mean: whether torch has counted the terms.
        cleared: micro-batches before these, whose gradients were cleared before the step.
        place: line of the script.
    """

    number: int
    length: float
    mean: bool
    cleared: int
    place: list[Any] | None

    @property
    def fits(self) -> bool:
        """Whether the divisor is that of a mean over these micro-batches."""
        return abs(self.length - 1) < TOLERANCE


def micro_batches(update: Update, world: int) -> dict[str, MicroBatches]:
    """Return the micro-batches of an update by line and by the number of the mean or sum in its loss."""
    found = {}
    for of_line in by_line(update):
        place = of_line[0][1]["place"]
        for nth, parts in enumerate(parts_of_line(of_line)):
            number = len(parts) // world
            length, cleared = mean_length(parts, world), of_line[0][1]["cleared_before"]
            found[f"{place} {nth}"] = MicroBatches(number, length, parts[0]["mean"], cleared, place)
    return found


def usual_micro_batches(run: RunJournals) -> dict[str, MicroBatches]:
    """Return for each line and part those of the first update whose number the divisor fits, else of the first."""
    usual: dict[str, MicroBatches] = {}
    for update in run.updates:
        for key, each in micro_batches(update, run.world).items():
            if key not in usual or (each.fits and not usual[key].fits):
                usual[key] = each
    return usual


def wrong_length(update: Update, world: int, usual: Mapping[str, MicroBatches]) -> WrongLength | None:
    """Warn of micro-batches whose means are added instead of averaged, or of more or fewer than the divisor assumes.

    ``usual`` is that of `usual_micro_batches`.
    """
    for key, each in micro_batches(update, world).items():
        before, message = usual[key], ""
        same_divisor = abs(each.length * before.number - each.number) < TOLERANCE * each.number
        made = each.number + each.cleared
        if each.mean and each.number > 1 and abs(each.length - each.number) < TOLERANCE * each.number:
            message = f"the means of {each.number} micro-batches are added, not averaged: "
            message += f"{each.number} times the mean's gradient"
        elif each.mean and each.cleared and abs(each.length * made - each.number) < TOLERANCE * each.number:
            message = f"the gradients of {each.cleared} of its {made} micro-batches are cleared before the step "
            message += "(zero_grad in their loop?)"
        elif each.mean and before.fits and each.number != before.number and same_divisor:
            counted = f"{each.number} micro-batch{'es' if each.number > 1 else ''}"
            message = f"it has {counted}, each divided as if there were {before.number}: "
            first = "a step after the first micro-batch, i % N == 0?"
            rest = first if update.number == 1 else "the rest at the end of an epoch?"
            why = "what was left over before?" if each.length > 1 else rest
            message += f"{each.length:.4g} times the mean's gradient ({why})"
        if message:
            return WrongLength(each.length, CheckResult("WARN", message, None, None, update.number, each.place))
    return None


def mean_length(parts: Sequence[dict[str, Any]], world: int) -> float:
    """Return the length of the ranks' mean gradient relative to the gradient of the mean over all terms."""
    terms, divisor = sum(part["terms"] for part in parts), parts[0]["divisor"]
    return terms / (world * divisor) if divisor else 0.0


@dataclass(frozen=True)
class WrittenLength:
    """Length of the ranks' mean gradient, as one line's losses are written, relative to that of a mean over the batch.

    Attributes:
        parts: by the terms of each mean or sum in the loss; 1 is a mean over all terms of all ranks and micro-batches.
        by_examples: the same for all parts together, by the examples that the model was given.
        means: whether every part is a mean, whose divisor torch has counted.
        divisors: divisor of each loss.
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
    """Return the length for each line of the script that calls backward; nothing for a line that cannot be read."""
    examples = sum(len(event["rows"]) for events in update.of("forward") for event in events)
    lengths = []
    for of_line in by_line(update):
        parts = parts_of_line(of_line)
        if parts:
            length = tuple(mean_length(part, world) for part in parts)
            terms = sum(part["terms"] for part in parts[0])
            means = all(each["mean"] for part in parts for each in part)
            divisors = tuple(each["divisor"] for each in parts[0])
            lengths.append(WrittenLength(length, sum(length) * examples / (terms or 1), means, divisors))
    return lengths
