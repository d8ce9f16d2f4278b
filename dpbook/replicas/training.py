"""Training runs: the four phases over and over, or another method, and the record of a run."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

import numpy as np

from dpbook import collectives
from dpbook.core import Deadlock, InvalidArgument, check_int, check_type, plural
from dpbook.replicas.accumulation import Leftover, accumulated_gradients, groups
from dpbook.replicas.exactness import compare, drift
from dpbook.replicas.feeding import Feed, rank_weights
from dpbook.replicas.four_phases import AllReduce, Shard, check_all_reduce, shard, weighted_by
from dpbook.replicas.method import EXACT, Method, RankGroup, next_step
from dpbook.replicas.networks import Array, Model
from dpbook.replicas.optimizers import SGD, LearningRate, Optimizer


@dataclass(frozen=True)
class Run:
    """Record of a training run; NaN means not measured.

    Attributes:
        params: (world, size), the parameters of each replica after the last step.
        losses: (steps,), the loss of each step's global batch before its update.
        final_loss: loss over all of the data after the last update, at rank 0's parameters.
        drifts: (steps,), largest absolute difference between any two replicas' parameters after each update.
        gaps: (steps,), largest absolute difference between any rank's averaged gradient and the gradient of the
            whole global batch computed in one go at rank 0's parameters; NaN in a step that averaged no gradients.
        local_losses: (steps, world), the mean loss of each rank's own shard (0 for an empty one). Column 0 is what a
            program that logs on rank 0 without an all-reduce calls "the loss".
        sent: (steps, world), bytes that each rank sent in each step; NaN if they cannot be counted.
        rounds: (steps,), number of consecutive rounds of messages in each step.
    """

    params: Array = field(repr=False)
    losses: Array
    final_loss: float
    drifts: Array
    gaps: Array
    local_losses: Array = field(default_factory=lambda: np.empty((0, 0)), repr=False)
    sent: Array = field(default_factory=lambda: np.empty((0, 0)), repr=False)
    rounds: Array = field(default_factory=lambda: np.empty(0), repr=False)

    @property
    def world(self) -> int:
        return len(self.params)

    @property
    def drift(self) -> float:
        """Largest drift after any step; 0 means that the replicas were equal after every step."""
        return float(self.drifts.max())

    @property
    def gap(self) -> float:
        """Largest gap in any step."""
        return float(self.gaps.max())

    def __repr__(self) -> str:
        loss = f"loss {self.losses[0]:.6f} → {self.final_loss:.6f}"
        length = f"{plural(self.world, 'replica')}, {plural(len(self.losses), 'step')}"
        return f"Run({length}, {loss}, drift {self.drift:.3g}, gap {self.gap:.1g})"


METERS = ("loss", "drift", "gap")
"""Names of the measurements of every step; a gap costs as much as the step."""
UpdateShards: TypeAlias = tuple[Sequence[Sequence[Shard]], int]
"""Data of one update: ``micro_batches[m][rank]``, and the divisor of the sum of their gradients."""


def train(
    model: Model,
    data: Shard,
    world: int,
    all_reduce: AllReduce | None = None,
    *,
    method: Method = EXACT,
    optimizer: Callable[[float], Optimizer] = SGD,
    steps: int = 200,
    lr: float | LearningRate = 0.02,
    global_batch: int | None = None,
    sizes: Sequence[int] | None = None,
    weighted: bool = True,
    start: Array | None = None,
    seed: int = 0,
    meters: Collection[str] = METERS,
) -> Run:
    """Train ``world`` replicas of ``model``; a world of 1 is ordinary training on one process.

    Args:
        data: examples and targets; the model computes in the examples' dtype.
        all_reduce: the all-reduce of sums over all ranks, a ring by default. Some methods need none.
        method: training method, by default `Exact()`, the four phases. Those of `dpbook.replicas.inexact` give up some
            exactness.
        optimizer: makes one replica's optimizer from the learning rate, such as ``Adam`` or ``partial(SGD, …)``.
        lr: learning rate, or a function from the number of a step, from 0, to its learning rate, such as `warm_up`
            returns.
        global_batch: examples per step over all ranks. Every epoch shuffles the data, and drops the examples that do
            not fill a batch. By default all data, in order.
        sizes: examples of each rank in every step, which add up to the global batch. By default all ranks have the
            same number, and ``world`` must divide the global batch.
        weighted: whether gradients are weighted by ``sizes``. Without weights the gradient is biased unless all sizes
            are equal; then weights change nothing.
        start: each replica's initial parameters (world, size), of the examples' dtype, instead of drawn ones.
        seed: seed of the initial parameters, which every replica draws for itself, and of the shuffling.
        meters: measurements of every step: some of "loss", "drift", "gap". Others cost nothing and are NaN in the
            run.
    """
    check_int("steps", steps, 1)
    settings = _Settings(all_reduce, method, optimizer, lr, weighted, start, seed, meters)
    x, y = _pair(data)
    batches = islice(_batches(len(x), global_batch, seed), steps)
    updates = (([shard(x[batch], y[batch], world, sizes)], 1) for batch in batches)
    return _follow(model, (x, y), world, updates, settings)


def train_on(
    model: Model,
    data: Shard,
    fed: Feed,
    all_reduce: AllReduce | None = None,
    *,
    accumulation: int = 1,
    leftover: Leftover = "step",
    method: Method = EXACT,
    optimizer: Callable[[float], Optimizer] = SGD,
    lr: float | LearningRate = 0.02,
    weighted: bool = True,
    start: Array | None = None,
    seed: int = 0,
    meters: Collection[str] = METERS,
) -> Run:
    """Train one replica per rank of ``fed``, through all of its epochs; a step of the run is one update.

    Its other arguments and its result are those of `train`. Losses and gaps are those of all examples whose gradients
    go into an update.

    Args:
        accumulation: micro-batches of each rank that go into one update.
        leftover: handling of the last micro-batches of an epoch; see `Leftover`.
        weighted: whether ranks and micro-batches are weighted by their numbers of examples.

    Raises `Deadlock` if an epoch has different numbers of batches for different ranks.
    """
    settings = _Settings(all_reduce, method, optimizer, lr, weighted, start, seed, meters)
    x, y = _pair(data)
    check_type("fed", fed, Feed, "a Feed")
    if not len(x) == len(y) == fed.examples:
        raise InvalidArgument("data", (len(x), len(y)), f"{fed.examples} examples and targets, as the feed has")
    if fed.hang:
        raise Deadlock(fed.hang)
    updates = (
        ([[(x[indices], y[indices]) for indices in ranks] for ranks in group.micro_batches], group.divisor)
        for group in groups(fed, accumulation, leftover)
    )
    return _follow(model, (x, y), fed.world, updates, settings)


@dataclass(frozen=True)
class _Settings:
    """Settings that `train` and `train_on` share."""

    all_reduce: AllReduce | None
    method: Method
    optimizer: Callable[[float], Optimizer]
    lr: float | LearningRate
    weighted: bool
    start: Array | None
    seed: int
    meters: Collection[str]

    def __post_init__(self) -> None:
        check_int("seed", self.seed, 0)
        expected = "a function from the learning rate to an Optimizer, such as SGD"
        if not callable(self.optimizer):
            raise InvalidArgument("optimizer", self.optimizer, expected)
        check_type("method", self.method, Method, "a Method, such as Exact()")
        if isinstance(self.meters, str) or not set(self.meters) <= set(METERS):
            raise InvalidArgument("meters", self.meters, f"a collection of some of {', '.join(METERS)}")

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        return self.lr(step) if callable(self.lr) else self.lr


def _follow(model: Model, data: Shard, world: int, updates: Iterable[UpdateShards], settings: _Settings) -> Run:
    params = _initial(model, data[0].dtype, world, settings)
    all_reduce = collectives.ring(world) if settings.all_reduce is None else settings.all_reduce
    optimizers = [settings.optimizer(settings.rate(0)) for _ in range(world)]
    group = RankGroup(optimizers, all_reduce, getattr(model, "shapes", {}))
    if isinstance(all_reduce, collectives.Schedule):
        check_all_reduce(all_reduce, world)
    training = iter(settings.method.steps(params, group))
    meters = settings.meters
    losses, local_losses, drifts, gaps, sent, rounds = [], [], [], [], [group.sent], [group.rounds]
    for step, (micro_batches, divisor) in enumerate(updates):
        if callable(settings.lr):
            rate = settings.optimizer(settings.rate(step)).lr  # the constructor checks the rate and may scale it
            for optimizer in optimizers:
                optimizer.lr = rate
        read = list(zip(*micro_batches, strict=True))  # read[rank][m]
        counts = [sum(len(x) for x, _ in parts) for parts in read]
        local_losses.append(_losses(model, params, read) if "loss" in meters else [math.nan] * world)
        weights = rank_weights(counts)
        losses.append(float(np.mean(weights * local_losses[-1])))
        applied = weights if settings.weighted else np.ones(world)
        group.read(partial(_gradients, model, micro_batches, divisor, applied, settings.weighted), applied)
        before, (params, averaged) = params, next_step(training, params, settings.method)
        gaps.append(_gap(model, before[0], read, averaged) if "gap" in meters else math.nan)
        sent.append(group.sent)
        rounds.append(group.rounds)
        drifts.append(drift(params).largest if "drift" in meters else math.nan)
    if not losses:
        raise InvalidArgument("accumulation", "a run without updates", "at most the micro-batches of an epoch")
    final_loss = model.loss(params[0], *data)
    traffic = np.diff(sent, axis=0), np.diff(rounds)
    return Run(params, np.array(losses), final_loss, np.array(drifts), np.array(gaps), np.array(local_losses), *traffic)


def _gradients(
    model: Model, micro_batches: Sequence[Sequence[Shard]], divisor: int, weights: Array, weighted: bool,
    params: Array, parts: Sequence[int],
) -> Array:  # fmt: skip
    """Return the gradients of ``parts`` of a batch, at one row of ``params`` each, times the ranks' ``weights``."""
    chosen = [[shards[part] for part in parts] for shards in micro_batches]
    local = accumulated_gradients(model, params, chosen, divisor, weighted=weighted)
    return weighted_by(local, weights[list(parts)])


def _initial(model: Model, dtype: np.dtype[Any], world: int, settings: _Settings) -> Array:
    """Return each replica's parameters before the first step, (world, size)."""
    check_int("world", world, 1)
    if not (isinstance(getattr(model, "size", None), int) and callable(getattr(model, "gradient", None))):
        raise InvalidArgument("model", model, "a Model, such as MLP(16, 32)")
    if settings.start is None:
        return np.stack([model.init(np.random.default_rng(settings.seed), dtype) for _ in range(world)])
    start, shape = settings.start, (world, model.size)
    if not isinstance(start, np.ndarray) or start.shape != shape or start.dtype != dtype:
        raise InvalidArgument("start", getattr(start, "shape", start), f"one row per replica, {dtype} of shape {shape}")
    return start.copy()


def _losses(model: Model, params: Array, read: Sequence[Sequence[Shard]]) -> list[float]:
    """Return the mean loss of the examples that each rank read; 0 for a rank without examples."""
    joined = map(_join, read)
    return [model.loss(p, *data) if len(data[0]) else 0.0 for p, data in zip(params, joined, strict=True)]


def _gap(model: Model, params: Array, read: Sequence[Sequence[Shard]], averaged: Array | None) -> float:
    """Return the largest error of the averaged gradients against the gradient of the whole batch; NaN if None."""
    if averaged is None:
        return math.nan
    return compare(averaged, model.gradient(params, *_join([_join(parts) for parts in read]))).max_error


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


def _batches(examples: int, size: int | None, seed: int) -> Iterator[Array | slice]:
    """Yield the indices of each global batch without end."""
    if size is None:
        while True:
            yield slice(None)
    check_int("global_batch", size, 1, examples)
    stream = np.random.default_rng(np.random.SeedSequence(seed).spawn(1)[0])  # not that of the initial parameters
    while True:
        order = stream.permutation(examples)
        yield from order[: examples - examples % size].reshape(-1, size)
