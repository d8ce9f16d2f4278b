"""Length of a replayed gradient: is it that of a mean over the big batch, or N times as long or too short?"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dpbook.core import listed
from dpbook.replicas import Array
from dpbook.runs.audit.findings import CheckResult, passed, untested
from dpbook.runs.audit.journals import RunJournals, Update
from dpbook.runs.audit.replay_gradients import Arrays, ReplayGradients
from dpbook.runs.audit.update_losses import WrittenLength, usual_micro_batches, written_lengths, wrong_length
from dpbook.runs.watching.journal import Event

LENGTH_TOLERANCE = 1e-4
"""Relative difference up to which two lengths count as equal."""
LENGTH_ROUNDOFFS = 8
"""The same in unit roundoffs, for dtypes of few bits; the larger of the two counts."""
CLIP_TOLERANCE = 1e-3
"""Relative difference between a gradient of a step and what its clipping would make of it; of 16 bits, it may be so."""


def judge_length(
    run: RunJournals,
    update: Update,
    gradients: ReplayGradients,
    factor: float,
    agreement: str,
    *,
    before_clipping: bool,
) -> CheckResult:
    """Judge the length of a gradient whose direction is the big batch's.

    ``factor`` is its length relative to the mean over ranks and micro-batches of the gradients of the losses, or
    what that was ``before_clipping``.
    """
    world, micro = gradients.world, len(update.of("backward")[0])
    near = max(LENGTH_TOLERANCE, LENGTH_ROUNDOFFS * max(gradients.units.values()))
    before = factor if before_clipping else _before_clipping(update, gradients, factor)
    clipped = before is None
    factor = factor if before is None else before
    if scaled := next((event for events in update.of("scaled") for event in events), None):
        factor *= float(scaled["factor"])  # a gradient scaler multiplied the loss, but not the gradient of the step
    written = written_lengths(update, world)

    def times(length: float, line: WrittenLength) -> bool:
        known = (line.total, line.by_examples) if length == 1 or line.even else ()
        return any(abs(factor * value - length) < near * length for value in known)

    wrong = wrong_length(update, world, usual_micro_batches(run))
    if wrong and clipped:
        return untested(f"its length before clipping is not known; {wrong.result.message}; {agreement}")
    if wrong and abs(factor * wrong.length - 1) >= near:
        return replace(wrong.result, message=f"{wrong.result.message}; {agreement}")
    if any(times(1, each) or any(abs(factor * part - 1) < near for part in each.parts) for each in written):
        return passed(agreement)
    sums = all(not each.means and set(each.divisors) == {1.0} for each in written)
    for length in (world, 1 / world):
        if world > 1 and written and all(times(length, each) for each in written):
            if not sums:
                return _by_world(run, update, written, factor, length, agreement)
            if abs(factor - 1) >= near:
                reason = f"the loss is a sum; if its mean is meant, the gradient is {_in_words(length)}"
                return untested(f"{reason}; {agreement}")
    if abs(factor - 1) < near:
        scales = [f"{line.total:.4g}" for line in written if line.means]
        return passed(f"{agreement}; of a loss that is {listed(scales, 3)} times a mean" if scales else agreement)
    if clipped and factor < 1:
        return passed(f"clipped to {factor:.3g} of it; {agreement}")
    if any(each.means or abs(each.total - 1) < near or abs(each.by_examples - 1) < near for each in written):
        message = f"its direction is the big batch's, its length {factor:.4g} times that; {agreement}"
        if factor < 1 and abs(factor * micro - 1) >= near:
            return untested(f"{message} (clipped by hand?)")
        return CheckResult("WARN", message, update=update.number, place=update.steps[0]["place"])
    return passed(f"{factor:.4g} times the sum's mean over the ranks; {agreement}")


def _by_world(
    run: RunJournals, update: Update, written: Sequence[WrittenLength], factor: float, length: float, agreement: str
) -> CheckResult:
    """Return the result for a gradient whose ``length`` is the number of ranks, or one divided by it.

    It is a failure where that number cannot be a factor of the loss's own: where averaging brought it in, or where the
    divisors follow the number of terms, which varies.
    """
    world, long = run.world, length > 1
    loss, averaging = (abs(factor - each) < LENGTH_TOLERANCE * each for each in (1, length))
    means = all(each.means for each in written)
    if loss and means and world == 2:
        reason = f"the mean has the factor {'2' if long else '1/2'}, of the loss itself or of the number of ranks"
        return untested(f"{reason}: --nproc 3 tells; {agreement}")
    divisors = {each.divisors[0] for other in run.updates for each in written_lengths(other, world)}
    certain = averaging or (loss and not means and len(divisors) > 1)
    cause = "the loss and the averaging together make it so"
    if averaging:
        cause = "the ranks' gradients are added, not averaged" if long else "it is divided by the number of ranks twice"
    elif loss:
        cause = f"the loss is {'multiplied' if long else 'divided'} by {world}, the number of ranks, and gradients are "
        cause += "averaged over them too"
    doubt = "" if certain else ", unless that is meant (then it is the same with another --nproc)"
    backwards = update.of("backward")[0]
    place = backwards[-1]["place"] if loss and backwards else update.steps[0]["place"]
    message = f"it is {_in_words(length)}: {cause}{doubt}; {agreement}"
    return CheckResult("FAIL" if certain else "WARN", message, update=update.number, place=place)


def _in_words(length: float) -> str:
    return f"{length} times as long" if length > 1 else f"{round(1 / length)} times too short"


def _before_clipping(update: Update, gradients: ReplayGradients, factor: float) -> float | None:
    """Return the factor before the gradient was clipped to a norm, or None if it cannot be known.

    It is ``factor`` where nothing was clipped. Else the norm that `torch.nn.utils.clip_grad_norm_` returned gives it,
    if the clipping explains how long the gradient of the step is.
    """
    clips = update.of("clip")[0]
    if not clips:
        return factor
    norm, most = clips[0]["norm"], clips[0]["most"]
    if len(clips) > 1 or not norm or not most:
        return None
    size = np.sqrt(sum(float(np.vdot(each, each)) for each in gradients.big("weighted").values()))
    before = float(norm / size) if size else factor
    clipped = before * min(1.0, most / (norm + 1e-6))
    return before if abs(clipped - factor) < CLIP_TOLERANCE * abs(factor) else None


def unclamped(clips: Sequence[Event], applied: Arrays, big: Arrays) -> dict[str, Array] | None:
    """Return the gradient as it was before `torch.nn.utils.clip_grad_value_`.

    Elements at the limit become the big batch's, where these are beyond it. The elements inside the limit say how long
    the gradient is. None if nothing was clipped by value, or everything was.
    """
    if len(clips) != 1 or clips[0]["norm"] or not clips[0]["most"]:
        return None
    limit = clips[0]["most"] * (1 - CLIP_TOLERANCE)
    inside = {name: np.abs(values) < limit for name, values in applied.items()}
    small = {name: big[name][inside[name]] for name in applied}
    square = sum(float(np.vdot(each, each)) for each in small.values())
    if not square:
        return None
    factor = sum(float(np.vdot(small[name], values[inside[name]])) for name, values in applied.items()) / square
    before = {}
    for name, values in applied.items():
        longer = (factor * big[name]).astype(values.dtype)
        beyond = ~inside[name] & (np.sign(longer) == np.sign(values)) & (np.abs(longer) >= limit)
        before[name] = np.where(beyond, longer, values)
    return before


def unclipped(clips: Sequence[Event], applied: Arrays, big: Arrays) -> dict[str, Array] | None:
    """Return the gradient as it was before a script clipped groups of its parameters, each to a norm of its own.

    A tensor is longer or shorter than the big batch's by a common factor times the coefficient of one of ``clips``
    (`torch.nn.utils.clip_grad_norm_`), or 1 if it was not clipped. None if that does not describe the gradient.
    """
    if not clips or any(not clip["norm"] or not clip["most"] for clip in clips):
        return None
    coefficients = [1.0, *(min(1.0, clip["most"] / (clip["norm"] + 1e-6)) for clip in clips)]
    lengths = {
        name: float(np.vdot(big[name], values.astype(np.float64)) / square)
        for name, values in applied.items()
        if (square := float(np.vdot(big[name], big[name])))
    }
    longest = max(lengths.values(), default=0.0, key=abs)

    def coefficient(name: str, factor: float) -> float | None:
        ratio = lengths[name] / factor if name in lengths else 1.0
        near = min(coefficients, key=lambda each: abs(each - ratio))
        return near if abs(near - ratio) < CLIP_TOLERANCE * near else None

    for factor in (longest / each for each in coefficients if longest):
        chosen = {name: coefficient(name, factor) for name in applied}
        if None not in chosen.values():
            return {name: values / (chosen[name] or 1.0) for name, values in applied.items()}
    return None


def clipped_each(world: int, applied: Arrays, big: Arrays) -> dict[str, Array] | None:
    """Return the gradient as it was before a script clipped each of its tensors to one norm, by hand.

    The tensors that are shorter than the big batch's all have that norm, and no other exceeds it. None if not, or if a
    single tensor is shorter and that by the number of ranks, as one is that was divided twice.
    """
    norms = {name: float(np.linalg.norm(values.astype(np.float64))) for name, values in applied.items()}
    lengths = {name: norm / size for name, norm in norms.items() if (size := float(np.linalg.norm(big[name])))}
    longest = max(lengths.values(), default=0.0)
    short = [name for name, length in lengths.items() if length < longest * (1 - CLIP_TOLERANCE)]
    limit = max((norms[name] for name in short), default=0.0)
    alike = all(norms[name] > limit * (1 - CLIP_TOLERANCE) for name in short)
    if not alike or max(norms.values()) > limit * (1 + CLIP_TOLERANCE):
        return None
    if len(short) == 1 and abs(world * lengths[short[0]] / longest - 1) < CLIP_TOLERANCE:
        return None
    return {name: values * (longest / lengths[name] if name in short else 1.0) for name, values in applied.items()}
