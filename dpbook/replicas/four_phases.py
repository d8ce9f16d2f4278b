"""The data-parallel loop: shard → local gradients → average → identical update.

Every replica has its own row of parameters and its own optimizer, and updates from the sum that it received itself. If
replicas stay equal, that is because the all-reduce gave all of them the same bits.

`undivided` shows the forgotten division by the world. N times the gradient acts as N times the learning rate in SGD and
momentum, whose decoupled weight decay is not multiplied. Adam and AdamW hide the fault: they divide by the size of the
gradients, so that a factor cancels except for ε: N times the gradient with ε gives the steps of one with ε / N.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from dpbook import collectives
from dpbook.collectives.schedule import check_schedule
from dpbook.core import InvalidArgument, check_int, plural
from dpbook.replicas.feeding import rank_weights
from dpbook.replicas.networks import Array, Model
from dpbook.replicas.optimizers import Optimizer

Shard: TypeAlias = tuple[Array, Array]
AllReduce: TypeAlias = collectives.Schedule | Callable[[Array], Array]
"""A schedule, or a function from the ranks' buffers (world, size) to the sums (world, size) on each rank."""


def shard(x: Array, y: Array, world: int, sizes: Sequence[int] | Array | None = None) -> list[Shard]:
    """Cut a global batch, ``x`` with one example per row, into ``world`` consecutive shards, as views: phase 1.

    ``sizes`` are the examples of each rank. By default all have the same number, and ``world`` must divide the batch.
    Shards of unequal size need weights in `average`.
    """
    check_int("world", world, 1)
    if len(x) != len(y):
        raise InvalidArgument("y", plural(len(y), "target"), f"as long as x, {len(x)}")
    if len(x) == 0 or (sizes is None and len(x) % world):
        raise InvalidArgument("global batch", len(x), f"a multiple of the world, {world}, unless sizes are given")
    shares = [len(x) // world] * world if sizes is None else [check_int("sizes", size, 0) for size in sizes]
    if len(shares) != world or sum(shares) != len(x):
        raise InvalidArgument("sizes", shares, f"{plural(world, 'number')} of examples that add up to {len(x)}")
    ends = np.cumsum(shares)[:-1]
    return list(zip(np.split(x, ends), np.split(y, ends), strict=True))


def local_gradients(model: Model, params: Array, shards: Sequence[Shard]) -> Array:
    """Return each rank's gradient of the mean loss over its shard, at its own parameters. This is phase 2.

    ``params`` and the gradients are (world, size), one row per replica; ``shards`` are one (x, y) per rank. A rank
    without examples, which still takes part in the average, has the gradient 0.
    """
    if len(params) != len(shards):
        expected = f"one for each of {plural(len(params), 'replica')}"
        raise InvalidArgument("shards", plural(len(shards), "shard"), expected)
    ranks = zip(params, shards, strict=True)
    return np.stack([model.gradient(row, x, y) if len(x) else np.zeros_like(row) for row, (x, y) in ranks])


def average(gradients: Array, all_reduce: AllReduce, counts: Sequence[int] | Array | None = None) -> Array:
    """Sum over the ranks by messages, then divide by the world. This is phase 3.

    Row r of the result is computed from the messages that rank r received. The mean of local means is the mean over all
    examples only if every rank has the same number of them. With ``counts``, the examples (or tokens) in the mean of
    each rank, it first multiplies its gradient by its weight from `rank_weights`; that changes no bit if all counts are
    equal. ``gradients`` are floats (world, size). ``all_reduce`` is the schedule of an all-reduce for this world, or a
    function that returns the sums on all ranks as an array (world, size).
    """
    if not isinstance(gradients, np.ndarray) or gradients.ndim != 2 or gradients.dtype.kind != "f":
        raise InvalidArgument("gradients", gradients, "an array of floats (world, size)")
    if counts is not None:
        gradients = weighted_by(gradients, rank_weights(counts))
    if isinstance(all_reduce, collectives.Schedule):
        check_all_reduce(all_reduce, len(gradients))
        sums = np.asarray(collectives.simulate(all_reduce, gradients).buffers)
    elif callable(all_reduce):
        sums = all_reduce(gradients.copy())
        if not isinstance(sums, np.ndarray) or (sums.shape, sums.dtype) != (gradients.shape, gradients.dtype):
            raise InvalidArgument("all_reduce", sums, "a function that returns an array of the gradients' shape")
    else:
        raise InvalidArgument("all_reduce", all_reduce, "a Schedule, or a function from buffers to sums")
    averaged: Array = sums / len(gradients)
    return averaged


def check_all_reduce(schedule: collectives.Schedule, world: int) -> None:
    """Raise `InvalidArgument` unless ``schedule`` is an all-reduce for ``world`` ranks."""
    if schedule.world != world:
        raise InvalidArgument("all_reduce", schedule, f"a schedule for a world of {world}")
    if not schedule.is_all_reduce:
        expected = "a schedule that leads from partial to complete on every rank, an all-reduce"
        raise InvalidArgument("all_reduce", schedule, expected)


def weighted_by(gradients: Array, weights: Array) -> Array:
    """Multiply each rank's gradient, a row of (world, size), by its weight (see `rank_weights`) in the same dtype."""
    if len(weights) != len(gradients):
        expected = f"one for each of {plural(len(gradients), 'rank')}"
        raise InvalidArgument("counts", plural(len(weights), "number"), expected)
    weighted: Array = gradients * weights.astype(gradients.dtype)[:, None]
    return weighted


def update(params: Array, averaged: Array, optimizers: Sequence[Optimizer]) -> Array:
    """Step each rank with its own optimizer from its own averaged gradient. This is phase 4.

    ``params``, ``averaged`` and the new parameters are (world, size), one row per rank; neither argument is changed.
    Each optimizer adds the gradient to its history.
    """
    if not len(params) == len(averaged) == len(optimizers):
        lengths = (len(params), len(averaged), len(optimizers))
        raise InvalidArgument("params, averaged, optimizers", lengths, "of one length, the world")
    return np.stack([optimizer.step(p, g) for optimizer, p, g in zip(optimizers, params, averaged, strict=True)])


def undivided(schedule: collectives.Schedule) -> Callable[[Array], Array]:
    """Return an all-reduce whose result is the plain sum after the usual division, as if that were forgotten."""
    check_schedule(schedule)

    def all_reduce(buffers: Array) -> Array:
        return np.asarray(collectives.simulate(schedule, buffers).buffers) * len(buffers)

    return all_reduce
