"""Trials of wrappers written by hand: a chain of layers is trained for some steps on every rank.

`Chain` draws a trial and trains it in NumPy, as the oracle of exercise 10; `ChainModule` is the same chain in torch.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dpbook.book.ch10.wires import ProcessWire, RemoteWire, Wire, WireEnd
from dpbook.overlap import Plan, Tensor, plan

Array = NDArray[np.float64]
Orders = tuple[tuple[int, ...], ...]
"""For each rank, the layers in the order in which it uses them; a layer that is left out gets no gradient there."""
ITEMSIZE = 8
STEPS = 2
RATE = 0.5  # learning rate of plain SGD


@dataclass(frozen=True)
class Chain:
    """A chain of linear layers with tanh, and its training data."""

    weights: Array  # (world, layers, width, width), initial weights of each rank
    biases: Array  # (world, layers, width), initial biases of each rank
    scale: Array  # (world,), initial buffer of each rank, which scales the input
    tied: tuple[int, int]  # two layers that share one weight
    frozen: int  # a layer that is not trained
    orders: Orders
    last: Orders  # of the last micro-batch of a step
    batches: Array  # (steps, micro-batches, world, examples, width)
    factors: Array
    """(world, steps, micro-batches, layers, width), of the gradient of each layer's output, by the layer's place in the
    order. Backward takes them one layer after another, which shows how far it has come."""
    cap: int  # bytes at which a bucket closes

    @classmethod
    def draw(
        cls,
        rng: np.random.Generator,
        world: int,
        *,
        layers: int = 7,
        cap: int | None = None,
        micro: int = 1,
        crossed: bool = False,
        absent: bool = False,
        unused: bool = False,
    ) -> "Chain":
        """Draw a chain; without a ``cap``, with one that makes several buckets.

        With ``crossed`` each rank uses the layers in its own order, and a bucket is a layer. With ``absent`` one rank
        leaves out a layer that the others train, in the last micro-batch; with ``unused`` all ranks do.
        """
        width, examples = int(rng.integers(3, 6)), int(rng.integers(2, 5))
        tied, frozen = (1, layers - 2), int(rng.integers(2, layers - 2))
        middle = list(range(2, layers - 2))
        middles = [rng.permutation(middle).tolist() if crossed else middle for _ in range(world)]
        complete = list(middles)
        if absent or unused:
            without = int(rng.choice([layer for layer in middle if layer != frozen]))
            for rank in range(world) if unused else [int(rng.integers(world))]:
                middles[rank] = [layer for layer in middle if layer != without]
        every, last = (tuple((0, 1, *m, layers - 2, layers - 1) for m in of_all) for of_all in (complete, middles))
        one = ITEMSIZE * width * (width + 1)  # bytes of a layer's weight and bias
        drawn = one if crossed else int(rng.integers(one + 1, 3 * one))
        return cls(
            weights=rng.normal(size=(world, layers, width, width)) / np.sqrt(width) * 1.5,
            biases=rng.normal(size=(world, layers, width)),
            scale=rng.uniform(0.5, 2, world),
            tied=tied,
            frozen=frozen,
            orders=every if micro > 1 else last,
            last=last,
            batches=rng.normal(size=(STEPS, micro, world, examples, width)),
            factors=rng.uniform(0.5, 1.5, (world, STEPS, micro, layers, width)),
            cap=drawn if cap is None else cap,
        )

    @property
    def world(self) -> int:
        return len(self.scale)

    @property
    def layers(self) -> int:
        return int(self.biases.shape[1])

    @property
    def trial(self) -> dict[str, Any]:
        return dict(vars(self))

    def tensors(self) -> list[tuple[Tensor, int]]:
        """Return the trained tensors in parameter order, each with the layer whose backward completes its gradient."""
        width, tensors = self.biases.shape[2], []
        for layer in range(self.layers):
            if layer != self.frozen:
                if layer != self.tied[1]:
                    tensors.append((Tensor(f"layers.{layer}.weight", (width, width), "float64"), layer))
                tensors.append((Tensor(f"layers.{layer}.bias", width, "float64"), layer))
        return tensors

    def plan(self) -> Plan:
        """Return the expected buckets, in reverse order of the parameters."""
        return plan([tensor for tensor, _ in self.tensors()], self.cap, first=None)

    def states(self) -> list[dict[str, Array]]:
        """Return the parameters after each step, by name in torch's order, of one process with the big batch."""
        weights, biases = self.weights[0].copy(), self.biases[0].copy()
        first, second = self.tied
        weights[second] = weights[first]
        states = []
        for number_of_step, step in enumerate(self.batches):
            dw, db = np.zeros_like(weights), np.zeros_like(biases)
            for number, micro in enumerate(step, start=1):
                orders = self.last if number == len(step) else self.orders
                of_ranks = self.factors[:, number_of_step, number - 1]
                for order, x, factors in zip(orders, micro, of_ranks, strict=True):
                    gradients = self._gradients(weights, biases, x, order, factors)
                    for total, part in zip((dw, db), gradients, strict=True):
                        total += part / (self.world * len(step))
            dw[first] = dw[second] = dw[first] + dw[second]
            dw[self.frozen] = db[self.frozen] = 0
            weights, biases = weights - RATE * dw, biases - RATE * db
            parts = {"weight": weights, "bias": biases}
            named = {f"layers.{k}.{part}": array[k] for k in range(self.layers) for part, array in parts.items()}
            del named[f"layers.{second}.weight"]
            states.append(named)
        return states

    def _gradients(
        self, weights: Array, biases: Array, x: Array, order: Sequence[int], factors: Array
    ) -> tuple[Array, Array]:
        """Return the gradient of a rank's mean square output, multiplied by a row of ``factors`` behind each layer."""
        dw, db, inputs = np.zeros_like(weights), np.zeros_like(biases), []
        x = x * self.scale[0]
        for layer in order:
            inputs.append(x)
            x = np.tanh(x @ weights[layer].T + biases[layer])
        gradient = 2 * x / x.size
        for place, (layer, before) in reversed([*enumerate(zip(order, inputs, strict=True))]):
            gradient = gradient * factors[place] * (1 - np.tanh(before @ weights[layer].T + biases[layer]) ** 2)
            dw[layer], db[layer] = gradient.T @ before, gradient.sum(0)
            gradient = gradient @ weights[layer]
        return dw, db


Trial = Mapping[str, Any]  # a trial as plain data, with the attributes of `Chain` as keys


class ChainModule(nn.Module):  # type: ignore[misc]  # torch has no types here
    """Linear layers with tanh between them, one tied and one frozen, and a buffer that scales the input."""

    def __init__(self, trial: Trial, rank: int) -> None:
        super().__init__()
        weights, biases = torch.tensor(trial["weights"][rank]), torch.tensor(trial["biases"][rank])
        self.layers = nn.ModuleList(nn.Linear(w.shape[1], w.shape[0], dtype=w.dtype) for w in weights)
        for layer, weight, bias in zip(self.layers, weights, biases, strict=True):
            layer.weight, layer.bias = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())
        first, second = trial["tied"]
        self.layers[second].weight = self.layers[first].weight
        self.layers[trial["frozen"]].requires_grad_(False)
        self.register_buffer("scale", torch.tensor(trial["scale"][rank]), persistent=False)  # not in the state dict
        self.order: Sequence[int] = ()  # of the layers in the next forward

    def forward(self, x: torch.Tensor, wire: Wire) -> torch.Tensor:
        """Apply the layers. When backward reaches one, its gradient is multiplied by factors that ``wire`` has."""
        x = x * self.scale
        for place, layer in enumerate(self.order):
            x = torch.tanh(self.layers[layer](x))
            x.register_hook(lambda gradient, place=place: gradient * wire.factors_of(place))
        return x


Calls = tuple[Callable[[], Any], Callable[[], AbstractContextManager[Any]]]
"""An answer's ``finish`` and its ``no_sync``."""


def _wrapped(answer: Any, kind: str, module: ChainModule, cap: int, wire: Wire) -> Calls:
    """Wrap a module with an answer of this kind."""
    if kind == "whole":
        model = answer(module, cap, wire.world, wire.broadcast, wire.all_reduce)
        return model.finish, model.no_sync
    if kind == "hooked":
        finish = answer(module, wire.world, wire.all_reduce)
        if finish is None:
            raise TypeError("your function returned None in place of finish: is a return missing?")
    elif kind == "naive":
        finish = answer(module, wire.world, wire.broadcast, wire.all_reduce).finish
    else:
        finish = answer(module, cap, wire.world, wire.all_reduce).finish
    return finish, nullcontext


def train(answer: Any, kind: str, trial: Trial, wire: Wire) -> dict[str, Any]:
    """Train on this rank with an answer of a ``kind``: "naive", "hooked", "buckets" or "whole".

    Returns lists over the steps: ``states`` (the parameters after the step) and ``logs``. A log has ("sent", elements)
    and ("waited", message) for messages, ("backward", place) when backward reaches a layer, ("micro", k) after the k-th
    backward, and ("finish", 0) before the answer's ``finish`` is called.
    """
    if "factors" in trial:  # else they are kept where the trial comes from
        wire.factors = trial["factors"][wire.rank]
    module = ChainModule(trial, 0 if kind in ("hooked", "buckets") else wire.rank)  # these answers get equal replicas
    finish, no_sync = _wrapped(answer, kind, module, trial["cap"], wire)
    states, logs = [], []
    for number, step in enumerate(torch.tensor(trial["batches"])):
        wire.restart()
        # Both kinds, in either order: new tensors, or zeros in the old ones.
        module.zero_grad(set_to_none=(number + wire.world) % 2 == 0)
        for k, micro in enumerate(step):
            is_last = k + 1 == len(step)
            module.order = trial["last" if is_last else "orders"][wire.rank]
            with nullcontext() if is_last else no_sync():
                (module(micro[wire.rank], wire).square().mean() / len(step)).backward()
            wire.note("micro", k)
        wire.note("finish")
        finish()
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.grad is not None:
                    parameter -= RATE * parameter.grad
        states.append([p.detach().numpy().copy() for p in module.parameters()])
        logs.append(wire.log)
    return {"states": states, "logs": logs}


def states_over(answer: Any, kind: str, trial: Trial, end: WireEnd) -> list[Any]:
    """Return the states of `train` on a rank whose messages go over ``end``, which keeps the log."""
    torch.set_num_threads(1)
    states: list[Any] = train(answer, kind, trial, RemoteWire(end))["states"]
    return states


def train_on_this_rank(answer: Any, kind: str, trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Call `train` for each trial in turn, on a rank that is a process of a process group."""
    torch.set_num_threads(1)
    return [train(answer, kind, trial, ProcessWire()) for trial in trials]
