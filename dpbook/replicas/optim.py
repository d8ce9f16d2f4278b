"""Optimizers: each turns a gradient into a direction; the step along it is the same for all.

    params ← params · (1 − lr · weight_decay) − lr · direction

Weight decay is decoupled from the gradient (Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019, with
the decay multiplied by the learning rate). An optimizer keeps the history of one replica, so every replica has its
own. Nothing is random: the same gradients give the same parameters, bit for bit.
"""

from abc import ABC, abstractmethod

import numpy as np

from dpbook.core import InvalidArgument, check_float
from dpbook.replicas.array import Array


class Optimizer(ABC):
    """One replica's rule for an update, and what it remembers of earlier gradients."""

    def __init__(self, lr: float, *, weight_decay: float = 0.0) -> None:
        self.lr = check_float("lr", lr, above=0)
        self.weight_decay = check_float("weight_decay", weight_decay, minimum=0)

    @abstractmethod
    def direction(self, gradient: Array) -> Array:
        """Take the gradient (size,) into the history and return the direction (size,) to step against."""

    def step(self, params: Array, gradient: Array) -> Array:
        """Return new parameters (size,) of the dtype of ``params``; neither argument is changed."""
        if gradient.shape != params.shape or gradient.dtype != params.dtype:
            found = f"{gradient.dtype} {gradient.shape}"
            raise InvalidArgument("gradient", found, f"like the parameters, {params.dtype} {params.shape}")
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
