"""Checks of what a loss is divided by: is the mean over ranks the mean of the whole batch?"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dpbook.core import plural, ranks_in_words
from dpbook.runs.audit.findings import CheckResult, Status, check, passed, untested
from dpbook.runs.audit.journals import RunJournals, Update, first_deviating_rank
from dpbook.runs.audit.update_losses import (
    TOLERANCE,
    ScriptLoss,
    losses_of,
    mean_length,
    usual_micro_batches,
    wrong_length,
)
from dpbook.runs.watching.journal import Event

SMALL_EXCESS = 1.1
"""Factor up to which a term may weigh too much for a mere warning: counts vary a little in masked language models."""
DRAWN_WEIGHTS = "the ranks multiply their losses by different factors (mixup? a weight that was drawn?)"


@check("mean", "the mean over ranks is the batch's mean", "chapter 03")
def mean(run: RunJournals) -> CheckResult | None:
    """Check that all ranks and micro-batches of an update divide every term of a loss by the same number."""
    backwards = [event for events in run.of("backward") for event in events]
    if not backwards:
        return untested("no backward was seen")
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
    unread = next((event for event in backwards if event["losses"] is None), None)
    if unread:
        message = "not tested: what the loss is divided by cannot be read from its graph"
        return CheckResult("----", message, place=unread["place"])
    return _summary(run.updates[-1], run.world) if run.updates else untested("no update was seen")


def _summary(update: Update, world: int) -> CheckResult:
    """Return the result for an update all of whose terms have the same weight."""
    losses = [loss for loss in losses_of(update) if loss.parts]
    if not losses:
        return untested("the losses of an update do not have the same means and sums")
    loss = max(losses, key=lambda each: len(each.backwards))
    first, *more = loss.parts
    message = (
        f"{sum(part['terms'] for part in first):g} terms in {plural(len(loss.backwards), 'backward')} of all ranks "
        f"({loss.line}, update {update.number})"
    )
    if more:
        message += f", in {len(loss.parts)} parts with the same divisors on all ranks"
    else:
        divisor, length = first[0]["divisor"], mean_length(first, world)
        message += f", each divided by {divisor:g}"
        if divisor != 1 and abs(length - 1) > TOLERANCE:
            message += f": {length:.4g} times their mean"
    others = len(losses) - 1
    return passed(f"{message}; {others} more such line{'s' if others > 1 else ''}" if others else message)


@check("losses", "all ranks compute the same losses", "chapter 03")
def losses(run: RunJournals) -> CheckResult | None:
    """Compare the backwards of an update over ranks: their lines, their number, and the parts of their losses.

    Numbers may differ if all terms together still have the weights of a mean, or are added and not averaged.
    """
    if not run.replicated or any(
        each["names"] != about[0]["names"] for about in run.optimizers.values() for each in about
    ):
        return None  # ranks that hold different parts of a model have different losses
    if result := _skipped_batch(run):
        return result
    number = 0
    for update in run.updates:
        for loss in losses_of(update):
            if result := _differing_losses(loss, update, run.world):
                return result
            number += sum(rank == 0 for rank, _ in loss.backwards)
    return passed(plural(number, "backward")) if number else None


class LoaderPosition(NamedTuple):
    """Batch of a loop over a loader that a rank has used last, and the number of batches that it had skipped."""

    loop: tuple[str, int]
    batch: int
    skipped: int
    place: list[Any] | None


def _skipped_batch(run: RunJournals) -> CheckResult | None:
    """Return a warning of the first update for which ranks are ahead of others, because they skipped a batch.

    A rank that gives no gradient for a batch, but takes part in the update, is not ahead.
    """
    of_ranks = [_positions(forwards) for forwards in run.used_forwards]
    for update in () if any(run.of("join")) else run.updates:
        reached = zip(update.of("forward"), of_ranks, strict=True)
        used = [[known[event["number"]] for event in events if event["number"] in known] for events, known in reached]
        positions = [each[-1] for each in used if each]
        ahead = [rank for rank, each in enumerate(positions) if each.skipped]
        behind = [each.batch for each in positions if not each.skipped]
        one_loop = len(positions) == run.world and len({each.loop for each in positions}) == 1
        if one_loop and ahead and behind and min(positions[rank].batch for rank in ahead) > max(behind):
            lead = min(positions[rank].batch for rank in ahead) - max(behind)
            batches = "a batch" if lead == 1 else f"{lead} batches"
            message = f"{ranks_in_words(ahead)} skipped {batches} that no backward uses: from this update on the ranks "
            message += "are at different batches of their loaders, and at the end of the epoch some wait for ranks "
            message += "that have no batch left"
            return CheckResult("WARN", message, ahead[0], None, update.number, positions[ahead[0]].place)
    return None


def _positions(forwards: Mapping[int, Event]) -> dict[int, LoaderPosition]:
    """Return the position of a rank at each of its used forwards, by number, if it has a loader that ends."""
    found: dict[int, LoaderPosition] = {}
    skipped, latest = 0, ("", 0, 0)
    for number, event in forwards.items():
        line, loop, batch, length = event["batch"] or ("", 0, 0, None)
        if length is not None:
            skipped += max(0, batch - latest[2] - 1) if (line, loop) == latest[:2] else 0
            found[number] = LoaderPosition((line, loop), batch, skipped, event["place"])
            latest = (line, loop, batch)
    return found


def _differing_losses(loss: ScriptLoss, update: Update, world: int) -> CheckResult | None:
    parts = [[len(event["losses"] or ()) for at, event in loss.backwards if at == rank] for rank in range(world)]
    rank = first_deviating_rank(parts)
    if rank is not None and not (_same_number_is_not_needed(loss, world) and all(parts)):
        place = next((event["place"] for at, event in loss.backwards if at == rank), loss.place)
        return CheckResult("WARN", _unlike(parts), rank, None, update.number, place)
    cleared = {at: event["cleared"] for at, event in reversed(loss.backwards)}  # before each rank's first backward
    uncleared = sorted(at for at in cleared if not cleared[at])
    if 0 < len(uncleared) < world:
        message = f"{ranks_in_words(uncleared)} did not clear gradients before this backward, the others did"
        return CheckResult("WARN", message, uncleared[0], None, update.number, loss.place)
    return None


def _same_number_is_not_needed(loss: ScriptLoss, world: int) -> bool:
    """Whether the backwards of a loss are sums, or have the divisor of all terms together.

    All parts count as one if they are of one kind and divisor: a part for each image, for instance.
    """
    together = [part for _, event in loss.backwards for part in event["losses"] or ()]
    alike = all(
        (part["node"], part["mean"]) == (together[0]["node"], together[0]["mean"])
        and abs(part["divisor"] - together[0]["divisor"]) <= TOLERANCE * abs(part["divisor"])
        for part in together
    )
    parts = loss.parts or ([together] if together and alike else [])
    return bool(parts) and all(not each[0]["mean"] or abs(mean_length(each, world) - 1) < TOLERANCE for each in parts)


def _unlike(parts: Sequence[Sequence[int]]) -> str:
    """Return in words how the backwards of a line differ; ``parts`` has the numbers of means and sums for each rank."""
    numbers = [len(of_rank) for of_rank in parts]
    if len(set(numbers)) > 1:
        fact = f"the ranks call backward {' '.join(map(str, numbers))} times here in an update"
        return f"{fact}: a loss or micro-batch that some leave out, or have on another line?"
    fact = f"the losses of the ranks have {' '.join(str(sum(of_rank)) for of_rank in parts)} means or sums"
    return f"{fact}: a term that only some ranks add, or a loop that is longer on some?"


def drawn_weights(run: RunJournals) -> set[str]:
    """Return the lines of the script whose losses have another weight on each rank, which may be meant so.

    Weights that are the same in every update are a mistake, unless the parts of a loss have them that is a mix: these
    add up to the same on all ranks.
    """
    seen: dict[str, list[tuple[float, ...]]] = {}
    mixed: set[str] = set()
    for update in run.updates:
        for loss in losses_of(update):
            if not any(map(_weighted, loss.parts)):
                continue
            weights = tuple(round(part["divisor"] / each[0]["divisor"], 4) for each in loss.parts for part in each)
            seen.setdefault(loss.line, []).append(weights)
            sums = [sum(1 / part["divisor"] for part in of_backward) for of_backward in zip(*loss.parts, strict=True)]
            if len(loss.parts) > 1 and max(sums) - min(sums) < TOLERANCE * abs(max(sums)):
                mixed.add(loss.line)
    return mixed | {line for line, weights in seen.items() if len(weights) < 2 or len(set(weights)) > 1}


def _weighted(parts: Sequence[dict[str, Any]]) -> bool:
    """Whether torch has counted equally many terms in all of these means, and the script weighs the means apart."""
    divisors = [abs(part["divisor"]) for part in parts]
    alike = all(part["mean"] and part["terms"] == parts[0]["terms"] for part in parts)
    return alike and min(divisors) > 0 and max(divisors) > min(divisors) * (1 + TOLERANCE)


class UnevenMeans(NamedTuple):
    """A failure or warning, and how many times too much a term weighs."""

    excess: float
    result: CheckResult


def uneven(run: RunJournals, update: Update) -> UnevenMeans | None:
    """Return the first failure, else the first warning, if means of one update are over different numbers of terms."""
    drawn = drawn_weights(run)
    judged = [loss for loss in losses_of(update) if loss.line not in drawn]
    results = [each for loss in judged if (each := _uneven(loss, update, _short(run, update)))]
    return next((each for each in results if each.result.status == "FAIL"), results[0] if results else None)


def _uneven(loss: ScriptLoss, update: Update, short: bool) -> UnevenMeans | None:
    for parts in loss.parts:
        terms, divisors = [part["terms"] for part in parts], [part["divisor"] for part in parts]
        lowest = min(range(len(parts)), key=lambda place: abs(divisors[place]))
        smallest = abs(divisors[lowest])
        if not smallest or max(map(abs, divisors)) <= smallest * (1 + TOLERANCE):
            continue  # a mean over no term is NaN, which another check reports
        weights = sum(count / abs(divisor) for count, divisor in zip(terms, divisors, strict=True))
        if not weights:  # no loss has a term
            continue
        most = sum(terms) / weights / smallest  # relative to the mean weight of all terms
        if len(set(terms)) > 1:
            counted = f"are over {' '.join(f'{each:g}' for each in terms)} terms"
        else:
            counted = f"of {terms[0]:g} terms divide by {' '.join(f'{each:g}' for each in divisors)}"
        message = f"the means of ranks and micro-batches {counted}: one weighs up to {most:.2f} times too much"
        alike = _same_on_all_ranks(loss, divisors)
        images = _images_of_several_sizes([part["shape"] for part in parts])
        small = most < SMALL_EXCESS or short or alike or images
        message += " (in the same way on every rank, which is right if these are separate losses)" if alike else ""
        message += " (images of several sizes: each image counts the same, each pixel does not)" if images else ""
        message += " (the end of an epoch)" if short and most >= SMALL_EXCESS and not alike else ""
        rank, event = loss.backwards[lowest]
        status: Status = "WARN" if small else "FAIL"
        return UnevenMeans(most, CheckResult(status, message, rank, None, update.number, event["place"]))
    return None


def _images_of_several_sizes(shapes: Sequence[Sequence[int]]) -> bool:
    """Whether losses are means over equally many images that differ in height and width."""
    sizes = list(zip(*(shape[1:] for shape in shapes), strict=False))
    equally_many = all(shape[:1] == shapes[0][:1] and len(shape) == len(shapes[0]) for shape in shapes)
    return equally_many and sum(len(set(of_dimension)) > 1 for of_dimension in sizes) >= 2


def _same_on_all_ranks(loss: ScriptLoss, divisors: Sequence[float]) -> bool:
    """Whether the micro-batches of every rank have the same divisors, and differ among themselves."""
    by_rank: dict[int, list[float]] = {}
    for (rank, _), divisor in zip(loss.backwards, divisors, strict=True):
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
