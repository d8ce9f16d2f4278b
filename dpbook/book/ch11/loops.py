"""Trials of training loops written by hand: one small model is trained on every rank under torch's DDP.

Arguments and results are plain data, so a judge needs no torch. `watch` records the buckets that DDP all-reduces.
"""
# No deferred annotations here: torch compares those of a communication hook with its own types.

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import chain
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from dpbook.book import sim


class Sent(NamedTuple):
    """A bucket that was all-reduced.

    Its flat ``buffer`` holds the averaged gradients after backward; ``last`` is True for the last bucket of a backward.
    """

    buffer: torch.Tensor
    last: bool


def watch(ddp: DistributedDataParallel) -> list[Sent]:
    """Register a hook on ``ddp`` that averages as DDP does; the returned list grows by an item for every bucket.

    DDP accepts one hook, so there must be no other. Call this before the first forward.
    """
    buckets: list[Sent] = []

    def average(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buckets.append(Sent(bucket.buffer(), bucket.is_last()))
        scaled = bucket.buffer().mul_(1 / dist.get_world_size())
        return dist.all_reduce(scaled, async_op=True).get_future().then(lambda future: future.value()[0])

    ddp.register_comm_hook(None, average)
    return buckets


CPU = torch.device("cpu")
JOIN_TIMEOUT = timedelta(seconds=30)  # time limit for all ranks to join
Trial = Mapping[str, Any]  # a trial as a dict, with the fields of `judge.Loop`


def train(answer: Callable[..., Any], trial: Trial, rank: int, device: torch.device) -> dict[str, Any]:
    """Call ``answer(model, data, epochs, batch, accumulation, rate, save)`` on this rank of a process group.

    The model lies on ``device``, the data on the CPU.

    Returns ``inputs`` (those of each forward with gradients), ``syncs`` (the number of backward passes that averaged
    gradients), ``logged`` (the answer's result, as plain numbers), ``saved`` (the arguments of ``save``, each a dict of
    arrays) and ``weights`` (the model's parameters at the end).
    """
    model, read, saved = _model(trial["weights"][rank]).to(device), [], []

    def record_inputs(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if torch.is_grad_enabled():
            read.append(inputs[0].detach().cpu().numpy().copy())

    def save(state: Mapping[str, torch.Tensor]) -> None:
        saved.append({name: tensor.detach().cpu().numpy().copy() for name, tensor in state.items()})

    model.register_forward_pre_hook(record_inputs)
    data = TensorDataset(torch.tensor(trial["x"]), torch.tensor(trial["y"]))
    settings = [trial[name] for name in ("epochs", "batch", "accumulation", "rate")]
    with _watched() as watches:
        logged = answer(model, data, *settings, save)
    if isinstance(logged, list | tuple):  # tensors of one element are losses too
        logged = [loss.item() if isinstance(loss, torch.Tensor) and loss.numel() == 1 else loss for loss in logged]
    weights = [parameter.detach().cpu().numpy().copy() for parameter in model.parameters()]
    syncs = sum(sent.last for sent in chain(*watches))
    return {"inputs": read, "syncs": syncs, "logged": logged, "saved": saved, "weights": weights}


def _accelerator() -> torch.device:
    """Join a group that serves the stand-in accelerator and return it, or the CPU where this torch cannot have it."""
    # This process must not have run a backward before: torch then knows its devices for good.
    return CPU if sim.missing() else sim.join()


def _model(weights: Sequence[Any]) -> nn.Sequential:
    (hidden, inputs), (outputs, _) = weights[0].shape, weights[2].shape
    model = nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs)).double()
    with torch.no_grad():
        for parameter, values in zip(model.parameters(), weights, strict=True):
            parameter.copy_(torch.tensor(values))
    return model


@contextmanager
def _watched() -> Iterator[list[list[Sent]]]:
    """Watch every DDP that is constructed in the block: an item of the list holds the buckets of one of them."""
    construct, watches = DistributedDataParallel.__init__, list[list[Sent]]()

    def construct_watched(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        watches.append(watch(self))

    DistributedDataParallel.__init__ = construct_watched
    try:
        yield watches
    finally:
        DistributedDataParallel.__init__ = construct


def train_alone(answer: Callable[..., Any], trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Call `train` for each trial in this process, in a world of one rank, which needs no launcher."""
    own_group = not dist.is_initialized()  # a notebook may have a group of one rank already
    if own_group:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        return [train(answer, trial, 0, CPU) for trial in trials]
    finally:
        if own_group and dist.is_initialized():
            dist.destroy_process_group()


def train_as_rank(
    answer: Callable[..., Any], trials: Sequence[Trial], rank: int, world: int, port: int
) -> list[dict[str, Any]]:
    """Call `train` for each trial, in a process that becomes a rank of a process group of this machine."""
    store = dist.TCPStore("127.0.0.1", port, world, rank == 0, JOIN_TIMEOUT)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    try:
        return train_on_this_rank(answer, trials, rank)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def train_on_this_rank(answer: Callable[..., Any], trials: Sequence[Trial], rank: int) -> list[dict[str, Any]]:
    """Call `train` for each trial on the stand-in accelerator, on a rank that is a process of a process group."""
    torch.set_num_threads(1)
    device = _accelerator()
    return [train(answer, trial, rank, device) for trial in trials]
