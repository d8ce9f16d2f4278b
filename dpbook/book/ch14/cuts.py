"""Layers cut into units, the cost of a fully sharded step of each cut, and the memory of a rank."""

import gc
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from dpbook.collectives import Link
from dpbook.core import InvalidArgument
from dpbook.overlap import ShardedStep, Sharding, Unit, Wires, simulate_sharded

RANKS = Sharding(3, shards=8)
LINK = Link(3e-4, 4e9)
Groups = Sequence[Sequence[int]]


class Part(NamedTuple):
    """A layer: seconds of forward and backward, number of parameters, bytes of activations."""

    forward: float
    backward: float
    parameters: int
    activations: int


def sample_layers(count: int, seed: int) -> list[Part]:
    """Layers of very different sizes."""
    draw = np.random.default_rng(seed)
    sizes = 100_000 * draw.integers(1, 20, count)
    forward = 3e-9 * sizes * draw.uniform(0.5, 1.5, count)
    activations = 100_000 * draw.integers(1, 10, count)
    return [Part(float(f), float(2 * f), int(p), int(a)) for f, p, a in zip(forward, sizes, activations, strict=True)]


def cut_step(layers: Sequence[Part], groups: Groups) -> ShardedStep:
    """The simulated step of layers cut into units: ZeRO-3 on 8 ranks, fp32 and Adam, one unit gathered ahead.

    Args:
        layers: in the order of the forward pass.
        groups: for each unit the indices of its layers; together 0, 1, 2, … in order.

    Raises:
        InvalidArgument: ``groups`` is no cut of the layers.
    """
    if [index for group in groups for index in group] != list(range(len(layers))) or not all(groups):
        raise InvalidArgument("groups", groups, f"lists of neighbours that hold 0 to {len(layers) - 1} in order")
    units = []
    for group in groups:
        forward, backward, parameters, activations = (
            sum(each) for each in zip(*(layers[i] for i in group), strict=True)
        )
        units.append(Unit(f"{group[0]}–{group[-1]}", forward, backward, parameters, activations=activations))
    return simulate_sharded(units, RANKS, Wires.rings(RANKS, LINK))


def allocated(step: Callable[[], object]) -> int:
    """Bytes at the peak of ``step`` beyond those before it, as torch's profiler reports allocations on the CPU."""
    from torch.profiler import ProfilerActivity, profile

    collects = gc.isenabled()
    gc.collect()
    gc.disable()  # what others have left would be given back meanwhile, and the peak look lower
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            step()
    finally:
        gc.enable() if collects else None
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())), default=0)
