"""Training of one small model under each of torch's communication hooks that send less, on real ranks.

Bytes are counted twice: those handed to all-reduces, and those that the process wrote.
"""
# No deferred annotations here: torch compares those of a communication hook with its own types.

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from dpbook.book.ch16.sending import SHAPES, Setting
from dpbook.ranks import sent, start
from dpbook.replicas import digits, split

CPU = torch.device("cpu")


@dataclass
class Trained:
    """Record of a training on one rank; lists have an item for each step.

    Attributes:
        losses: losses of the rank's own batch.
        payload: bytes handed to all-reduces.
        calls: number of all-reduces with any bytes.
        wire: bytes that the process wrote; NaN where the system does not count them.
        drift: largest difference between two ranks' values of one weight, after the step.
        accuracy: share of the 357 test images that this rank's weights classify correctly.
    """

    losses: list[float] = field(default_factory=list)
    payload: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    wire: list[float] = field(default_factory=list)
    drift: list[float] = field(default_factory=list)
    accuracy: float = 0.0


def train_all(world: int, settings: Mapping[str, Setting]) -> dict[str, list[Trained]]:
    """Train with each setting on ``world`` real ranks (gloo), started once; return every rank's record by setting."""
    ranks = start(_train_each, [(dict(settings),)] * world, timeout=180.0)
    return {name: [rank[name] for rank in ranks] for name in settings}


def _train_each(settings: Mapping[str, Setting]) -> dict[str, Trained]:
    torch.set_num_threads(1)
    return {name: train(setting) for name, setting in settings.items()}


def train(setting: Setting, device: torch.device = CPU) -> Trained:
    """Train the digits' model on this rank of a process group, from the same weights on every rank."""
    (images, labels), (held_out, answers) = _data()
    # One bucket: PowerSGD calls the second and third time from a thread of gloo, and with several buckets the ranks do
    # so in different orders and hang or abort (torch 2.13). A model above 1 MiB would need a `bucket_cap_mb`.
    ddp = DistributedDataParallel(model(setting.seed).to(device))
    optimizer, record = register(ddp, setting), Trained()

    def step(chosen: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss = cross_entropy(ddp(images[chosen].to(device)), labels[chosen].to(device))
        loss.backward()
        optimizer.step()
        record.losses.append(float(loss.detach()))

    draw = torch.Generator().manual_seed(1000 * setting.seed + dist.get_rank() + 1)  # each rank has its own examples
    for _ in range(setting.steps):
        chosen = torch.randint(len(images), (setting.batch,), generator=draw)
        with counted_all_reduces() as sizes:
            record.wire.append(sent(partial(step, chosen)))
        record.payload.append(sum(sizes))
        record.calls.append(sum(nbytes > 0 for nbytes in sizes))
        record.drift.append(drift(ddp))
    right = ddp.module(held_out.to(device)).argmax(1).cpu() == answers
    record.accuracy = float(right.float().mean())
    return record


@cache
def _data() -> list[list[torch.Tensor]]:
    return [[torch.tensor(array) for array in part] for part in split(*digits(np.float32))]


def model(seed: int) -> nn.Sequential:
    """Return a network of two hidden layers with tanh, of the shapes in `sending.SHAPES`."""
    torch.manual_seed(seed)
    first, second, last = (nn.Linear(shape[1], shape[0]) for shape in SHAPES if len(shape) == 2)
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), last)


def register(ddp: DistributedDataParallel, setting: Setting) -> torch.optim.Optimizer:
    """Register the hook of a setting on ``ddp`` and return the optimizer; nothing else of a training loop changes."""
    optimizer = torch.optim.SGD(ddp.parameters(), setting.lr)
    if setting.method == "powersgd":
        state = PowerSGDState(
            None, setting.rank, setting.begin, setting.least, setting.feedback, random_seed=setting.seed
        )
        ddp.register_comm_hook(state, powerSGD_hook)
        return optimizer
    if setting.method == "local":
        local = PostLocalSGDState(None, None, setting.begin, post_local_gradient_allreduce=False)
        ddp.register_comm_hook(local, post_localSGD_hook)
        return PostLocalSGDOptimizer(optimizer, PeriodicModelAverager(setting.every, setting.begin))
    casts = {"fp16": default_hooks.fp16_compress_hook, "bf16": unchecked_bf16_hook}
    ddp.register_comm_hook(None, casts.get(setting.method, default_hooks.allreduce_hook))
    return optimizer


def unchecked_bf16_hook(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Call torch's bf16 hook without DDP's check, which rejects it in builds without CUDA; gloo can sum bf16."""
    return default_hooks.bf16_compress_hook(group, bucket)


@contextmanager
def counted_all_reduces() -> Iterator[list[int]]:
    """Collect the bytes of every tensor that is handed to `dist.all_reduce` in the block.

    torch's hooks and averagers call it. A DDP without a hook all-reduces from C++, which is not counted.
    """
    sizes: list[int] = []
    all_reduce = dist.all_reduce

    def counting(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        sizes.append(tensor.numel() * tensor.element_size())
        return all_reduce(tensor, *args, **kwargs)

    with patch.object(dist, "all_reduce", counting):
        yield sizes


@torch.no_grad()  # type: ignore[untyped-decorator]
def drift(ddp: DistributedDataParallel) -> float:
    """Return the largest difference between two ranks' values of one weight."""
    least = torch.cat([parameter.flatten() for parameter in ddp.parameters()])
    most = least.clone()
    dist.all_reduce(least, dist.ReduceOp.MIN)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return float((most - least).max())
