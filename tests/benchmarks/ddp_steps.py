"""Steps of several wrappers in turn on the ranks of bench_ddp.py and real_link.py, each timed by the clock."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from dpbook.collectives import Link, gloo_ring, ring
from dpbook.collectives.pricing import closed_forms
from dpbook.ddp.emulated_link import SlowLink, slow
from dpbook.ddp.measurements import measure_layers
from dpbook.ddp.transport import over
from dpbook.ddp.wrappers import BucketedDDP, HookDDP, NaiveDDP
from dpbook.overlap import Plan, flat_plan, plan, simulate_step, tensors_of
from dpbook.ranks.messages import execute

MIB = 2**20
CAPS = (1, 2, 5, 10, 25)
CAP = 2


class FlatDDP(NaiveDDP):
    """One message of everything, when backward is over."""

    def first_plan(self, find_unused: bool) -> Plan:
        return flat_plan(self.tensors)


def mlp(depth: int, width: int) -> nn.Module:
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def gpt(width: int = 256, depth: int = 6) -> nn.Module:
    """A small GPT on bytes, 19.5 MB of parameters."""
    blocks = [nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True) for _ in range(depth)]
    return nn.Sequential(nn.Embedding(256, width), *blocks, nn.Linear(width, 256))


def vectors(batch: int, width: int) -> Callable[[nn.Module], torch.Tensor]:
    x, y = torch.randn(batch, width), torch.randint(0, 10, (batch,))
    return lambda model: F.cross_entropy(model(x), y)


def text(batch: int = 12, length: int = 64) -> Callable[[nn.Module], torch.Tensor]:
    x = torch.randint(0, 256, (batch, length))
    return lambda model: F.cross_entropy(model(x).flatten(0, 1), x.flatten())


MODELS = {
    "MLP 40 × 512": (lambda: mlp(40, 512), lambda: vectors(32, 512)),
    "400 layers × 32": (lambda: mlp(400, 32), lambda: vectors(32, 32)),
    "small GPT": (gpt, text),
}


def timed(model: nn.Module, loss: Callable[[nn.Module], torch.Tensor]) -> float:
    """Seconds of zero_grad, forward, backward and an SGD update, all ranks beginning together."""
    dist.barrier()
    begun = time.perf_counter()
    for p in model.parameters():
        p.grad = None
    loss(model).backward()
    with torch.no_grad():
        torch._foreach_add_(list(model.parameters()), [p.grad for p in model.parameters()], alpha=-1e-4)
    return time.perf_counter() - begun


def interleaved(models: dict[str, nn.Module], loss: Callable, repeats: int, warm: int = 3) -> dict[str, list[float]]:
    """Each model's times, one step of each in turn; the first ``warm`` rounds are dropped."""
    times: dict[str, list[float]] = {name: [] for name in models}
    for step in range(repeats + warm):
        for name, model in models.items():
            seconds = timed(model, loss)
            if step >= warm:
                times[name].append(seconds)
    return times


def against_torch(rank: int, repeats: int) -> dict[str, dict[str, list[float]]]:
    """Step times on this machine's loopback, for each model: torch's DDP, ours, and no sync at all."""
    torch.set_num_threads(1)
    found = {}
    for name, (make, batch) in MODELS.items():
        torch.manual_seed(rank)
        base, loss = make(), batch()
        models = {
            "torch": DistributedDataParallel(copy.deepcopy(base)),
            "bucketed": BucketedDDP(copy.deepcopy(base)),
            "local": base,
        }
        found[name] = interleaved(models, loss, repeats)
    return found


def over_a_schedule(rank: int, repeats: int) -> dict[str, list[float]]:
    """Step times of the small GPT, bucketed: gloo's own all-reduce, and its ring as a schedule that we carry out."""
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    base, loss = gpt(), text()
    models = {
        "gloo": BucketedDDP(copy.deepcopy(base)),
        "schedule": BucketedDDP(copy.deepcopy(base), all_reduce=over(gloo_ring)),
        "local": base,
    }
    return interleaved(models, loss, repeats)


def over_a_link(rank: int, repeats: int, link: Link | None) -> dict[str, list[float]]:
    """Step times of the small GPT at a cap of 2 MiB over an emulated ``link``, or over the real one (None)."""
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    base, loss = gpt(), text()
    sync = {} if link is None else {"all_reduce": slow(link)}
    torchs = DistributedDataParallel(copy.deepcopy(base), bucket_cap_mb=CAP)
    if link is not None:
        torchs.register_comm_hook(None, SlowLink(link).hook)
    models = {
        "torch": torchs,
        "bucketed": BucketedDDP(copy.deepcopy(base), cap=CAP * MIB, first=None, **sync),
        "hook": HookDDP(copy.deepcopy(base), **sync),
        "flat": FlatDDP(copy.deepcopy(base), **sync),
        "naive": NaiveDDP(copy.deepcopy(base), **sync),
        "local": base,
    }
    return interleaved(models, loss, repeats)


def predicted_and_measured(rank: int, repeats: int, link: Link) -> dict[int, dict[str, list[float]]]:
    """For each cap in MiB: the simulator's step times, from layers measured in turn with the steps, and the clock's."""
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    base, loss = gpt(), text()
    price = closed_forms.ring(dist.get_world_size(), link)
    models = {c: BucketedDDP(copy.deepcopy(base), cap=c * MIB, first=None, all_reduce=slow(link)) for c in CAPS}
    found: dict[int, dict[str, list[float]]] = {cap: {"predicted": [], "measured": []} for cap in CAPS}
    for step in range(repeats + 2):
        dist.barrier()
        layers = measure_layers(base, lambda: loss(base), 3)
        for cap, model in models.items():
            update = timed(base, loss)  # local: forward, backward and update
            seconds = timed(model, loss)
            local = sum(layer.forward + layer.backward for layer in layers)
            step_plan = plan(tensors_of(layers), cap * MIB, None)
            simulated = simulate_step(layers, step_plan, price, optimizer=max(0.0, update - local))
            if step >= 2:
                found[cap]["predicted"].append(simulated.duration)
                found[cap]["measured"].append(seconds)
    return found


def rings(rank: int, repeats: int, nbytes: int = 25_000_000) -> dict[str, list[float]]:
    """Seconds of one all-reduce: gloo's, and our ring by point-to-point messages."""
    torch.set_num_threads(1)
    buffer, schedule = torch.ones(nbytes // 4), ring(dist.get_world_size())
    calls = {"gloo": lambda: dist.all_reduce(buffer), "ring": lambda: execute(schedule, buffer)}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for step in range(repeats + 3):
        for name, call in calls.items():
            buffer.fill_(1)
            dist.barrier()
            begun = time.perf_counter()
            call()
            if step >= 3:
                times[name].append(time.perf_counter() - begun)
    return times
