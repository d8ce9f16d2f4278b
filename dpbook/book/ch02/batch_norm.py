"""Batch normalisation: every example's loss depends on the mean and the variance of its batch."""

import numpy as np
from numpy.typing import DTypeLike

from dpbook import collectives
from dpbook.book.ch02.coupled import Coupled, Pass
from dpbook.core import check_int
from dpbook.replicas import Array, Loss, squared_error

EPSILON = 1e-5  # added to a variance before its root is taken


class BatchNorm(Coupled):
    """tanh(scale · x̂ + shift) W2 + b2, with x̂ = (h − mean) / √(variance + 1e-5) of h = x W1 over the batch.

    The variance is the mean of squares minus the square of the mean, so that sums are all there is to exchange
    (Ioffe and Szegedy, Batch Normalization, 2015). `predict` and `loss` use the statistics of the rows they are given.
    """

    def __init__(self, inputs: int, hidden: int, outputs: int = 1, loss: Loss = squared_error) -> None:
        self.inputs, self.hidden = check_int("inputs", inputs, 1), check_int("hidden", hidden, 1)
        self.outputs = check_int("outputs", outputs, 1)
        each = (hidden,)
        shapes = {"W1": (inputs, hidden), "scale": each, "shift": each, "W2": (hidden, outputs), "b2": (outputs,)}
        super().__init__(shapes, loss)

    def init(self, rng: np.random.Generator, dtype: DTypeLike = np.float64) -> Array:
        """Draw the weights as every model does; scales begin at 1."""
        params = super().init(rng, dtype)
        self.views(params)["scale"][...] = 1
        return params

    def exchange(self, rows: list[Array]) -> list[Array]:
        """Add up over the ranks."""
        return list(np.asarray(collectives.simulate(collectives.ring(len(rows)), rows).buffers))

    def _outputs(self, p: dict[str, Array], x: Array) -> Array:
        h = x @ p["W1"]
        normal, _ = _normalise(h, h.sum(axis=0), (h * h).sum(axis=0), len(x))
        output: Array = np.tanh(p["scale"] * normal + p["shift"]) @ p["W2"] + p["b2"]
        return output

    def rank_pass(self, p: dict[str, Array], x: Array, y: Array, start: int) -> Pass:
        h = x @ p["W1"]
        n = yield np.array([len(x)], x.dtype)
        total = yield h.sum(axis=0)
        squares = yield (h * h).sum(axis=0)
        normal, inverse = _normalise(h, total, squares, n)
        hidden = np.tanh(p["scale"] * normal + p["shift"])
        _, slopes = self._loss(hidden @ p["W2"] + p["b2"], y)
        before_tanh = (slopes @ p["W2"].T) * (1 - hidden * hidden)
        before_scale = before_tanh * p["scale"]
        # Every example of the batch moves the mean and the variance, and through them every other example's loss.
        by_mean = (yield before_scale.sum(axis=0)) / n
        by_variance = (yield (before_scale * normal).sum(axis=0)) / n
        return {
            "W1": x.T @ (inverse * (before_scale - by_mean - normal * by_variance)),
            "scale": (before_tanh * normal).sum(axis=0),
            "shift": before_tanh.sum(axis=0),
            "W2": hidden.T @ slopes,
            "b2": slopes.sum(axis=0),
        }


def _normalise(h: Array, total: Array, squares: Array, n: Array | int) -> tuple[Array, Array]:
    """Return (h − mean) / √(variance + ε), and that factor, from the sums over the batch."""
    mean = total / n
    inverse = 1 / np.sqrt(squares / n - mean * mean + EPSILON)
    return (h - mean) * inverse, inverse
