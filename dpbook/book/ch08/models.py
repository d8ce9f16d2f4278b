"""Models drawn at random, as exercise 08.3 sees them: gradients, when they are ready, and the price of a call."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpbook.collectives import AlphaBeta
from dpbook.core import check_int
from dpbook.overlap import Layer, Plan, Tensor, Timeline, simulate_step


class Model(NamedTuple):
    """Gradients in an order that says nothing, and the price of a call.

    Attributes:
        ready: seconds from the start of the step at which each is complete; those of one layer at the same time.
        nbytes: of each.
        alpha: seconds that a call takes, whatever it carries.
        beta: seconds per byte.
    """

    ready: list[float]
    nbytes: list[int]
    alpha: float
    beta: float


def sample(layers: int = 12, seed: int = 0) -> Model:
    """Return a model of so many layers, each with a weight and a bias; equal seeds are one model."""
    return draw(check_int("layers", layers, 1), np.random.default_rng(check_int("seed", seed, 0)))


def draw(layers: int, rng: np.random.Generator) -> Model:
    """Return a model whose communication takes 0.8 to 1.5 times as long as backward, without latencies.

    Backward takes as long as 8 to 30 latencies and twice as long as forward.
    """
    backward = rng.uniform(0.05, 0.2)
    shares = rng.uniform(0.5, 1.5, layers)
    ends = backward / 2 + backward * np.cumsum(shares / shares.sum())
    weights = np.round(1e6 * rng.lognormal(0, 0.7, layers)).astype(int)
    ready, nbytes = np.repeat(ends, 2), np.stack([weights, weights // 500], axis=1).ravel()
    alpha, beta = backward / rng.uniform(8, 30), rng.uniform(0.8, 1.5) * backward / nbytes.sum()
    order = rng.permutation(2 * layers)
    return Model(ready[order].tolist(), nbytes[order].tolist(), float(alpha), float(beta))


def simulate(model: Model, groups: Sequence[Sequence[int]]) -> Timeline:
    """Return the step in which these groups of gradients go out, in this order.

    Raises `InvalidArgument` unless every gradient is in exactly one group.
    """
    tensors = [Tensor(f"gradient {index}", nbytes, "uint8") for index, nbytes in enumerate(model.nbytes)]
    checked = Plan(tuple(tensors), groups).groups  # type: ignore[arg-type]
    order = sorted(range(len(tensors)), key=lambda index: -model.ready[index])  # layers in the order of forward
    place = {index: k for k, index in enumerate(order)}
    forward = max(model.ready) / 3
    before = [*(model.ready[index] for index in order[1:]), forward]  # when the backward of each layer starts
    layers = [
        Layer(str(index), forward / len(order), model.ready[index] - start, (tensors[index],))
        for index, start in zip(order, before, strict=True)
    ]
    ordered = Plan(tuple(tensors[index] for index in order), tuple(tuple(place[i] for i in g) for g in checked))
    return simulate_step(layers, ordered, AlphaBeta(model.alpha, model.beta))
