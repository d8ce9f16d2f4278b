"""What wrappers written by hand are put through: a chain of layers, trained for some steps on every rank.

Everything goes in and comes out as plain data, so that whoever judges needs no torch, and nothing of the wrapper.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from dpbook.book.ch10.far_wires import End, FarWire
from dpbook.book.ch10.wires import Event, ProcessWire, Wire, in_threads

Trial = Mapping[str, Any]
"""What is tried, as a dict:

- ``weights``, ``biases``, ``scale``: initial values for each rank, of shapes (world, layers, width, width),
  (world, layers, width) and (world,); float64
- ``tied``: two layers whose weight is one; ``frozen``: a layer that is not trained
- ``orders``: for each rank the order in which its forward goes through the layers; ``last``: the same for the last
  micro-batch of a step, empty where that is no other
- ``batches``: inputs of shape (steps, micro-batches, world, examples, width)
- ``cap``: bytes at which a bucket closes; ``rate``: of plain SGD
"""


class Chain(nn.Module):  # type: ignore[misc]  # torch has no types here
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
        self.order = trial["orders"][rank]

    def forward(self, x: torch.Tensor, log: list[Event]) -> torch.Tensor:
        """Each layer puts ("backward", its place in the order) into ``log`` when backward comes to it."""
        x = x * self.scale
        for place, layer in enumerate(self.order):
            x = torch.tanh(self.layers[layer](x))
            x.register_hook(lambda gradient, place=place: log.append(("backward", place)))
        return x


Calls = tuple[Callable[[], Any], Callable[[], AbstractContextManager[Any]] | None]
"""An answer's ``finish``, and its ``no_sync`` if it has one."""


def _wrapped(answer: Any, kind: str, module: Chain, cap: int, wire: Wire) -> Calls:
    """Put an answer of this kind on a module."""
    if kind in ("hooked", "buckets"):  # it gets replicas that are alike
        wire.broadcast_all([tensor.data for tensor in (*module.parameters(), *module.buffers())])
    match kind:
        case "naive":
            return answer(module, wire.world, wire.broadcast, wire.all_reduce).finish, None
        case "hooked":
            finish = answer(module, wire.world, wire.all_reduce)
            if finish is None:
                raise TypeError("your function returned None in place of finish: is a return missing?")
            return finish, None
        case "buckets":
            return answer(module, cap, wire.world, wire.all_reduce).finish, None
    model = answer(module, cap, wire.world, wire.broadcast, wire.all_reduce)
    return model.finish, model.no_sync


def train(answer: Any, kind: str, trial: Trial, wire: Wire) -> dict[str, Any]:
    """Train on this rank with an answer of a ``kind``: "naive", "hooked", "buckets" or "whole".

    Returns, for each step, ``states`` (the parameters after it) and ``logs``. A log has ("sent", elements) and
    ("waited", message) for messages, ("backward", place) where backward comes to a layer, ("micro", k) after the k-th
    backward and ("finish", 0) where the answer is asked to finish.
    """
    module = Chain(trial, wire.rank)
    finish, no_sync = _wrapped(answer, kind, module, trial["cap"], wire)
    states, logs = [], []
    for number, step in enumerate(torch.tensor(trial["batches"])):
        wire.restart()
        module.zero_grad(set_to_none=number % 2 == 0)  # both ways of torch: new tensors, and the old ones again
        for k, micro in enumerate(step):
            module.order = (trial["last"] if trial["last"] and k + 1 == len(step) else trial["orders"])[wire.rank]
            with nullcontext() if k + 1 == len(step) or no_sync is None else no_sync():
                (module(micro[wire.rank], wire.log).square().mean() / len(step)).backward()
            wire.log.append(("micro", k))
        wire.log.append(("finish", 0))
        finish()
        _update(module, trial["rate"])
        states.append([p.detach().numpy().copy() for p in module.parameters()])
        logs.append(list(wire.log))
    return {"states": states, "logs": logs}


def _update(module: nn.Module, rate: float) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter -= rate * parameter.grad


def trained_in_threads(answer: Any, kind: str, trial: Trial) -> list[dict[str, Any]]:
    """`train` with ranks that are threads of this process."""
    return in_threads(lambda wire: train(answer, kind, trial, wire), len(trial["weights"]))


def states_over(answer: Any, kind: str, trial: Trial, end: End) -> list[Any]:
    """The states of `train` on a rank whose messages go over ``end``, which keeps the log."""
    torch.set_num_threads(1)
    wire = FarWire(end)
    states: list[Any] = train(answer, kind, trial, wire)["states"]
    wire.flush()
    return states


def train_on_this_rank(answer: Any, kind: str, trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """`train` for each trial in turn, on a rank that is a process of a process group."""
    torch.set_num_threads(1)
    return [train(answer, kind, trial, ProcessWire()) for trial in trials]
