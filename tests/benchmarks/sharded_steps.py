"""Steps of fully sharded models, ours and torch's, on the ranks of bench_sharded.py, timed and weighed."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.profiler import ProfilerActivity, profile

from dpbook import collectives
from dpbook.collectives import Link
from dpbook.ddp import BucketedDDP, FullySharded, SlowLink, measure_layers, over_half
from dpbook.overlap import (
    Allocation,
    MemoryCurve,
    ShardedStep,
    Sharding,
    Sizes,
    Unit,
    Wires,
    simulate_sharded,
    units_of,
)
from tests.benchmarks.ddp_steps import MIB, gpt, interleaved, text
from tests.ddp.unit_memory import measure_memory

LATENCY = 1e-4
UNITS = 6
SECONDS = 0.9
"""Of a step that computes by waiting, and of its communication too."""


def blocks(module: nn.Module) -> list[nn.Module]:
    return [layer for layer in module if isinstance(layer, nn.TransformerEncoderLayer)]


def ours(base: nn.Module, **options: object) -> FullySharded:
    module = copy.deepcopy(base)
    return FullySharded(module, units=blocks(module), **options)


def torchs(base: nn.Module, **options: object) -> nn.Module:
    module = copy.deepcopy(base)
    for block in blocks(module):
        fully_shard(block, **options)
    return fully_shard(module, **options)


def small_gpt() -> tuple[nn.Module, object]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return gpt(), text(8)


def steps(rank: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of a step on this machine's loopback."""
    base, loss = small_gpt()
    halves = {"all_gather": over_half(collectives.all_gather), "reduce_scatter": over_half(collectives.reduce_scatter)}
    models = {
        "torch": torchs(base), "torch, kept": torchs(base, reshard_after_forward=False), "ours": ours(base),
        "kept": ours(base, reshard_after_forward=False), "schedules": ours(base, **halves), "ddp": BucketedDDP(base),
    }  # fmt: skip
    return interleaved(models, loss, repeats)


def over_a_link(rank: int, repeats: int) -> dict[str, list[float]]:
    """The same over an emulated link on which the three halves of a step take as long as its computation."""
    base, loss = small_gpt()
    local = copy.deepcopy(base)
    mine = sorted(interleaved({"local": local}, loss, 5)["local"])[2]
    seconds = torch.tensor([mine])
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    world, nbytes = dist.get_world_size(), sum(p.nbytes for p in base.parameters())
    link = Link(LATENCY, 3 * (world - 1) / world * nbytes / float(seconds))
    ends = {depth: SlowLink(link) for depth in (0, 1, 2)}
    models = {
        f"prefetch {depth}": ours(base, prefetch=depth, all_gather=end.all_gather, reduce_scatter=end.reduce_scatter)
        for depth, end in ends.items()
    }
    return interleaved(models | {"local": local}, loss, repeats)


class Nap(torch.autograd.Function):
    """Computation that needs no core, as on an accelerator: so many seconds in forward, twice as many in backward."""

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(2 * ctx.seconds)
        return gradient, None


class Napping(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Nap.apply(super().forward(x), SECONDS / 3 / UNITS)


def napping(rank: int, repeats: int) -> dict[int, dict[str, list[float]]]:
    """For each depth of prefetch: measured and simulated seconds of a step whose computation needs no core."""
    torch.set_num_threads(1)
    base = nn.Sequential(*[Napping(300, 300, bias=False) for _ in range(UNITS)])
    nbytes, world = sum(p.nbytes for p in base.parameters()), dist.get_world_size()
    link = Link(LATENCY, 3 * (world - 1) / world * nbytes / SECONDS)
    units = [Unit(str(k), SECONDS / 3 / UNITS, 2 * SECONDS / 3 / UNITS, nbytes // 4 // UNITS) for k in range(UNITS)]
    found = {}
    for depth in (0, 1, 2):
        end, module = SlowLink(link), copy.deepcopy(base)
        model = FullySharded(
            module, units=list(module), prefetch=depth, all_gather=end.all_gather, reduce_scatter=end.reduce_scatter
        )
        loss = lambda model: model(torch.ones(1, 300)).sum()  # noqa: E731
        measured = interleaved({"model": model}, loss, repeats, warm=1)["model"]
        how = Sharding(3, world, prefetch=depth)
        simulated = simulate_sharded(units, how, Wires.rings(how, link))
        found[depth] = {"measured": measured, "simulated": [simulated.duration] * len(measured)}
    return found


def peaks(rank: int, repeats: int) -> dict[str, list[float]]:
    """MiB at the peak of a step of AdamW beyond what is there before the model, as torch's allocator tells it."""
    base, loss = small_gpt()
    found: dict[str, list[float]] = {}
    for name, make in {"torch": torchs, "ours": ours, "no prefetch": lambda b: ours(b, prefetch=0)}.items():

        def two_steps(make: Callable = make) -> None:
            model = make(base)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            for _ in range(2):
                optimizer.zero_grad()
                loss(model).backward()
                optimizer.step()

        held = allocated(two_steps)
        found[name] = [max(held[len(held) // 2 :]) / MIB]  # from the middle on: the model is made before
    return found


def allocated(work: Callable[[], None]) -> list[int]:
    """Bytes after every change, as torch's allocator tells them."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    changes = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    return list(itertools.accumulate(e.nbytes() for e in sorted(changes, key=lambda e: e.start_ns())))


def foreseen(rank: int, repeats: int) -> dict[int, dict[str, list[float]]]:
    """For each depth of prefetch: measured and simulated MiB at the peak of forward and backward over a slow link.

    Shards, which both keep, are counted. A buffer that a thread of gloo's gives back may be missed: the least is it.
    """
    base, loss = small_gpt()
    names = [name for name, layer in base.named_children() if layer in blocks(base)]
    layers = measure_layers(base, lambda: loss(base), 3)
    units = units_of(layers, names, **measure_memory(base, lambda: loss(base), names))
    world, nbytes = dist.get_world_size(), sum(p.nbytes for p in base.parameters())
    link, found = Link(LATENCY, nbytes / sum(layer.forward for layer in layers)), {}
    for depth in (0, 1, 2):
        end = SlowLink(link)
        model = ours(base, prefetch=depth, all_gather=end.all_gather, reduce_scatter=end.reduce_scatter)
        loss(model).backward()
        peaks = []
        for _ in range(max(3, repeats)):
            model.zero_grad()
            peaks.append(max(allocated(lambda model=model: loss(model).backward())) + nbytes / world)
        how = Sharding(3, world, prefetch=depth)
        simulated = peak_with_copies(simulate_sharded(units, how, Wires.rings(how, link), sizes=Sizes(optimizer=0)))
        found[depth] = {"measured": [min(peaks) / MIB], "simulated": [simulated / MIB]}
    return found


def peak_with_copies(step: ShardedStep) -> int:
    """Return the peak in bytes if each collective works on a copy of its buffer, as gloo's halves of an all-reduce do.

    The copies count as gathered weights; only the sum matters here.
    """
    operations = zip(step.operations, step.starts, step.ends, strict=True)
    copies = [
        Allocation("gathered", operation.unit, operation.nbytes, start, end)
        for operation, start, end in operations
        if operation.lane == "communication"
    ]
    return MemoryCurve((*step.memory.allocations, *copies), step.duration).peak
