"""Replay of one update: is the gradient of its step that of the big batch, up to rounding?

The ranks saved their local gradients of one update, before averaging, multiplied by the divisors of their losses. These
are gradients of plain sums over terms. Their sum over micro-batches and ranks, divided by one common number, is the
gradient of the big batch. The gradient of the step is compared with it, parameter by parameter, against the rounding
bound (`dpbook.replicas.gamma`). If they differ, each known mistake is applied to the saved gradients. The first one
that yields the gradient of the step explains it.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain

import numpy as np

from dpbook.replicas import Array, compare, gamma, unit_roundoff
from dpbook.runs.audit.checks.averaging import OWN_STEPS
from dpbook.runs.audit.checks.means import DRAWN_WEIGHTS, drawn_weights, uneven
from dpbook.runs.audit.findings import CheckResult, Finding, untested
from dpbook.runs.audit.gradient_length import clipped_each, judge_length, unclamped, unclipped
from dpbook.runs.audit.journals import RunJournals, Update, first_difference
from dpbook.runs.audit.replay_gradients import Arrays, ReplayGradients, join_shards, load
from dpbook.runs.audit.update_losses import losses_of
from dpbook.runs.watching.journal import REPLAY_ARRAYS, array_key


def scale(applied: Arrays, other: Arrays) -> float:
    """Return the factor by which ``other`` must be multiplied to be closest to ``applied`` (least squares)."""
    square = sum(float(np.vdot(each, each)) for each in other.values())
    along = sum(float(np.vdot(other[name], values.astype(np.float64))) for name, values in applied.items())
    return along / square if square else 1.0


def largest_violation(applied: Arrays, other: Arrays, bound: Arrays, factor: float) -> tuple[str, float] | None:
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
MEANS = "each rank's mean has the same weight, whatever the number of its terms"


def explain_difference(
    run: RunJournals, update: Update, gradients: ReplayGradients, rank: int, worst: tuple[str, float]
) -> CheckResult | None:
    """Return the first known mistake that explains the gradient of a rank's step, or None.

    It is a warning if the ranks' means are over numbers of terms that differ a little, or at the end of an epoch.
    """
    name, error = worst
    applied = gradients.of("applied", rank)
    for mistake, guess, guilty in _guesses(update, gradients, rank):
        near = {each: GUESS_TOLERANCE * (np.abs(array) + np.abs(array).max(initial=0)) for each, array in guess.items()}
        factor = scale(applied, guess)
        if factor > 0 and largest_violation(applied, guess, near, factor) is None:
            means = uneven(run, update)
            mild = mistake == MEANS and means is not None and means.result.status == "WARN"
            message, place = f"{mistake}: relative error {error:.1e} in {name}", update.steps[rank]["place"]
            return CheckResult("WARN" if mild else "FAIL", message, guilty, name, update.number, place)
    return None


def unexplained(
    run: RunJournals, update: Update, gradients: ReplayGradients, rank: int, worst: tuple[str, float], bound: Arrays
) -> CheckResult:
    """Return the result for a gradient that is not the big batch's and that no known mistake yields.

    Where a communication hook changes gradients on their way, or the script changes them after a backward that left the
    big batch's, nothing is tested: both may be meant so.
    """
    name, error = worst
    message = f"relative error {error:.1e} in {name}"
    hooks = run.optimizers[update.optimizer][0].get("comm_hooks", ())
    if hooks:
        return untested(f"DDP's communication hook {hooks[0]} changes the gradients that it sends: {message}")
    after, big = gradients.of("after", rank), gradients.big("weighted")
    if any(map(np.any, after.values())) and largest_violation(after, big, bound, scale(after, big)) is None:
        reason = "backward leaves the big batch's gradient, and the script changes it before the step"
        return untested(f"{reason}: {message}")
    message += ", and no mistake that was tried explains it: what the script does between backward and step does, or "
    message += "its own averaging"
    return CheckResult("WARN", message, rank, name, update.number, update.steps[rank]["place"])


def _guesses(update: Update, gradients: ReplayGradients, rank: int) -> Iterator[tuple[str, dict[str, Array], int]]:
    """Yield known mistakes: a description, the gradient that the mistake yields, and the rank to blame."""
    if first_difference([step["gradients"] for step in update.steps], gradients.names):
        yield "it is this rank's own gradient, not averaged", gradients.of("plain", rank), rank
    yield MEANS, _over_ranks(gradients, "plain"), rank
    yield "it contains only the last micro-batch", _over_ranks(gradients, "last"), rank
    if any(update.of("clip")):
        coefficients = []  # of `torch.nn.utils.clip_grad_norm_` on each rank
        for each, clips in enumerate(update.of("clip")):
            most = next((event["most"] for event in clips if event["most"]), np.inf)
            norm = np.sqrt(sum(float(np.vdot(array, array)) for array in gradients.of("plain", each).values()))
            coefficients.append(min(1.0, float(most / (norm + 1e-6))))
        clipped = _over_ranks(gradients, "plain", coefficients)
        yield "each rank clipped its own gradient before they were averaged", clipped, rank
    for left_out in range(gradients.world) if gradients.world > 1 else ():
        without = _over_ranks(gradients, "plain", [float(each != left_out) for each in range(gradients.world)])
        yield f"the gradient of rank {left_out} is missing from it", without, left_out


def _over_ranks(gradients: ReplayGradients, kind: str, weights: Sequence[float] = ()) -> dict[str, Array]:
    """Return the weighted sum of the arrays of one kind."""
    arrays = [gradients.of(kind, rank) for rank in range(gradients.world)]
    pairs = list(zip(weights or [1.0] * gradients.world, arrays, strict=True))
    return {name: np.sum([weight * of_rank[name] for weight, of_rank in pairs], axis=0) for name in gradients.names}


NAME, BOOK = "replay", "chapter 02"
AFTER = ("group", "start", "sync", "unused", "scaled", "clip", "mean", "gradients", "finite")
EXTRA = 16
"""Roundings besides those of the sums: factors, quotients, clipping, the scaler, the conversion to float32."""
READABLE_ULPS = 100
"""Differences of more ulps are those of elements near zero, of which their number says nothing."""


def replay_findings(run: RunJournals, number: int) -> list[Finding]:
    """Return one finding for each optimizer, about its update ``number``."""
    claim = f"the gradient of update {number} is the big batch's"
    updates = [update for update in run.updates if update.number == number]
    if not updates:
        return [Finding(NAME, claim, untested(f"update {number} was not seen"), BOOK)]
    # the optimizers inside a sharded one have different parameters on each rank
    names = {number: {str(each["names"]) for each in of_ranks} for number, of_ranks in run.optimizers.items()}
    whole = [update for update in updates if len(names[update.optimizer]) == 1] or updates[:1]
    findings = []
    for update in whole:
        result, coupling = _replay(run, update), _coupling(update)
        which = f" (optimizer {update.optimizer + 1})" if len(whole) > 1 else ""
        if coupling and result.status == "PASS":
            mean = f"the gradient of update {number} is the mean of the ranks'"
            findings.append(Finding(NAME, mean + which, result, BOOK))
            findings.append(Finding("coupled", claim + which, untested(coupling), BOOK))
        else:
            findings.append(Finding(NAME, claim + which, result, BOOK))
    return findings


def _coupling(update: Update) -> str:
    """Return how a loss couples the examples of one rank alone, so that the big batch's is no sum over ranks; or ""."""
    if any(event.get("batch_norm") for events in update.of("forward") for event in events):
        return "batch normalization takes its statistics over each rank's own examples"
    for event in chain.from_iterable(update.of("backward")):
        gathered = event.get("gathered")
        if gathered and gathered["in_loss"]:
            return "the loss compares a rank's examples with copies of the others' that have no gradient"
        if gathered:
            where = f"{gathered['place'][0]}:{gathered['place'][1]}" if gathered["place"] else "a call"
            return f"{where} gathers without a gradient, and whether the loss uses it cannot be seen"
        if event.get("coupled"):
            return str(event["coupled"])
    return ""


def _replay(run: RunJournals, update: Update) -> CheckResult:
    if run.rejoined[update.optimizer]:
        return untested(OWN_STEPS)
    shared = run.shared(update.optimizer)
    if update.unseen and first_difference([step["gradients"] for step in update.steps], shared):
        return untested(update.unseen)
    first = next(each for each in run.updates if each.optimizer == update.optimizer)
    if first_difference(run.frozen(first), list(run.frozen(first)[0])):
        return untested("parameters that are not trained differ, so that each rank has a loss of its own")
    gradients = _saved_gradients(run, update)
    if isinstance(gradients, str):
        return untested(gradients)
    unreadable = _unreadable(run, update)
    return untested(unreadable) if unreadable else _judge(run, update, gradients)


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
    divisors = (key for arrays in ranks for key in arrays if key.startswith("divisors"))
    lines = tuple(dict.fromkeys(key.split("|")[1] for key in divisors))
    return ReplayGradients(ranks, names, lines) if lines else "no backward was seen"


def _unreadable(run: RunJournals, update: Update) -> str:
    """Return the reason why the big batch's loss is not known, or ""."""
    drawn = drawn_weights(run)
    for loss in losses_of(update):
        if not loss.parts:
            return "what the loss is divided by cannot be read from its graph"
        if loss.line in drawn:
            return DRAWN_WEIGHTS
        first = [part["divisor"] for part in loss.parts[0]]
        if not all(first):
            return "a loss is a mean over no term"
        for other in loss.parts[1:]:
            ratios = [part["divisor"] / divisor for part, divisor in zip(other, first, strict=True)]
            if max(ratios) - min(ratios) > 1e-6 * max(map(abs, ratios)):
                return "the loss has several parts, whose numbers of terms differ from rank to rank each in its own way"
    return ""


def _judge(run: RunJournals, update: Update, gradients: ReplayGradients) -> CheckResult:
    big, sizes, backwards = gradients.big("weighted"), gradients.big("sizes"), gradients.backwards
    if max(gradients.units.values()) * (backwards + EXTRA) >= 1:
        return untested(f"after {backwards} sums in so few bits rounding may explain anything")
    bound = {name: 2 * gamma(backwards + EXTRA, unit) * sizes[name] for name, unit in gradients.units.items()}
    for rank in range(gradients.world):
        applied, clipping = gradients.of("applied", rank), ""
        factor = scale(applied, big)
        worst = largest_violation(applied, big, bound, factor)
        clips = update.of("clip")[rank]
        for undo, in_words in (
            (partial(unclipped, clips), "clipped in several groups"),
            (partial(unclamped, clips), "clipped by value"),
            (partial(clipped_each, run.world), "each tensor clipped to the same norm"),
        ):
            if worst is not None and (longer := undo(applied, big)) is not None:
                applied, clipping, factor = longer, in_words, scale(longer, big)
                worst = largest_violation(applied, big, bound, factor) and worst
        if worst is not None:
            known = explain_difference(run, update, gradients, rank, worst)
            return known or unexplained(run, update, gradients, rank, worst, bound)
    if not any(each.any() for each in gradients.of("applied", 0).values()):
        return untested("the gradient is zero")
    agreement = _agreement(applied, big, bound, factor, gradients.units)
    if clipping:
        agreement += f"; {clipping}"
    return judge_length(run, update, gradients, factor, agreement, before_clipping=bool(clipping))


def _agreement(applied: Arrays, big: Arrays, bound: Arrays, factor: float, units: Mapping[str, float]) -> str:
    """Return the difference of two gradients in words: relative to the bound, and in ulps."""
    results = {}
    for name, values in applied.items():
        expected = (factor * big[name]).astype(values.dtype)
        results[name] = compare(values.ravel(), expected.ravel(), abs(factor) * bound[name].ravel())
    size = max(float(np.max(np.abs(values), initial=0)) for values in applied.values()) or 1.0
    error = max(result.max_error for result in results.values()) / size
    limit = abs(factor) * max(float(np.max(each, initial=0)) for each in bound.values()) / size
    single = unit_roundoff(np.float32)  # gradients of 16 bits are compared as float32
    ulps, worst = max((result.ulps / max(1.0, units[name] / single), name) for name, result in results.items())
    message = f"relative error {error:.1e}, rounding bound {limit:.1e}"
    return f"{message}; at most {ulps:.0f} ulp, in {worst}" if ulps < READABLE_ULPS else message
