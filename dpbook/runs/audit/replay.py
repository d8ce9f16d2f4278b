"""Is the gradient with which an update steps that of the big batch, but for rounding?

The ranks have kept their own gradients of one update, before any averaging, times what their losses were divided by:
the gradients of plain sums over terms. Added up slice by slice, over micro-batches and ranks, and divided by one number
for all, they are the gradient of the big batch. What the update stepped with is compared with it, parameter by
parameter, against the bound of rounding (`dpbook.replicas.gamma`). Where it differs,
`dpbook.runs.audit.replay_gradients` says why.
"""

from collections.abc import Mapping

import numpy as np

from dpbook.replicas import Array, compare, gamma, unit_roundoff
from dpbook.runs.audit.checks.counts import as_written, by_line, reduced, uneven
from dpbook.runs.audit.findings import Found, Line, passed, untested
from dpbook.runs.audit.journals import Seen, Update
from dpbook.runs.audit.replay_gradients import Kept, furthest, load, put_together, scale, what_else
from dpbook.runs.watching.journal import REPLAY_ARRAYS, array_key

NAME, CLAIM, BOOK = "replay", "the gradient is the big batch's", "chapter 02"
AFTER = ("group", "start", "sync", "unused", "scaled", "clip", "mean", "gradients", "finite")
EXTRA = 16
"""Roundings besides those of the sums: factors, quotients, clipping, the scaler, the conversion to float32."""
SAME_LENGTH = 1e-4
"""Relative; with few bits, so many unit roundoffs instead:"""
UNITS = 8


def replay_lines(seen: Seen, number: int) -> list[Line]:
    """One line for each optimizer, of its update ``number``."""
    updates = [update for update in seen.updates if update.number == number]
    if not updates:
        return [Line(NAME, CLAIM, untested(f"update {number} was not seen"), BOOK)]
    whole = [update for update in updates if not _has_a_part(seen, update)]
    found = [(update, _replay(seen, update)) for update in whole or updates[:1]]
    several = len(found) > 1
    return [Line(NAME, CLAIM + (f" (optimizer {u.optimizer + 1})" if several else ""), f, BOOK) for u, f in found]


def _has_a_part(seen: Seen, update: Update) -> bool:
    """Whether the optimizer has other parameters on each rank: that inside a sharded one."""
    of_ranks = next(each for each in seen.optimizers if each[0]["optimizer"] == update.optimizer)
    return any(each["names"] != of_ranks[0]["names"] for each in of_ranks)


def _replay(seen: Seen, update: Update) -> Found:
    kept = _kept(seen, update)
    if isinstance(kept, str):
        return untested(kept)
    unreadable = _unreadable(update)
    if unreadable:
        return untested(unreadable)
    means = uneven(seen, update)
    return _verdict(update, kept, mild=means is not None and means.status == "WARN")


def _kept(seen: Seen, update: Update) -> Kept | str:
    """What the ranks have kept, or why that is not enough."""
    assert seen.folder is not None
    paths = [seen.folder / REPLAY_ARRAYS.format(rank, update.optimizer) for rank in range(seen.world)]
    if not all(path.exists() for path in paths):
        return "the ranks have not kept their gradients of this update"
    ranks = put_together([load(path) for path in paths])
    known = next(each for each in seen.optimizers if each[0]["optimizer"] == update.optimizer)[0]["names"]
    names = tuple(name for name in known if all(array_key("applied", name) in arrays for arrays in ranks))
    if not names:
        return "no gradient could be seen on all ranks before it was averaged"
    if not all(np.isfinite(arrays[array_key("applied", name)]).all() for arrays in ranks for name in names):
        return "the gradient is not finite"
    lines = tuple(
        dict.fromkeys(each.split("|")[1] for arrays in ranks for each in arrays if each.startswith("divisors"))
    )
    return Kept(ranks, names, lines) if lines else "no backward was seen"


def _unreadable(update: Update) -> str:
    """Why nobody can say what the big batch's loss is, or ""."""
    for of_line in by_line(update):
        parts = list(reduced([event for _, event in of_line]))
        if not parts:
            return "what the loss is divided by cannot be read from its graph"
        first = [part["divisor"] for part in parts[0]]
        if not all(first):
            return "a loss is a mean over no term"
        for other in parts[1:]:
            ratios = [part["divisor"] / divisor for part, divisor in zip(other, first, strict=True)]
            if max(ratios) - min(ratios) > 1e-6 * max(map(abs, ratios)):
                return "the loss has several parts, whose numbers of terms differ from rank to rank each in its own way"
    return ""


def _verdict(update: Update, kept: Kept, *, mild: bool) -> Found:
    big, sizes = kept.big("weighted"), kept.big("sizes")
    backwards = sum(kept.divisor(line)[1] for line in kept.lines)
    units = {name: max(float(arrays[array_key("unit", name)]) for arrays in kept.ranks) for name in kept.names}
    if max(units.values()) * (backwards + EXTRA) >= 1:
        return untested(f"after {backwards} sums in so few bits nothing is certain")
    for rank in range(kept.world):
        applied = kept.of("applied", rank)
        bound = {name: 2 * gamma(backwards + EXTRA, units[name]) * sizes[name] for name in kept.names}
        factor = scale(applied, big)
        worst = furthest(applied, big, bound, factor)
        if worst is not None:
            return what_else(update, kept, rank, worst, mild=mild)
    return _length(update, kept, factor, _agreement(applied, big, bound, factor, units), max(units.values()))


def _agreement(
    applied: Mapping[str, Array],
    big: Mapping[str, Array],
    bound: Mapping[str, Array],
    factor: float,
    units: Mapping[str, float],
) -> str:
    """How near they are: against the bound, and in ulps."""
    results = {
        name: compare(
            values.ravel(), (factor * big[name]).astype(values.dtype).ravel(), abs(factor) * bound[name].ravel()
        )
        for name, values in applied.items()
    }
    size = max(float(np.max(np.abs(values), initial=0)) for values in applied.values()) or 1.0
    error = max(result.max_error for result in results.values()) / size
    limit = abs(factor) * max(float(np.max(each, initial=0)) for each in bound.values()) / size
    single = unit_roundoff(np.float32)  # in which halves are compared
    ulps, where = max((result.ulps / max(1.0, units[name] / single), name) for name, result in results.items())
    return f"relative error {error:.1e}, rounding bound {limit:.1e}; at most {ulps:.0f} ulp, in {where}"


def _length(update: Update, kept: Kept, factor: float, agreement: str, unit: float) -> Found:
    """The direction is the big batch's; is the length?"""
    near = max(SAME_LENGTH, UNITS * unit)
    factor *= _scaled(update)
    written = as_written(update, kept.world)
    by_world = _by_world(update, written, kept.world, near) if abs(factor - 1) < near else ""
    if by_world:
        told = f"the loss is {by_world}, unless that is meant; {agreement}"
        return Found("WARN", told, update=update.number, place=update.of("backward")[0][-1]["place"])
    if abs(factor - 1) < near or abs(factor * written - 1) < near:
        return passed(agreement)
    if any(update.of("clip")) and factor < 1:
        return passed(f"clipped to {factor:.3g} of it; {agreement}")
    world, place = kept.world, update.steps[0]["place"]
    if _means(update, world):
        if abs(factor / world - 1) < near:
            told = f"it is {world} times as long: the ranks' gradients are added, not averaged; {agreement}"
            return Found("FAIL", told, update=update.number, place=place)
        if abs(factor * world - 1) < near:
            told = f"it is {world} times too short: it is divided by the number of ranks twice; {agreement}"
            return Found("FAIL", told, update=update.number, place=place)
        told = f"its direction is the big batch's, its length {factor:.4g} times that; {agreement}"
        return Found("WARN", told, update=update.number, place=place)
    return passed(f"{factor:.4g} times the sum's mean over the ranks; {agreement}")


def _by_world(update: Update, written: float, world: int, near: float) -> str:
    """Whether a loss whose gradients are averaged has the number of ranks as a factor too, in words; or ""."""
    if abs(written * world - 1) < near:
        return (
            f"divided by {world}, the number of ranks, and its gradients are averaged over them too: {world} times "
            "too short"
        )
    added = len(update.of("backward")[0]) == world  # so many micro-batches that are not averaged are told as such
    if world > 1 and not added and abs(written / world - 1) < near:
        return f"multiplied by {world}, the number of ranks, and its gradients are averaged: {world} times too long"
    return ""


def _scaled(update: Update) -> float:
    """By what a gradient scaler has multiplied the loss, and not the gradient with which the optimizer steps."""
    return next((float(event["factor"]) for events in update.of("scaled") for event in events), 1.0)


def _means(update: Update, world: int) -> bool:
    """Whether the losses are means: by the function's name, or since what they are divided by is, put together, the
    number of their terms or of the examples.
    """
    parts = [(part, event) for events in update.of("backward") for event in events for part in event["losses"][:1]]
    if all(part["mean"] for part, _ in parts):
        return True
    divisor = sum(part["divisor"] for part, _ in parts) * world / len(parts) * _scaled(update)
    terms = sum(part["terms"] for part, _ in parts)
    examples = sum(len(event["rows"]) for events in update.of("forward") for event in events)
    return any(abs(number - abs(divisor)) < SAME_LENGTH * number for number in (terms, examples))
