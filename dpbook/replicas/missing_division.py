"""The forgotten division by the world: gradients are summed, never averaged, so they are N times too large.

SGD and momentum are linear in the gradients, so N times the gradient is N times the learning rate: the loss may fall
faster than it should, until at some learning rate it diverges. Decoupled weight decay is not multiplied along.

Adam divides by the gradients' own size, so that a factor cancels but for ε: N times the gradient with ε gives the steps
of the gradient with ε / N, bit for bit if N is a power of two. AdamW hides the fault just as well, because its decay
sees no gradient.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from dpbook import collectives
from dpbook.collectives.schedule import check_schedule
from dpbook.core import InvalidArgument, check_float
from dpbook.replicas.array import Array


def undivided(schedule: collectives.Schedule) -> Callable[[Array], Array]:
    """Return an all-reduce after which the usual division leaves the plain sum, as if it had been forgotten."""
    check_schedule(schedule)

    def all_reduce(buffers: Array) -> Array:
        return np.asarray(collectives.simulate(schedule, buffers).buffers) * len(buffers)

    return all_reduce


def adam_scale_effect(root_mean_square: ArrayLike, scale: float, epsilon: float = 1e-8) -> Array:
    """Return by which share Adam's step grows if all gradients are multiplied by ``scale``.

    The direction m̂ / (√v̂ + ε) becomes m̂ / (√v̂ + ε / scale): it grows by ε (1 − 1 / scale) / (√v̂ + ε / scale), which is
    about ε / √v̂ where gradients are larger than ε, and at most scale − 1 where they are far smaller.

    Args:
        root_mean_square: √v̂, the size of recent gradients; 0 or more.
        scale: the world size if the division is missing.
    """
    root = np.asarray(root_mean_square, np.float64)
    if not (root >= 0).all():
        raise InvalidArgument("root_mean_square", root_mean_square, "numbers of at least 0")
    scale, epsilon = check_float("scale", scale, above=0), check_float("epsilon", epsilon, above=0)
    effect: Array = epsilon * (1 - 1 / scale) / (root + epsilon / scale)
    return effect
