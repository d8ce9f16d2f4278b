"""Checks of what a loss is divided by: is the mean over ranks the mean of the whole batch?"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from dpbook.core import plural, ranks_in_words
from dpbook.runs.audit.findings import CheckResult, Status, check, passed, untested
from dpbook.runs.audit.journals import RunJournals, Update, first_deviating_rank
from dpbook.runs.audit.update_losses import TOLERANCE, by_line, line_of, parts_of_line
from dpbook.runs.audit.written_length import mean_length, usual_micro_batches, wrong_length
from dpbook.runs.watching.journal import Event

SMALL_EXCESS = 1.1
"""Factor up to which a term may weigh too much for a mere warning: counts vary a little in masked language models."""


@check("mean", "the mean over ranks is the batch's mean", "chapter 03")
def mean(run: RunJournals) -> CheckResult | None:
    """Check that all ranks and micro-batches of an update divide every term of a loss by the same number."""
    backwards = [event for events in run.of("backward") for event in events]
    if not backwards:
        return untested("no backward was seen")
    unread = next((event for event in backwards if event["losses"] is None), None)
    found = [each for update in run.updates if (each := uneven(run, update))]
    failed = [each.result for each in found if each.result.status == "FAIL"]
    if found:
        return failed[0] if failed else max(found, key=lambda each: each.excess).result
    usual = usual_micro_batches(run)
    wrong = next(filter(None, (wrong_length(update, run.world, usual) for update in run.updates)), None)
    if wrong:
        return wrong.result
    if drawn_weights(run):
        return untested(DRAWN_WEIGHTS)
    if unread:
        return CheckResult(
            "----", "not tested: what the loss is divided by cannot be read from its graph", place=unread["place"]
        )
    return _summary(run.updates[-1], run.world) if run.updates else untested("no update was seen")


@check("losses", "all ranks compute the same losses", "chapter 03")
def losses(run: RunJournals) -> CheckResult | None:
    """Compare the backwards of an update over ranks: their lines, their number, and the parts of their losses.

    Numbers may differ if all terms together still have the weights of a mean, or are added and not averaged.
    """
    if not run.replicated or any(
        each["names"] != about[0]["names"] for about in run.optimizers.values() for each in about
    ):
        return None  # ranks that hold different parts of a model have different losses
    number = 0
    for update in run.updates:
        for of_line in by_line(update):
            if result := _differing_losses(of_line, update, run.world):
                return result
            number += sum(rank == 0 for rank, _ in of_line)
    return passed(plural(number, "backward")) if number else None


def _differing_losses(of_line: list[tuple[int, Event]], update: Update, world: int) -> CheckResult | None:
    parts = [[len(event["losses"] or ()) for at, event in of_line if at == rank] for rank in range(world)]
    rank = first_deviating_rank(parts)
    if rank is not None and not (_same_number_is_not_needed(of_line, world) and all(parts)):
        place = next((event["place"] for at, event in of_line if at == rank), of_line[0][1]["place"])
        return CheckResult("WARN", _unlike(parts), rank, None, update.number, place)
    cleared = {at: event["cleared"] for at, event in reversed(of_line)}  # before each rank's first backward
    uncleared = sorted(at for at in cleared if not cleared[at])
    if 0 < len(uncleared) < world:
        message = f"{ranks_in_words(uncleared)} did not clear gradients before this backward, the others did"
        return CheckResult("WARN", message, uncleared[0], None, update.number, of_line[0][1]["place"])
    return None


def _same_number_is_not_needed(of_line: list[tuple[int, Event]], world: int) -> bool:
    """Whether the losses of a line are sums, or have the divisor of all terms together."""
    lengths = [
        (part[0]["mean"], mean_length(part, world)) for part in parts_of_line(of_line) or _added_in_a_loop(of_line)
    ]
    return bool(lengths) and all(not mean or abs(length - 1) < TOLERANCE for mean, length in lengths)


def _added_in_a_loop(of_line: list[tuple[int, Event]]) -> list[list[dict[str, Any]]]:
    """Return all parts of the losses as one, if they are of one kind and divisor: a part for each image, for instance.

    Nothing is returned if they are not.
    """
    parts = [part for _, event in of_line for part in event["losses"] or ()]
    alike = all(
        (part["node"], part["mean"]) == (parts[0]["node"], parts[0]["mean"])
        and abs(part["divisor"] - parts[0]["divisor"]) <= TOLERANCE * abs(part["divisor"])
        for part in parts
    )
    return [parts] if parts and alike else []


def _unlike(parts: Sequence[Sequence[int]]) -> str:
    """Return in words how the backwards of a line differ; ``parts`` has the numbers of means and sums for each rank."""
    numbers = [len(of_rank) for of_rank in parts]
    if len(set(numbers)) > 1:
        counts = " ".join(map(str, numbers))
        fact, causes = f"the ranks call backward {counts} times here in an update", "leave out, or have on another line"
        return f"{fact}: a loss or micro-batch that some {causes}?"
    counts = " ".join(str(sum(of_rank)) for of_rank in parts)
    causes = "a term that only some ranks add, or a loop that is longer on some"
    return f"the losses of the ranks have {counts} means or sums: {causes}?"


DRAWN_WEIGHTS = "the ranks multiply their losses by different factors (mixup? a weight that was drawn?)"


def drawn_weights(run: RunJournals) -> set[str]:
    """Return the lines of the script whose losses have another weight on each rank, which may be meant so.

    Weights that are the same in every update are a mistake, unless the parts of a loss have them that is a mix: these
    add up to the same on all ranks.
    """
    seen: dict[str, list[tuple[float, ...]]] = {}
    mixed: set[str] = set()
    for update in run.updates:
        for of_line in by_line(update):
            parts, line = parts_of_line(of_line), line_of(of_line)
            if any(map(_weighted, parts)):
                weights = [
                    round(part["divisor"] / of_ranks[0]["divisor"], 4) for of_ranks in parts for part in of_ranks
                ]
                seen.setdefault(line, []).append(tuple(weights))
                sums = [sum(1 / part["divisor"] for part in of_rank) for of_rank in zip(*parts, strict=True)]
                if len(parts) > 1 and max(sums) - min(sums) < TOLERANCE * abs(max(sums)):
                    mixed.add(line)
    return mixed | {line for line, weights in seen.items() if len(weights) < 2 or len(set(weights)) > 1}


def _weighted(parts: Sequence[dict[str, Any]]) -> bool:
    """Whether torch has counted equally many terms in all of these means, and the script weighs the means apart."""
    divisors = [abs(part["divisor"]) for part in parts]
    alike = all(part["mean"] and part["terms"] == parts[0]["terms"] for part in parts)
    return alike and min(divisors) > 0 and max(divisors) > min(divisors) * (1 + TOLERANCE)


class UnevenMeans(NamedTuple):
    """A failure or warning: the means of one update are over different numbers of terms.

    ``excess`` is how many times too much a term weighs.
    """

    excess: float
    result: CheckResult


def uneven(run: RunJournals, update: Update) -> UnevenMeans | None:
    """Return the first failure, else the first warning, if the means of one update are uneven; else None."""
    drawn = drawn_weights(run)
    judged = [of_line for of_line in by_line(update) if line_of(of_line) not in drawn]
    results = [each for of_line in judged if (each := _uneven(of_line, update, _short(run, update)))]
    return next((each for each in results if each.result.status == "FAIL"), results[0] if results else None)


def _uneven(of_line: list[tuple[int, Event]], update: Update, short: bool) -> UnevenMeans | None:
    for parts in parts_of_line(of_line):
        divisors = [part["divisor"] for part in parts]
        lowest = min(range(len(parts)), key=lambda place: abs(divisors[place]))
        highest = max(abs(each) for each in divisors)
        if (
            highest <= abs(divisors[lowest]) * (1 + TOLERANCE) or not divisors[lowest]
        ):  # a mean over no term is NaN, which another check reports
            continue
        terms = [part["terms"] for part in parts]
        weights = sum(count / abs(divisor) for count, divisor in zip(terms, divisors, strict=True) if divisor)
        if not weights:  # no loss has a term
            continue
        most = sum(terms) / weights / abs(divisors[lowest])  # relative to the mean weight of all terms
        numbers, what = (terms, "are over") if len(set(terms)) > 1 else (divisors, f"of {terms[0]:g} terms divide by")
        counts = " ".join(f"{number:g}" for number in numbers) + ("" if numbers is divisors else " terms")
        message = f"the means of ranks and micro-batches {what} {counts}: one weighs up to {most:.2f} times too much"
        alike = _same_on_all_ranks(of_line, divisors)
        images = _images_of_several_sizes([part["shape"] for part in parts])
        small = most < SMALL_EXCESS or short or alike or images
        message += " (alike on all ranks: unless these are losses of their own)" if alike else ""
        message += " (images of several sizes: each image counts the same, each pixel does not)" if images else ""
        message += " (the end of an epoch)" if short and most >= SMALL_EXCESS and not alike else ""
        rank, event = of_line[lowest]
        status: Status = "WARN" if small else "FAIL"
        return UnevenMeans(most, CheckResult(status, message, rank, None, update.number, event["place"]))
    return None


def _images_of_several_sizes(shapes: Sequence[Sequence[int]]) -> bool:
    """Whether losses are means over equally many images that differ in height and width."""
    sizes = list(zip(*(shape[1:] for shape in shapes), strict=False))
    equally_many = all(shape[:1] == shapes[0][:1] and len(shape) == len(shapes[0]) for shape in shapes)
    return equally_many and sum(len(set(of_dimension)) > 1 for of_dimension in sizes) >= 2


def _same_on_all_ranks(of_line: list[tuple[int, Event]], divisors: Sequence[float]) -> bool:
    """Whether the micro-batches of every rank have the same divisors, and differ among themselves."""
    by_rank: dict[int, list[float]] = {}
    for (rank, _), divisor in zip(of_line, divisors, strict=True):
        by_rank.setdefault(rank, []).append(divisor)
    first, *others = by_rank.values()
    return len(first) > 1 and bool(others) and all(each == first for each in others)


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


def _summary(update: Update, world: int) -> CheckResult:
    """Return the result for an update all of whose terms have the same weight."""
    losses = [(of_line, parts) for of_line in by_line(update) if (parts := parts_of_line(of_line))]
    if not losses:
        return untested("the losses of an update do not have the same means and sums")
    of_line, parts = max(losses, key=lambda each: len(each[0]))
    message = f"{sum(part['terms'] for part in parts[0]):g} terms in {plural(len(of_line), 'backward')} of an update "
    message += f"({line_of(of_line)})"
    if len(parts) > 1:
        message += f", in {len(parts)} parts with the same divisors on all ranks"
    else:
        divisor, length = parts[0][0]["divisor"], mean_length(parts[0], world)
        message += f", each divided by {divisor:g}"
        if divisor != 1 and abs(length - 1) > TOLERANCE:
            message += f": {length:.4g} times their mean"
    others = len(losses) - 1
    return passed(f"{message}; {others} more such line{'s' if others > 1 else ''}" if others else message)
