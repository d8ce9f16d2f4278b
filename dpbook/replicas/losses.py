"""The losses that the models are trained on, each with its derivative. A loss looks at one example at a time."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from dpbook.core import InvalidArgument
from dpbook.replicas.array import Array, describe

Loss: TypeAlias = Callable[[Array, Array], tuple[Array, Array]]
"""``loss(output, y)`` with ``output`` of shape (n, outputs) returns the n losses of the examples, and the (n, outputs)
derivatives of each example's loss by its own outputs."""


def squared_error(output: Array, y: Array) -> tuple[Array, Array]:
    """Loss ‖output − y‖² of each example, without a factor ½, and its derivative.

    ``y`` has the shape (n, outputs) and the dtype of ``output``.
    """
    if y.shape != output.shape or y.dtype != output.dtype:
        # A column against a flat array would broadcast to a matrix without a word.
        raise InvalidArgument("y", describe(y), f"targets like the outputs, {describe(output)}")
    error = output - y
    return (error * error).sum(axis=1), 2 * error


def cross_entropy(output: Array, y: Array) -> tuple[Array, Array]:
    """Softmax cross-entropy of each example and its derivative; ``y`` holds n integer labels from 0 to outputs − 1."""
    n, classes = output.shape
    if y.shape != (n,) or y.dtype.kind not in "iu":
        raise InvalidArgument("y", describe(y), f"{n} integer labels in one dimension")
    if y.min() < 0 or y.max() >= classes:
        raise InvalidArgument("y", f"{y.min()}..{y.max()}", f"labels from 0 to {classes - 1}")
    # Each row's own maximum: with the batch's maximum an example's loss would depend on its neighbours.
    shifted = output - output.max(axis=1, keepdims=True)
    exponentials = np.exp(shifted)
    totals = exponentials.sum(axis=1, keepdims=True)
    slopes = exponentials / totals - (y[:, None] == np.arange(classes))
    return np.log(totals[:, 0]) - shifted[np.arange(n), y], slopes
