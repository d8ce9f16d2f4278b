"""The data-parallel loop: shard → local gradients → average → identical update.

Every replica has its own row of parameters and its own optimizer, and updates from the sum that it received itself:
if replicas stay equal here, it is because the all-reduce gave all of them the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from dpbook import collectives
from dpbook.errors import InvalidArgument, check_int
from dpbook.replicas.exactness import compare, drift
from dpbook.replicas.models import Array, Model
from dpbook.replicas.optim import SGD, Optimizer

Shard: TypeAlias = tuple[Array, Array]
AllReduce: TypeAlias = collectives.Schedule | Callable[[Array], Array]
"""A schedule, or a function from the ranks' buffers (world, size) to the sums (world, size) that each rank has."""
Reporter: TypeAlias = Callable[[int, float], None]


def shard(x: Array, y: Array, world: int) -> list[Shard]:
    """Phase 1: cut a global batch into ``world`` consecutive shards of equal size, as views; rank r has the r-th.

    Args:
        x: examples, one per row; ``world`` divides their number.
        y: their targets, of the same length.
    """
    check_int("world", world, 1)
    if len(x) != len(y):
        raise InvalidArgument("y", f"{len(y)} targets", f"as long as x, {len(x)}")
    if len(x) == 0 or len(x) % world:
        raise InvalidArgument("global batch", len(x), f"a multiple of the world, {world}: every shard has equal size")
    return list(zip(np.split(x, world), np.split(y, world), strict=True))


def local_gradients(model: Model, params: Array, shards: Sequence[Shard]) -> Array:
    """Phase 2: each rank's gradient of the mean loss over its own shard, at its own parameters.

    Args:
        params: (world, size), one row per replica.
        shards: one (x, y) per rank.

    Returns:
        Gradients (world, size) of the dtype of ``params``.
    """
    if len(params) != len(shards):
        raise InvalidArgument("shards", f"{len(shards)} shards", f"one for each of {len(params)} replicas")
    return np.stack([model.gradient(own, x, y) for own, (x, y) in zip(params, shards, strict=True)])


def average(gradients: Array, all_reduce: AllReduce) -> Array:
    """Phase 3: sum over the ranks by messages, then divide by the world; row r is computed from what rank r received.

    Args:
        gradients: (world, size), one row per rank, floats.
        all_reduce: a schedule for that world, or a function that returns each rank's sum as an array (world, size).
    """
    if not isinstance(gradients, np.ndarray) or gradients.ndim != 2 or gradients.dtype.kind != "f":
        raise InvalidArgument("gradients", gradients, "an array of floats (world, size)")
    if isinstance(all_reduce, collectives.Schedule):
        if all_reduce.world != len(gradients):
            raise InvalidArgument("all_reduce", all_reduce, f"a schedule for a world of {len(gradients)}")
        sums = np.asarray(collectives.simulate(all_reduce, gradients).buffers)
    elif callable(all_reduce):
        sums = all_reduce(gradients.copy())
        if not isinstance(sums, np.ndarray) or (sums.shape, sums.dtype) != (gradients.shape, gradients.dtype):
            raise InvalidArgument("all_reduce", sums, "a function that returns an array like the gradients")
    else:
        raise InvalidArgument("all_reduce", all_reduce, "a Schedule, or a function from buffers to sums")
    averaged: Array = sums / len(gradients)
    return averaged


def update(params: Array, averaged: Array, optimizers: Sequence[Optimizer]) -> Array:
    """Phase 4: each rank steps with its own optimizer from its own averaged gradient.

    Args:
        params, averaged: (world, size), one row per rank; neither is changed.
        optimizers: one per rank; each takes the gradient into its history.

    Returns:
        New parameters (world, size).
    """
    if not len(params) == len(averaged) == len(optimizers):
        found = (len(params), len(averaged), len(optimizers))
        raise InvalidArgument("params, averaged, optimizers", found, "of one length, the world")
    return np.stack([own.step(p, g) for own, p, g in zip(optimizers, params, averaged, strict=True)])


@dataclass(frozen=True)
class Run:
    """What a training run leaves behind.

    Attributes:
        params: (world, size), the parameters of each replica after the last step.
        losses: (steps,), the loss of each step's global batch before its update: the mean over the ranks' shards.
        final_loss: loss over all of the data after the last update, at rank 0's parameters.
        drifts: (steps,), largest absolute difference between any two replicas' parameters after each update.
        gaps: (steps,), largest absolute difference between any rank's averaged gradient and the gradient of the
            whole global batch computed in one go at rank 0's parameters.
    """

    params: Array = field(repr=False)
    losses: Array
    final_loss: float
    drifts: Array
    gaps: Array

    @property
    def world(self) -> int:
        return len(self.params)

    @property
    def drift(self) -> float:
        """Largest drift after any step: 0 says that the replicas never parted."""
        return float(self.drifts.max())

    @property
    def gap(self) -> float:
        """Largest gap in any step."""
        return float(self.gaps.max())

    def __repr__(self) -> str:
        replicas = "1 replica" if self.world == 1 else f"{self.world} replicas"
        steps = "1 step" if len(self.losses) == 1 else f"{len(self.losses)} steps"
        loss = f"loss {self.losses[0]:.6f} → {self.final_loss:.6f}"
        return f"Run({replicas}, {steps}, {loss}, drift {self.drift:.3g}, gap {self.gap:.1g})"


def train(
    model: Model,
    data: Shard,
    world: int,
    all_reduce: AllReduce | None = None,
    *,
    optimizer: Callable[[float], Optimizer] = SGD,
    steps: int = 200,
    lr: float = 0.02,
    global_batch: int | None = None,
    seed: int = 0,
    report: Reporter | None = None,
) -> Run:
    """Train ``world`` replicas of ``model``; a world of 1 is ordinary training on one process.

    Args:
        data: examples and targets; the model computes in the examples' dtype.
        all_reduce: how gradients are summed; a ring by default.
        optimizer: makes one replica's optimizer from the learning rate, such as ``Adam`` or ``partial(SGD, …)``.
        global_batch: examples per step over all ranks, a multiple of ``world``: each rank has global_batch / world.
            Every epoch shuffles the data and drops what does not fill a batch. By default all data, in its order.
        seed: of the initial parameters, which every replica draws for itself, and of the shuffling.
        report: called after each step with its number, from 1, and the loss of its batch.
    """
    check_int("steps", steps, 1)
    check_int("seed", seed, 0)
    check_int("world", world, 1)
    if not callable(optimizer):
        raise InvalidArgument("optimizer", optimizer, "a function from the learning rate to an Optimizer, such as SGD")
    x, y = (np.asarray(part) for part in data)
    all_reduce = collectives.ring(world) if all_reduce is None else all_reduce
    params = np.stack([model.init(np.random.default_rng(seed), x.dtype) for _ in range(world)])
    optimizers = [optimizer(lr) for _ in range(world)]
    losses, drifts, gaps = np.empty(steps), np.empty(steps), np.empty(steps)
    for step, batch in zip(range(steps), _batches(len(x), global_batch, seed), strict=False):
        shards = shard(x[batch], y[batch], world)
        losses[step] = np.mean([model.loss(own, *local) for own, local in zip(params, shards, strict=True)])
        averaged = average(local_gradients(model, params, shards), all_reduce)
        gaps[step] = compare(averaged, model.gradient(params[0], x[batch], y[batch])).max_error
        params = update(params, averaged, optimizers)
        drifts[step] = drift(params).largest
        if report:
            report(step + 1, float(losses[step]))
    return Run(params, losses, model.loss(params[0], x, y), drifts, gaps)


def _batches(examples: int, size: int | None, seed: int) -> Iterator[Array | slice]:
    """Yield without end what selects each global batch."""
    if size is None:
        while True:
            yield slice(None)
    check_int("global_batch", size, 1, examples)
    stream = np.random.default_rng(np.random.SeedSequence(seed).spawn(1)[0])  # apart from the initial parameters'
    while True:
        order = stream.permutation(examples)
        yield from order[: examples - examples % size].reshape(-1, size)
