"""Chains of layers drawn at random, and in NumPy how they train: the oracle of exercise 10."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpbook.overlap import Plan, Tensor, plan

Array = NDArray[np.float64]
ITEMSIZE = 8


@dataclass(frozen=True)
class Chain:
    """What is tried: see `dpbook.book.ch10.trials`, to which `trial` is handed.

    ``weights`` (world, layers, width, width), ``biases`` (world, layers, width), ``scale`` (world,): what each rank
    begins with. ``tied``: two layers with one weight. ``frozen``: a layer that is not trained. ``orders``: in which
    order each rank uses the layers; one that is left out gets no gradient there. ``last``: the same of the last
    micro-batch of a step, if that is another. ``batches`` (steps, micro-batches, world, examples, width).
    """

    weights: Array
    biases: Array
    scale: Array
    tied: tuple[int, int]
    frozen: int
    orders: tuple[tuple[int, ...], ...]
    batches: Array
    cap: int
    rate: float = 0.5
    last: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def draw(
        cls,
        rng: np.random.Generator,
        world: int,
        *,
        layers: int = 7,
        cap: int | None = None,
        steps: int = 3,
        micro: int = 1,
        crossed: bool = False,
        absent: bool = False,
        unused: bool = False,
    ) -> "Chain":
        """A chain; without a ``cap`` one that makes several buckets.

        ``crossed``: ranks use layers in orders of their own. Then a bucket is a layer, and all are alike.
        ``absent``: one rank leaves out one layer that the others train; of several micro-batches in the last alone.
        ``unused``: all of them leave it out.
        """
        width, examples = int(rng.integers(3, 6)), int(rng.integers(2, 5))
        tied, frozen = (1, layers - 2), int(rng.integers(2, layers - 2))
        middle = list(range(2, layers - 2))
        middles = [rng.permutation(middle).tolist() if crossed else middle for _ in range(world)]
        before = list(middles)
        if absent or unused:
            without = int(rng.choice([layer for layer in middle if layer != frozen]))
            for rank in range(world) if unused else [int(rng.integers(world))]:
                middles[rank] = [layer for layer in middle if layer != without]
        every, last = (tuple((0, 1, *m, layers - 2, layers - 1) for m in these) for these in (before, middles))
        one = ITEMSIZE * width * (width + 1)
        drawn = one if crossed else int(rng.integers(one + 1, 3 * one))
        return cls(
            rng.normal(size=(world, layers, width, width)) / np.sqrt(width) * 1.5,
            rng.normal(size=(world, layers, width)),
            rng.uniform(0.5, 2, world),
            tied,
            frozen,
            every if micro > 1 else last,
            rng.normal(size=(steps, micro, world, examples, width)),
            drawn if cap is None else cap,
            last=last if micro > 1 else (),
        )

    @property
    def world(self) -> int:
        return len(self.scale)

    @property
    def layers(self) -> int:
        return int(self.biases.shape[1])

    @property
    def trial(self) -> dict[str, Any]:
        """As plain data."""
        return dict(vars(self))

    @property
    def layer_bytes(self) -> int:
        """Of a weight and a bias: a cap that most layers reach exactly."""
        width = int(self.biases.shape[2])
        return ITEMSIZE * width * (width + 1)

    def tensors(self) -> list[tuple[Tensor, int]]:
        """What is trained, in the order of the parameters, each with the layer whose backward completes it."""
        width, found = self.biases.shape[2], []
        for layer in range(self.layers):
            if layer != self.frozen:
                if layer != self.tied[1]:
                    found.append((Tensor(f"layers.{layer}.weight", (width, width), "float64"), layer))
                found.append((Tensor(f"layers.{layer}.bias", width, "float64"), layer))
        return found

    def plan(self) -> Plan:
        """The buckets that are asked for: in the reverse of the order of the parameters."""
        return plan([tensor for tensor, _ in self.tensors()], self.cap, first=None)

    def states(self) -> list[list[Array]]:
        """The parameters after each step, in torch's order: those of the big batch on one process."""
        weights, biases = self.weights[0].copy(), self.biases[0].copy()
        first, second = self.tied
        weights[second] = weights[first]
        found = []
        for step in self.batches:
            dw, db = np.zeros_like(weights), np.zeros_like(biases)
            for number, micro in enumerate(step, start=1):
                orders = self.last or self.orders if number == len(step) else self.orders
                for order, x in zip(orders, micro, strict=True):
                    for total, part in zip((dw, db), self._gradients(weights, biases, x, order), strict=True):
                        total += part / (self.world * len(step))
            dw[first] = dw[second] = dw[first] + dw[second]
            dw[self.frozen] = db[self.frozen] = 0
            weights, biases = weights - self.rate * dw, biases - self.rate * db
            pairs = [(layer, (weights[layer], biases[layer])) for layer in range(self.layers)]
            found.append([a for layer, (w, b) in pairs for a in ((b,) if layer == second else (w, b))])
        return found

    def _gradients(self, weights: Array, biases: Array, x: Array, order: Sequence[int]) -> tuple[Array, Array]:
        """Of the mean square of the outputs of one rank, which goes through the layers in this order."""
        dw, db, inputs = np.zeros_like(weights), np.zeros_like(biases), []
        x = x * self.scale[0]
        for layer in order:
            inputs.append(x)
            x = np.tanh(x @ weights[layer].T + biases[layer])
        gradient = 2 * x / x.size
        for layer, before in zip(reversed(order), reversed(inputs), strict=True):
            gradient = gradient * (1 - np.tanh(before @ weights[layer].T + biases[layer]) ** 2)
            dw[layer], db[layer] = gradient.T @ before, gradient.sum(0)
            gradient = gradient @ weights[layer]
        return dw, db
