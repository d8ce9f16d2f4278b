"""What a training loop written by hand is put through: one small model, trained on every rank under torch's DDP.

Everything goes in and comes out as plain data, so that whoever judges needs no torch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from dpbook.book.ch11.payload import Sent, watch

JOINED = timedelta(seconds=30)
"""For all ranks to be there."""
Trial = Mapping[str, Any]
"""What is tried, as a dict:

- ``weights``: for each rank the initial values of two linear layers with tanh between them, four arrays in torch's
  order and shapes; float64
- ``x``, ``y``: the examples, of shapes (examples, inputs) and (examples, outputs)
- ``epochs``, ``batch`` (examples per micro-batch), ``accumulation`` (micro-batches per step), ``rate``
"""


def train(answer: Callable[..., Any], trial: Trial, rank: int) -> dict[str, Any]:
    """Call ``answer(model, data, epochs, batch, accumulation, rate, save)`` on this rank of a process group.

    Returns ``seen`` (the inputs of each forward that was to be trained on), ``syncs`` (the number of backward passes
    that averaged gradients), ``logged`` (what was returned, as plain numbers), ``saved`` (what was handed to ``save``,
    each a dict of arrays) and ``weights`` (the model's parameters at the end).
    """
    model, seen, saved = _model(trial["weights"][rank]), [], []
    watches: list[list[Sent]] = []

    def see(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if torch.is_grad_enabled():
            seen.append(inputs[0].detach().numpy().copy())

    def save(state: Mapping[str, torch.Tensor]) -> None:
        saved.append({name: tensor.detach().numpy().copy() for name, tensor in state.items()})

    model.register_forward_pre_hook(see)
    data = TensorDataset(torch.tensor(trial["x"]), torch.tensor(trial["y"]))
    settings = [trial[name] for name in ("epochs", "batch", "accumulation", "rate")]
    with _watched(watches):
        logged = answer(model, data, *settings, save)
    weights = [parameter.detach().numpy().copy() for parameter in model.parameters()]
    syncs = sum(sent.last for sent in chain(*watches))
    return {"seen": seen, "syncs": syncs, "logged": _numbers(logged), "saved": saved, "weights": weights}


def _numbers(logged: Any) -> Any:
    """Losses that are tensors of one element as numbers, and whatever else as it is."""
    if not isinstance(logged, list | tuple):
        return logged
    return [each.item() if isinstance(each, torch.Tensor) and each.numel() == 1 else each for each in logged]


def _model(weights: Sequence[Any]) -> nn.Sequential:
    (hidden, inputs), (outputs, _) = weights[0].shape, weights[2].shape
    model = nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs)).double()
    with torch.no_grad():
        for parameter, values in zip(model.parameters(), weights, strict=True):
            parameter.copy_(torch.tensor(values))
    return model


@contextmanager
def _watched(watches: list[list[Sent]]) -> Iterator[None]:
    """Every DDP that is made meanwhile is watched: an item of ``watches`` is what one of them sent."""
    make = DistributedDataParallel.__init__

    def made(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        watches.append(watch(self))

    DistributedDataParallel.__init__ = made
    try:
        yield
    finally:
        DistributedDataParallel.__init__ = make


def train_alone(answer: Callable[..., Any], trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """`train` for each trial in this process: a world of one rank, which needs no launcher."""
    own = not dist.is_initialized()  # else it is the caller's: a notebook has one rank
    if own:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        return [train(answer, trial, 0) for trial in trials]
    finally:
        if own and dist.is_initialized():
            dist.destroy_process_group()


def train_as_rank(
    answer: Callable[..., Any], trials: Sequence[Trial], rank: int, world: int, port: int
) -> list[dict[str, Any]]:
    """`train` for each trial, in a process that becomes a rank of a process group of this machine."""
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, world, rank == 0, JOINED)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    try:
        return [train(answer, trial, rank) for trial in trials]
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def train_on_this_rank(answer: Callable[..., Any], trials: Sequence[Trial], rank: int) -> list[dict[str, Any]]:
    """`train` for each trial, on a rank that is a process of a process group."""
    torch.set_num_threads(1)
    return [train(answer, trial, rank) for trial in trials]
