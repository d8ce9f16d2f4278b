"""Learning rates for larger batches: scaling rules, and warm-up as a function of the step.

Linear: k steps of SGD along nearly equal gradients go as far as one step of k times the length (Goyal et al., Accurate,
Large Minibatch SGD, 2017, section 2.1). On a curvature λ the two differ by at most k (k − 1) / 2 · (lr λ)² of the
distance to the minimum, and the long step diverges beyond k = 2 / (lr λ), however well the short ones converge.

Square root: the noise of a step, lr · σ / √B, stays what it was (Krizhevsky, One weird trick for parallelizing
convolutional neural networks, 2014, who found the linear rule to work better). For Adam, whose step is the
gradient divided by its own size, a stochastic differential equation gives the square root as long as noise outweighs
the gradient (Malladi, Lyu, Panigrahi and Arora, On the SDEs and Scaling Rules for Adaptive Gradient Algorithms, 2022).

The linear rule needs no noise: steps on the full batch obey it as well, up to k lr λ of about 2. Adam's square root
needs it. How the *best* rate of a batch grows with it, rather than one once chosen, depends on noise: `efficient_lr`.
"""

import math
from collections.abc import Callable
from typing import TypeAlias

from dpbook.core import InvalidArgument, check_float, check_int
from dpbook.replicas.optim import Adam

LearningRate: TypeAlias = Callable[[int], float]
"""The learning rate of a step, which is counted from 0."""


def linear_scaling(lr: float, batch: int, base_batch: int) -> float:
    """Return lr · batch / base_batch: for SGD, with or without momentum."""
    return check_float("lr", lr, above=0) * _ratio(batch, base_batch)


def square_root_scaling(lr: float, batch: int, base_batch: int) -> float:
    """Return lr · √(batch / base_batch): for Adam; see `adam_scaling` for what belongs to it."""
    return check_float("lr", lr, above=0) * math.sqrt(_ratio(batch, base_batch))


def adam_scaling(adam: Adam, batch: int, base_batch: int) -> Adam:
    """Return a new Adam for another batch, as Malladi et al. (2022) scale it.

    With κ = batch / base_batch: lr √κ, 1 − β scaled by κ, so that averages reach back over as many examples as before,
    and ε / √κ, because the noise that it is added to shrinks so. Their equation has no weight decay; here lr ·
    weight_decay per example stays what it was.

    Raises:
        InvalidArgument: κ (1 − β₁) or κ (1 − β₂) is more than 1: no β is left then (beyond κ = 10 for β₁ = 0.9).
    """
    ratio = _ratio(batch, base_batch)
    if ratio * (1 - min(adam.beta1, adam.beta2)) > 1:
        raise InvalidArgument("batch", batch, f"small enough that 1 − β times {ratio:g} stays below 1")
    return Adam(
        adam.lr * math.sqrt(ratio),
        beta1=1 - ratio * (1 - adam.beta1),
        beta2=1 - ratio * (1 - adam.beta2),
        epsilon=adam.epsilon / math.sqrt(ratio),
        weight_decay=adam.weight_decay * math.sqrt(ratio),
    )


def warm_up(peak: float, steps: int, share: float = 0.05, start: float = 0.0) -> LearningRate:
    """Return a learning rate that grows by equal amounts to ``peak`` in the first part of a run, and stays there.

    Goyal et al. (2017, section 2.2) start from the small batch's learning rate, because right after the start gradients
    change quickly and the linear rule does not hold.

    Args:
        steps: of the run.
        share: of the steps that are warm-up, rounded to whole ones; the last of them has the peak.
        start: what the growth begins above; step 0 is already one amount higher.
    """
    check_float("peak", peak, above=0)
    if not 0 <= start <= peak:
        raise InvalidArgument("start", start, f"a number from 0 to the peak, {peak:g}")
    if not 0 <= share <= 1:
        raise InvalidArgument("share", share, "a number from 0 to 1")
    over = round(share * check_int("steps", steps, 1))

    def rate(step: int) -> float:
        done = check_int("step", step, 0) + 1
        return float(peak if done >= over else start + (peak - start) * done / over)

    return rate


def efficient_lr(largest: float, batch: int, noise_scale: float) -> float:
    """Return largest / (1 + noise_scale / batch), the best SGD step for a batch on a quadratic loss.

    ``largest`` is the best one without noise. Far below the noise scale this is linear in the batch, far above it is
    constant: a batch beyond the noise scale deserves at most twice the step of one that is equal to it (McCandlish et
    al., An Empirical Model of Large-Batch Training, 2018, section 2, whose noise scale weights directions by curvature;
    with equal curvature it is `NoiseScale.scale`).
    """
    if not noise_scale >= 0:
        raise InvalidArgument("noise_scale", noise_scale, "a number of at least 0")
    return check_float("largest", largest, above=0) / (1 + noise_scale / check_int("batch", batch, 1))


def _ratio(batch: int, base_batch: int) -> float:
    return check_int("batch", batch, 1) / check_int("base_batch", base_batch, 1)
