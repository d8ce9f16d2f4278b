"""Replay of one update: is the gradient of its step that of the big batch, up to rounding?

The ranks saved their local gradients of one update, before averaging, multiplied by the divisors of their losses. These
are gradients of plain sums over terms. Their sum over micro-batches and ranks, divided by one common number, is the
gradient of the big batch. The gradient of the step is compared with it, parameter by parameter, against the rounding
bound (`dpbook.replicas.gamma`). If they differ, each known mistake is applied to the saved gradients. The first one
that yields the gradient of the step explains it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from pathlib import Path

import numpy as np

from dpbook.replicas import Array, compare, gamma, unit_roundoff
from dpbook.runs.audit.checks.data import as_written, by_line, reduced, uneven
from dpbook.runs.audit.findings import CheckResult, Finding, Status, passed, untested
from dpbook.runs.audit.journals import RunJournals, Update, first_difference
from dpbook.runs.watching.journal import REPLAY_ARRAYS, array_key


@dataclass(frozen=True)
class ReplayGradients:
    """Saved gradients of one update of one optimizer.

    Attributes:
        ranks: arrays of each rank, by `array_key`.
        names: parameters that all ranks saved.
        lines: lines of the script that called backward.
    """

    ranks: tuple[Mapping[str, Array], ...]
    names: tuple[str, ...]
    lines: tuple[str, ...]

    def of(self, kind: str, rank: int, line: str = "") -> dict[str, Array]:
        """Return one rank's arrays of one kind by parameter; zeros if a backward gave a parameter no gradient."""
        arrays = self.ranks[rank]
        return {
            name: arrays.get(array_key(kind, name, line), np.zeros_like(arrays[array_key("plain", name)]))
            for name in self.names
        }

    @property
    def world(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def divisor(self, line: str) -> tuple[float, int]:
        """Return the mean divisor of the losses of a line, over ranks and micro-batches, and the number of losses."""
        prefix = array_key("divisors", "", line)
        pairs = [[array for key, array in arrays.items() if key.startswith(prefix)] for arrays in self.ranks]
        most = max(chain(*pairs), key=itemgetter(1))
        divisors, backwards = np.sum([max(of_rank, key=itemgetter(1), default=most) for of_rank in pairs], axis=0)
        return float(divisors / backwards), int(backwards)

    def big(self, kind: str) -> dict[str, Array]:
        """Return a sum over ranks and lines for the big batch, in which all terms have the same weight.

        Args:
            kind: ``"weighted"`` for the gradient, ``"sizes"`` for the sum of the absolute values of its terms.
        """
        total = {name: np.zeros(self.ranks[0][array_key("plain", name)].shape) for name in self.names}
        for line in self.lines:
            fair = self.world * self.divisor(line)[0]
            for rank in range(self.world):
                for name, array in self.of(kind, rank, line).items():
                    total[name] += array / fair
        return total


def load(path: Path) -> dict[str, Array]:
    with np.load(path, allow_pickle=False) as archive:
        return {each: archive[each] for each in archive.files}


def join_shards(ranks: Sequence[dict[str, Array]]) -> tuple[dict[str, Array], ...]:
    """Replace sharded gradients by the whole ones on every rank; drop those whose shards do not fit together."""
    for name in [each.split("|", 2)[2] for each in ranks[0] if each.startswith("shard|")]:
        places = [arrays.get(array_key("shard", name)) for arrays in ranks]
        parts = [arrays.pop(array_key("applied", name), None) for arrays in ranks]
        if all(place is not None and int(place) >= 0 for place in places) and all(part is not None for part in parts):
            whole = np.concatenate(
                [part for part in parts if part is not None], axis=int(ranks[0][array_key("shard", name)])
            )
            if whole.shape == ranks[0][array_key("plain", name)].shape:
                for arrays in ranks:
                    arrays[array_key("applied", name)] = whole
    return tuple(ranks)


def scale(applied: Mapping[str, Array], other: Mapping[str, Array]) -> float:
    """Return the factor by which ``other`` must be multiplied to be closest to ``applied`` (least squares)."""
    square = sum(float(np.vdot(each, each)) for each in other.values())
    along = sum(float(np.vdot(other[name], values.astype(np.float64))) for name, values in applied.items())
    return along / square if square else 1.0


def largest_violation(
    applied: Mapping[str, Array], other: Mapping[str, Array], bound: Mapping[str, Array], factor: float
) -> tuple[str, float] | None:
    """Return the parameter that exceeds its bound the most, and its relative error; None if every one is within.

    The difference is that of ``applied`` and ``factor`` times ``other``; the bound is ``abs(factor)`` times ``bound``.
    """
    beyond: dict[str, float] = {}
    for name, values in applied.items():
        limit = abs(factor) * bound[name] + float(np.finfo(values.dtype).tiny)
        beyond[name] = float(np.max(np.abs(values - factor * other[name]) / limit, initial=0.0))
    name = max(beyond, key=beyond.__getitem__)
    if beyond[name] <= 1:
        return None
    size = float(np.linalg.norm(other[name])) * abs(factor) or 1.0
    return name, float(np.linalg.norm(applied[name] - factor * other[name])) / size


GUESS_TOLERANCE = 1e-5
"""Largest error of a guess that explains a gradient, relative to the largest element of a parameter."""
MEANS = "each rank's mean counts the same, whatever it is a mean over"


def explain_difference(
    update: Update, gradients: ReplayGradients, rank: int, worst: tuple[str, float], *, mild: bool
) -> CheckResult:
    """Return the first mistake that explains the gradient of a rank's step.

    It is a warning if no known mistake explains it, or if the ranks' means are over different numbers of terms and that
    is ``mild``: the numbers differ a little, or at the end of an epoch.
    """
    name, error = worst
    place = update.steps[rank]["place"]
    applied = gradients.of("applied", rank)
    for mistake, guess, guilty in _guesses(update, gradients, rank):
        near = {each: GUESS_TOLERANCE * (np.abs(array) + np.abs(array).max(initial=0)) for each, array in guess.items()}
        factor = scale(applied, guess)
        if factor > 0 and largest_violation(applied, guess, near, factor) is None:
            status: Status = "WARN" if mild and mistake == MEANS else "FAIL"
            return CheckResult(
                status, f"{mistake}: relative error {error:.1e} in {name}", guilty, name, update.number, place
            )
    message = f"relative error {error:.1e} in {name}, and no mistake that was tried explains it: what the script does "
    message += "between backward and step (noise, clipping by value, a hook that compresses) does, or its own averaging"
    return CheckResult("WARN", message, rank, name, update.number, place)


def _guesses(update: Update, gradients: ReplayGradients, rank: int) -> Iterator[tuple[str, dict[str, Array], int]]:
    """Yield known mistakes: a description, the gradient that the mistake yields, and the rank to blame."""
    if first_difference([step["gradients"] for step in update.steps], gradients.names):
        yield "it is this rank's own gradient, which nothing averaged", gradients.of("plain", rank), rank
    yield MEANS, _over_ranks(gradients, "plain"), rank
    yield "only the last micro-batch is in it", _over_ranks(gradients, "last"), rank
    if any(update.of("clip")):
        clipped = _over_ranks(gradients, "plain", _clipped(update, gradients))
        yield "each rank clipped its own gradient before they were averaged", clipped, rank
    for left_out in range(gradients.world) if gradients.world > 1 else ():
        without = _over_ranks(gradients, "plain", lambda each, out=left_out: float(each != out))  # type: ignore[misc]
        yield f"the gradient of rank {left_out} is not in it", without, left_out


def _over_ranks(
    gradients: ReplayGradients, kind: str, weight: Callable[[int], float] = lambda rank: 1.0
) -> dict[str, Array]:
    arrays = [gradients.of(kind, rank) for rank in range(gradients.world)]
    return {
        name: np.sum([weight(rank) * of_rank[name] for rank, of_rank in enumerate(arrays)], axis=0)
        for name in gradients.names
    }


def _clipped(update: Update, gradients: ReplayGradients) -> Callable[[int], float]:
    """Return the factor by which each rank would clip its local gradient (`torch.nn.utils.clip_grad_norm_`)."""

    def weight(rank: int) -> float:
        most = next((event["most"] for event in update.of("clip")[rank] if event["most"]), np.inf)
        norm = np.sqrt(sum(float(np.vdot(each, each)) for each in gradients.of("plain", rank).values()))
        return min(1.0, float(most / (norm + 1e-6)))

    return weight


NAME, CLAIM, BOOK = "replay", "the gradient is the big batch's", "chapter 02"
AFTER = ("group", "start", "sync", "unused", "scaled", "clip", "mean", "gradients", "finite")
EXTRA = 16
"""Roundings besides those of the sums: factors, quotients, clipping, the scaler, the conversion to float32."""
LENGTH_TOLERANCE = 1e-4
"""Relative difference up to which two lengths count as equal."""
LENGTH_ROUNDOFFS = 8
"""The same in unit roundoffs, for dtypes of few bits; the larger of the two counts."""


def replay_findings(run: RunJournals, number: int) -> list[Finding]:
    """Return one finding for each optimizer, about its update ``number``."""
    updates = [update for update in run.updates if update.number == number]
    if not updates:
        return [Finding(NAME, CLAIM, untested(f"update {number} was not seen"), BOOK)]
    whole = [update for update in updates if not _is_sharded(run, update)]
    results = [(update, _replay(run, update)) for update in whole or updates[:1]]
    several = len(results) > 1
    return [Finding(NAME, CLAIM + (f" (optimizer {u.optimizer + 1})" if several else ""), r, BOOK) for u, r in results]


def _is_sharded(run: RunJournals, update: Update) -> bool:
    """Whether the ranks' optimizers have different parameters, as those inside a sharded optimizer do."""
    of_ranks = run.optimizers[update.optimizer]
    return any(each["names"] != of_ranks[0]["names"] for each in of_ranks)


def _replay(run: RunJournals, update: Update) -> CheckResult:
    gradients = _saved_gradients(run, update)
    if isinstance(gradients, str):
        return untested(gradients)
    unreadable = _unreadable(update)
    if unreadable:
        return untested(unreadable)
    means = uneven(run, update)
    return _verdict(update, gradients, mild=means is not None and means.status == "WARN")


def _saved_gradients(run: RunJournals, update: Update) -> ReplayGradients | str:
    """Return the gradients that the ranks saved, or the reason why they are not enough."""
    assert run.folder is not None
    paths = [run.folder / REPLAY_ARRAYS.format(rank, update.optimizer) for rank in range(run.world)]
    if not all(path.exists() for path in paths):
        return "the ranks have not kept their gradients of this update"
    ranks = join_shards([load(path) for path in paths])
    known = run.optimizers[update.optimizer][0]["names"]
    names = tuple(name for name in known if all(array_key("applied", name) in arrays for arrays in ranks))
    if not names:
        return "no gradient could be seen on all ranks before it was averaged"
    if not all(np.isfinite(arrays[array_key("applied", name)]).all() for arrays in ranks for name in names):
        return "the gradient is not finite"
    lines = tuple(
        dict.fromkeys(each.split("|")[1] for arrays in ranks for each in arrays if each.startswith("divisors"))
    )
    return ReplayGradients(ranks, names, lines) if lines else "no backward was seen"


def _unreadable(update: Update) -> str:
    """Return the reason why the big batch's loss is not known, or ""."""
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


def _verdict(update: Update, gradients: ReplayGradients, *, mild: bool) -> CheckResult:
    big, sizes = gradients.big("weighted"), gradients.big("sizes")
    backwards = sum(gradients.divisor(line)[1] for line in gradients.lines)
    units = {
        name: max(float(arrays[array_key("unit", name)]) for arrays in gradients.ranks) for name in gradients.names
    }
    if max(units.values()) * (backwards + EXTRA) >= 1:
        return untested(f"after {backwards} sums in so few bits nothing is certain")
    for rank in range(gradients.world):
        applied = gradients.of("applied", rank)
        bound = {name: 2 * gamma(backwards + EXTRA, units[name]) * sizes[name] for name in gradients.names}
        factor = scale(applied, big)
        worst = largest_violation(applied, big, bound, factor)
        if worst is not None:
            return explain_difference(update, gradients, rank, worst, mild=mild)
    return _length(update, gradients, factor, _agreement(applied, big, bound, factor, units), max(units.values()))


def _agreement(
    applied: Mapping[str, Array],
    big: Mapping[str, Array],
    bound: Mapping[str, Array],
    factor: float,
    units: Mapping[str, float],
) -> str:
    """Return the difference of two gradients in words: relative to the bound, and in ulps."""
    results = {
        name: compare(
            values.ravel(), (factor * big[name]).astype(values.dtype).ravel(), abs(factor) * bound[name].ravel()
        )
        for name, values in applied.items()
    }
    size = max(float(np.max(np.abs(values), initial=0)) for values in applied.values()) or 1.0
    error = max(result.max_error for result in results.values()) / size
    limit = abs(factor) * max(float(np.max(each, initial=0)) for each in bound.values()) / size
    single = unit_roundoff(np.float32)  # gradients of 16 bits are compared as float32
    ulps, worst = max((result.ulps / max(1.0, units[name] / single), name) for name, result in results.items())
    return f"relative error {error:.1e}, rounding bound {limit:.1e}; at most {ulps:.0f} ulp, in {worst}"


def _length(update: Update, gradients: ReplayGradients, factor: float, agreement: str, unit: float) -> CheckResult:
    """Judge the length of a gradient whose direction is the big batch's."""
    near = max(LENGTH_TOLERANCE, LENGTH_ROUNDOFFS * unit)
    factor *= _scaled(update)
    written = as_written(update, gradients.world)
    by_world = _by_world(update, written, gradients.world, near) if abs(factor - 1) < near else ""
    if by_world:
        message = f"the loss is {by_world}, unless that is meant; {agreement}"
        return CheckResult("WARN", message, update=update.number, place=update.of("backward")[0][-1]["place"])
    if abs(factor - 1) < near or abs(factor * written - 1) < near:
        return passed(agreement)
    if any(update.of("clip")) and factor < 1:
        return passed(f"clipped to {factor:.3g} of it; {agreement}")
    world, place = gradients.world, update.steps[0]["place"]
    if _means(update, world):
        if abs(factor / world - 1) < near:
            message = f"it is {world} times as long: the ranks' gradients are added, not averaged; {agreement}"
            return CheckResult("FAIL", message, update=update.number, place=place)
        if abs(factor * world - 1) < near:
            message = f"it is {world} times too short: it is divided by the number of ranks twice; {agreement}"
            return CheckResult("FAIL", message, update=update.number, place=place)
        message = f"its direction is the big batch's, its length {factor:.4g} times that; {agreement}"
        return CheckResult("WARN", message, update=update.number, place=place)
    return passed(f"{factor:.4g} times the sum's mean over the ranks; {agreement}")


def _by_world(update: Update, written: float, world: int, near: float) -> str:
    """Return in words how a loss has the number of ranks as an extra factor although gradients are averaged, or ""."""
    if abs(written * world - 1) < near:
        return (
            f"divided by {world}, the number of ranks, and its gradients are averaged over them too: {world} times "
            "too short"
        )
    added = len(update.of("backward")[0]) == world  # the check of means reports added micro-batches
    if world > 1 and not added and abs(written / world - 1) < near:
        return f"multiplied by {world}, the number of ranks, and its gradients are averaged: {world} times too long"
    return ""


def _scaled(update: Update) -> float:
    """Return the factor by which a gradient scaler multiplied the loss, but not the gradient of the step."""
    return next((float(event["factor"]) for events in update.of("scaled") for event in events), 1.0)


def _means(update: Update, world: int) -> bool:
    """Whether the losses are means.

    They are if their functions say so, or if their divisors add up to the number of their terms or of the examples.
    """
    parts = [(part, event) for events in update.of("backward") for event in events for part in event["losses"][:1]]
    if all(part["mean"] for part, _ in parts):
        return True
    divisor = sum(part["divisor"] for part, _ in parts) * world / len(parts) * _scaled(update)
    terms = sum(part["terms"] for part, _ in parts)
    examples = sum(len(event["rows"]) for events in update.of("forward") for event in events)
    return any(abs(number - abs(divisor)) < LENGTH_TOLERANCE * number for number in (terms, examples))
