"""The data-parallel loop: shard → local gradients → average → identical update.

Every replica has its own row of parameters and its own optimizer, and updates from the sum that it received itself:
if replicas stay equal here, it is because the all-reduce gave all of them the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from dpbook import collectives
from dpbook.errors import InvalidArgument, check_int
from dpbook.replicas.exactness import compare, drift
from dpbook.replicas.models import Array, Model
from dpbook.replicas.optim import SGD, Optimizer
from dpbook.replicas.weighting import rank_weights

Shard: TypeAlias = tuple[Array, Array]
AllReduce: TypeAlias = collectives.Schedule | Callable[[Array], Array]
"""A schedule, or a function from the ranks' buffers (world, size) to the sums (world, size) that each rank has."""
Reporter: TypeAlias = Callable[[int, float], None]


def shard(x: Array, y: Array, world: int, sizes: Sequence[int] | Array | None = None) -> list[Shard]:
    """Phase 1: cut a global batch into ``world`` consecutive shards, as views; rank r has the r-th.

    Args:
        x: examples, one per row.
        y: their targets, of the same length.
        sizes: examples of each rank. By default all have the same number, and ``world`` must divide the batch:
            shards of unequal size call for weights in `average`.
    """
    check_int("world", world, 1)
    if len(x) != len(y):
        raise InvalidArgument("y", f"{len(y)} targets", f"as long as x, {len(x)}")
    if len(x) == 0 or (sizes is None and len(x) % world):
        raise InvalidArgument("global batch", len(x), f"a multiple of the world, {world}, unless sizes are given")
    shares = [len(x) // world] * world if sizes is None else [check_int("sizes", size, 0) for size in sizes]
    if len(shares) != world or sum(shares) != len(x):
        raise InvalidArgument("sizes", shares, f"{world} numbers of examples that add up to {len(x)}")
    ends = np.cumsum(shares)[:-1]
    return list(zip(np.split(x, ends), np.split(y, ends), strict=True))


def local_gradients(model: Model, params: Array, shards: Sequence[Shard]) -> Array:
    """Phase 2: each rank's gradient of the mean loss over its own shard, at its own parameters.

    Args:
        params: (world, size), one row per replica.
        shards: one (x, y) per rank.

    Returns:
        Gradients (world, size) of the dtype of ``params``; 0 for a rank without examples, which still has to take
        part in the average.
    """
    if len(params) != len(shards):
        raise InvalidArgument("shards", f"{len(shards)} shards", f"one for each of {len(params)} replicas")
    ranks = zip(params, shards, strict=True)
    return np.stack([model.gradient(own, x, y) if len(x) else np.zeros_like(own) for own, (x, y) in ranks])


def average(gradients: Array, all_reduce: AllReduce, counts: Sequence[int] | Array | None = None) -> Array:
    """Phase 3: sum over the ranks by messages, then divide by the world; row r is computed from what rank r received.

    The mean of local means is the mean over all examples only if every rank has the same number of them. With
    ``counts`` each rank multiplies its gradient by its `rank_weights` first, which changes no bit where all are equal.

    Args:
        gradients: (world, size), one row per rank, floats.
        all_reduce: a schedule for that world, or a function that returns each rank's sum as an array (world, size).
        counts: number of examples (or tokens) that each rank's gradient is the mean over.
    """
    if not isinstance(gradients, np.ndarray) or gradients.ndim != 2 or gradients.dtype.kind != "f":
        raise InvalidArgument("gradients", gradients, "an array of floats (world, size)")
    if counts is not None:
        weights = rank_weights(counts)
        if len(weights) != len(gradients):
            raise InvalidArgument("counts", counts, f"one number for each of {len(gradients)} ranks")
        gradients = gradients * weights.astype(gradients.dtype)[:, None]
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
        losses: (steps,), the loss of each step's global batch before its update.
        final_loss: loss over all of the data after the last update, at rank 0's parameters.
        drifts: (steps,), largest absolute difference between any two replicas' parameters after each update.
        gaps: (steps,), largest absolute difference between any rank's averaged gradient and the gradient of the
            whole global batch computed in one go at rank 0's parameters.
        local_losses: (steps, world), the mean loss of each rank's own shard (0 for an empty one). Column 0 is what a
            program that logs on rank 0 without an all-reduce calls "the loss".
    """

    params: Array = field(repr=False)
    losses: Array
    final_loss: float
    drifts: Array
    gaps: Array
    local_losses: Array = field(default_factory=lambda: np.empty((0, 0)), repr=False)

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
    sizes: Sequence[int] | None = None,
    weighted: bool = True,
    start: Array | None = None,
    seed: int = 0,
    report: Reporter | None = None,
) -> Run:
    """Train ``world`` replicas of ``model``; a world of 1 is ordinary training on one process.

    Args:
        data: examples and targets; the model computes in the examples' dtype.
        all_reduce: how gradients are summed; a ring by default.
        optimizer: makes one replica's optimizer from the learning rate, such as ``Adam`` or ``partial(SGD, …)``.
        global_batch: examples per step over all ranks. Every epoch shuffles the data and drops what does not fill a
            batch. By default all data, in its order.
        sizes: examples of each rank in every step, which add up to the global batch. By default all ranks have the
            same number, and ``world`` must divide the global batch.
        weighted: whether gradients are weighted by ``sizes``. Without weights the gradient is biased, unless all are
            equal; then the weights change nothing.
        start: each replica's initial parameters (world, size), of the examples' dtype, instead of drawn ones.
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
    if start is None:
        params = np.stack([model.init(np.random.default_rng(seed), x.dtype) for _ in range(world)])
    else:
        params = _check_start(start, (world, model.size), x.dtype)
    optimizers = [optimizer(lr) for _ in range(world)]
    losses, local_losses, drifts, gaps = np.empty(steps), np.empty((steps, world)), np.empty(steps), np.empty(steps)
    for step, batch in zip(range(steps), _batches(len(x), global_batch, seed), strict=False):
        shards = shard(x[batch], y[batch], world, sizes)
        counts = [len(own_x) for own_x, _ in shards]
        ranks = zip(params, shards, strict=True)
        local_losses[step] = [model.loss(own, *local) if len(local[0]) else 0.0 for own, local in ranks]
        losses[step] = np.mean(rank_weights(counts) * local_losses[step])
        averaged = average(local_gradients(model, params, shards), all_reduce, counts if weighted else None)
        gaps[step] = compare(averaged, model.gradient(params[0], x[batch], y[batch])).max_error
        params = update(params, averaged, optimizers)
        drifts[step] = drift(params).largest
        if report:
            report(step + 1, float(losses[step]))
    return Run(params, losses, model.loss(params[0], x, y), drifts, gaps, local_losses)


def _check_start(start: Array, shape: tuple[int, int], dtype: np.dtype[Any]) -> Array:
    if not isinstance(start, np.ndarray) or start.shape != shape or start.dtype != dtype:
        raise InvalidArgument("start", getattr(start, "shape", start), f"one row per replica, {dtype} of shape {shape}")
    return start


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
