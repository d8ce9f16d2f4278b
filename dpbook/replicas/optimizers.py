"""Optimizers, and learning rates for larger batches.

An optimizer turns a gradient into a direction; the step along it is the same for all:

    params ← params · (1 − lr · weight_decay) − lr · direction

Weight decay is decoupled from the gradient (Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019, with
the decay multiplied by the learning rate). An optimizer keeps the history of one replica, so every replica has one.

Scaling rules. Linear: k steps of SGD along nearly equal gradients go as far as one step of k times the length (Goyal et
al., Accurate, Large Minibatch SGD, 2017, section 2.1). On a curvature λ the two differ by at most k (k − 1) / 2 · (lr
λ)² of the distance to the minimum. The long step diverges beyond k = 2 / (lr λ), even if the short ones converge.

Square root: the noise of a step, lr · σ / √B, does not change (Krizhevsky, One weird trick for parallelizing
convolutional neural networks, 2014, who found the linear rule to work better). Adam divides the gradient by its size;
for its step, a stochastic differential equation gives the square root as long as noise outweighs the gradient (Malladi,
Lyu, Panigrahi and Arora, On the SDEs and Scaling Rules for Adaptive Gradient Algorithms, 2022).

The linear rule needs no noise: steps on the full batch obey it too, up to k lr λ of about 2. Adam's square root needs
noise. How the *best* rate grows with the batch, rather than a chosen one, depends on noise: `efficient_lr`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from dpbook.core import InvalidArgument, check_float, check_int
from dpbook.replicas.networks import Array


class Optimizer(ABC):
    """Update rule of one replica, with its history of earlier gradients."""

    def __init__(self, lr: float, *, weight_decay: float = 0.0) -> None:
        self.lr = check_float("lr", lr, above=0)
        self.weight_decay = check_float("weight_decay", weight_decay, minimum=0)

    @abstractmethod
    def direction(self, gradient: Array) -> Array:
        """Take the gradient (size,) into the history and return the direction (size,) to step against."""

    def step(self, params: Array, gradient: Array) -> Array:
        """Return new parameters (size,) of the dtype of ``params``; neither argument is changed."""
        if gradient.shape != params.shape or gradient.dtype != params.dtype:
            given = f"{gradient.dtype} {gradient.shape}"
            raise InvalidArgument("gradient", given, f"like the parameters, {params.dtype} {params.shape}")
        return params * (1 - self.lr * self.weight_decay) - self.lr * self.direction(gradient)

    def __repr__(self) -> str:
        settings = (f"{name}={value}" for name, value in vars(self).items() if isinstance(value, float))
        return f"{type(self).__name__}({', '.join(settings)})"


class SGD(Optimizer):
    """Gradient descent: direction = g (Robbins and Monro, A Stochastic Approximation Method, 1951)."""

    def direction(self, gradient: Array) -> Array:
        return gradient


class Momentum(Optimizer):
    """Heavy ball: v ← momentum · v + g, direction = v (Polyak, Some Methods of Speeding up the Convergence, 1964)."""

    def __init__(self, lr: float, *, momentum: float = 0.9, weight_decay: float = 0.0) -> None:
        super().__init__(lr, weight_decay=weight_decay)
        self.momentum = check_float("momentum", momentum, minimum=0, below=1)
        self.velocity: Array | None = None

    def direction(self, gradient: Array) -> Array:
        before = np.zeros_like(gradient) if self.velocity is None else self.velocity
        self.velocity = self.momentum * before + gradient
        return self.velocity


class Adam(Optimizer):
    """Adam (Kingma and Ba, Adam: A Method for Stochastic Optimization, 2015, algorithm 1); AdamW with weight decay.

    In step t = 1, 2, …: m ← β₁ m + (1 − β₁) g and v ← β₂ v + (1 − β₂) g²;
    direction = m̂ / (√v̂ + ε) with m̂ = m / (1 − β₁ᵗ) and v̂ = v / (1 − β₂ᵗ).
    """

    def __init__(
        self, lr: float, *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, weight_decay: float = 0.0
    ) -> None:
        super().__init__(lr, weight_decay=weight_decay)
        self.beta1 = check_float("beta1", beta1, minimum=0, below=1)
        self.beta2 = check_float("beta2", beta2, minimum=0, below=1)
        self.epsilon = check_float("epsilon", epsilon, above=0)
        self.steps = 0
        self.moments: tuple[Array, Array] | None = None

    def direction(self, gradient: Array) -> Array:
        m, v = self.moments or (np.zeros_like(gradient), np.zeros_like(gradient))
        m = self.beta1 * m + (1 - self.beta1) * gradient
        v = self.beta2 * v + (1 - self.beta2) * gradient * gradient
        self.steps, self.moments = self.steps + 1, (m, v)
        corrected_m = m / (1 - self.beta1**self.steps)
        corrected_v = v / (1 - self.beta2**self.steps)
        return corrected_m / (np.sqrt(corrected_v) + self.epsilon)


LearningRate: TypeAlias = Callable[[int], float]
"""Function from the number of a step, from 0, to its learning rate."""


def linear_scaling(lr: float, batch: int, base_batch: int) -> float:
    """Return lr · batch / base_batch, for SGD with or without momentum."""
    return check_float("lr", lr, above=0) * _ratio(batch, base_batch)


def square_root_scaling(lr: float, batch: int, base_batch: int) -> float:
    """Return lr · √(batch / base_batch), for Adam; see `adam_scaling` for its other settings."""
    return check_float("lr", lr, above=0) * math.sqrt(_ratio(batch, base_batch))


def adam_scaling(adam: Adam, batch: int, base_batch: int) -> Adam:
    """Return a new Adam for another batch, as Malladi et al. (2022) scale it.

    With κ = batch / base_batch the settings are lr √κ; 1 − β times κ, so that averages cover as many examples as
    before; and ε / √κ, because the noise that it is added to shrinks by √κ. Their equation has no weight decay; here lr
    · weight_decay per example does not change. Raises `InvalidArgument` if κ (1 − β₁) or κ (1 − β₂) is more than 1, so
    that β would be negative (κ > 10 for β₁ = 0.9).
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
    """Return a learning rate that grows linearly to ``peak`` in the first part of a run, and stays there.

    Goyal et al. (2017, section 2.2) start from the small batch's learning rate, because right after the start gradients
    change quickly and the linear rule does not hold. A ``share`` of the ``steps`` of the run is warm-up, rounded to
    whole steps; the last of them has the peak. ``start`` is the rate before step 0, which is one increment higher.
    """
    check_float("peak", peak, above=0)
    if not 0 <= start <= peak:
        raise InvalidArgument("start", start, f"a number from 0 to the peak, {peak:g}")
    if not 0 <= share <= 1:
        raise InvalidArgument("share", share, "a number from 0 to 1")
    n_warm_up = round(share * check_int("steps", steps, 1))

    def rate(step: int) -> float:
        number = check_int("step", step, 0) + 1
        return float(peak if number >= n_warm_up else start + (peak - start) * number / n_warm_up)

    return rate


def efficient_lr(largest: float, batch: int, noise_scale: float) -> float:
    """Return largest / (1 + noise_scale / batch), the best SGD step for a batch on a quadratic loss.

    ``largest`` is the best step without noise. Far below the noise scale the result is linear in the batch, and far
    above it is constant: a batch beyond the noise scale allows at most twice the step of a batch equal to it
    (McCandlish et al., An Empirical Model of Large-Batch Training, 2018, section 2, whose noise scale weights
    directions by curvature; with equal curvature it is `NoiseScale.scale`).
    """
    if not noise_scale >= 0:
        raise InvalidArgument("noise_scale", noise_scale, "a number of at least 0")
    return check_float("largest", largest, above=0) / (1 + noise_scale / check_int("batch", batch, 1))


def _ratio(batch: int, base_batch: int) -> float:
    return check_int("batch", batch, 1) / check_int("base_batch", base_batch, 1)
