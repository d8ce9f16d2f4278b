"""Training runs: the four phases over and over, and a record of what happened."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeAlias

import numpy as np

from dpbook import collectives
from dpbook.errors import Deadlock, InvalidArgument, check_int
from dpbook.replicas.accumulation import Leftover, accumulated_gradients, groups
from dpbook.replicas.array import Array
from dpbook.replicas.exactness import compare, drift
from dpbook.replicas.feeding import Feed
from dpbook.replicas.learning_rate import LearningRate
from dpbook.replicas.loop import AllReduce, Shard, average, shard, update
from dpbook.replicas.models import Model
from dpbook.replicas.optim import SGD, Optimizer
from dpbook.replicas.run import Run
from dpbook.replicas.weighting import rank_weights

Reporter: TypeAlias = Callable[[int, float], None]
Update: TypeAlias = tuple[Sequence[Sequence[Shard]], int]
"""What one update is computed from: ``micro_batches[m][rank]``, and the divisor of the sum of their gradients."""


def train(
    model: Model,
    data: Shard,
    world: int,
    all_reduce: AllReduce | None = None,
    *,
    optimizer: Callable[[float], Optimizer] = SGD,
    steps: int = 200,
    lr: float | LearningRate = 0.02,
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
        lr: learning rate, or a function from the step, from 0, to that of the step, such as `warm_up`.
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
    x, y = _pair(data)
    batches = islice(_batches(len(x), global_batch, seed), steps)
    updates = (([shard(x[batch], y[batch], world, sizes)], 1) for batch in batches)
    return _follow(model, (x, y), world, updates, all_reduce, optimizer, lr, weighted, start, seed, report)


def train_on(
    model: Model,
    data: Shard,
    fed: Feed,
    all_reduce: AllReduce | None = None,
    *,
    accumulation: int = 1,
    leftover: Leftover = "step",
    optimizer: Callable[[float], Optimizer] = SGD,
    lr: float | LearningRate = 0.02,
    weighted: bool = True,
    start: Array | None = None,
    seed: int = 0,
    report: Reporter | None = None,
) -> Run:
    """Train one replica per rank of ``fed``, through all of its epochs; a step of the run is one update.

    In the other arguments and in what it returns it is like `train`. Losses and gaps are those of all examples whose
    gradients go into an update.

    Args:
        accumulation: micro-batches of each rank that go into one update.
        leftover: what becomes of those that are left over at an epoch's end; see `Leftover`.
        weighted: whether ranks and micro-batches count by their numbers of examples.

    Raises:
        Deadlock: an epoch has different numbers of batches for different ranks.
    """
    check_int("seed", seed, 0)
    x, y = _pair(data)
    if not isinstance(fed, Feed):
        raise InvalidArgument("fed", fed, "a Feed")
    if not len(x) == len(y) == fed.examples:
        raise InvalidArgument("data", (len(x), len(y)), f"{fed.examples} examples and targets, as the feed has")
    if fed.hang:
        raise Deadlock(fed.hang)
    updates = (
        ([[(x[own], y[own]) for own in ranks] for ranks in group.micro_batches], group.divisor)
        for group in groups(fed, accumulation, leftover)
    )
    return _follow(model, (x, y), fed.world, updates, all_reduce, optimizer, lr, weighted, start, seed, report)


def _follow(
    model: Model,
    data: Shard,
    world: int,
    updates: Iterable[Update],
    all_reduce: AllReduce | None,
    optimizer: Callable[[float], Optimizer],
    lr: float | LearningRate,
    weighted: bool,
    start: Array | None,
    seed: int,
    report: Reporter | None,
) -> Run:
    check_int("world", world, 1)
    if not (isinstance(getattr(model, "size", None), int) and callable(getattr(model, "gradient", None))):
        raise InvalidArgument("model", model, "a Model, such as MLP(16, 32)")
    if not callable(optimizer):
        raise InvalidArgument("optimizer", optimizer, "a function from the learning rate to an Optimizer, such as SGD")
    all_reduce = collectives.ring(world) if all_reduce is None else all_reduce
    if start is None:
        params = np.stack([model.init(np.random.default_rng(seed), data[0].dtype) for _ in range(world)])
    else:
        params = _check_start(start, (world, model.size), data[0].dtype)
    optimizers = [optimizer(lr(0) if callable(lr) else lr) for _ in range(world)]
    losses, local_losses, drifts, gaps = [], [], [], []
    for step, (micro_batches, divisor) in enumerate(updates):
        if callable(lr):
            now = optimizer(lr(step)).lr  # which may have scaled and must have checked it
            for own in optimizers:
                own.lr = now
        read = [_join(parts) for parts in zip(*micro_batches, strict=True)]
        counts = [len(x) for x, _ in read]
        local_losses.append([model.loss(p, *own) if n else 0.0 for p, own, n in zip(params, read, counts, strict=True)])
        losses.append(float(np.mean(rank_weights(counts) * local_losses[-1])))
        local = accumulated_gradients(model, params, micro_batches, divisor, weighted=weighted)
        averaged = average(local, all_reduce, counts if weighted else None)
        gaps.append(compare(averaged, model.gradient(params[0], *_join(read))).max_error)
        params = update(params, averaged, optimizers)
        drifts.append(drift(params).largest)
        if report:
            report(step + 1, losses[-1])
    if not losses:
        raise InvalidArgument("accumulation", "no update at all", "at most the number of micro-batches in an epoch")
    final_loss = model.loss(params[0], *data)
    return Run(params, np.array(losses), final_loss, np.array(drifts), np.array(gaps), np.array(local_losses))


def _join(parts: Sequence[Shard]) -> Shard:
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def _pair(data: Shard) -> Shard:
    expected = "a pair of arrays, examples and targets"
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise InvalidArgument("data", data, expected)
    x, y = map(np.asarray, data)
    if x.ndim == 0 or y.ndim == 0:
        raise InvalidArgument("data", data, expected)
    return x, y


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
