"""Feeding the replicas: the examples that each rank reads, and the weight of each rank in an average.

The ranks agree on their examples without a message. Each computes the same order of all examples from the same seed,
and takes its part by the same rule, `strided` or `contiguous`. `pad` and `drop` are applied first if the world does not
divide the examples. The default, ``strided(pad(order, world), world)``, and the variant with `drop` divide an order
exactly as torch's DistributedSampler does.

A mean over all examples is the mean of the ranks' means, each weighted by its number of examples. In a model of
sequences whose loss is a mean per token, it is weighted by tokens. The weights here are relative to an equal share:
they average to 1 and are exactly 1.0 if all shares are equal. So the usual sum and division by the world serve both
cases, and equal shares give the same bits as without weights.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from dpbook.collectives import chunk_bounds
from dpbook.core import InvalidArgument, check_int, plural, ranks_in_words
from dpbook.replicas.networks import Array

Fit: TypeAlias = Callable[[Array, int], Array]
Cut: TypeAlias = Callable[[Array, int], list[Array]]


def permutation(examples: int, seed: int = 0, epoch: int = 0) -> Array:
    """Return the order (examples,) of the examples in an epoch, which is the same on every rank and differs by epoch.

    It is drawn from child ``epoch`` of ``SeedSequence(seed)``. With the sum of the two as the seed, as in torch, epoch
    1 of seed 0 and epoch 0 of seed 1 would be equal.
    """
    check_int("examples", examples, 1)
    sequence = np.random.SeedSequence(check_int("seed", seed, 0), spawn_key=(check_int("epoch", epoch, 0),))
    return np.random.default_rng(sequence).permutation(examples)


def pad(order: ArrayLike, world: int) -> Array:
    """Repeat ``order`` (n,) from its start until ``world`` divides its length: none is lost, some are read twice."""
    order, world = _check_order(order), check_int("world", world, 1)
    return np.resize(order, -(-len(order) // world) * world)


def drop(order: ArrayLike, world: int) -> Array:
    """Cut the end of ``order`` (n,) so that ``world`` divides its length: no example is read twice, some are lost."""
    order, world = _check_order(order), check_int("world", world, 1)
    return order[: len(order) // world * world]


def keep(order: ArrayLike, world: int) -> Array:
    """Return ``order`` (n,) unchanged: no example is lost or read twice, and the ranks' parts differ by at most one."""
    check_int("world", world, 1)
    return _check_order(order)


def strided(order: ArrayLike, world: int) -> list[Array]:
    """Deal ``order`` (n,) out like cards: rank r reads elements r, r + world, r + 2 · world, …"""
    order, world = _check_order(order, empty=True), check_int("world", world, 1)
    return [order[rank::world] for rank in range(world)]


def contiguous(order: ArrayLike, world: int) -> list[Array]:
    """Cut ``order`` (n,) into ``world`` consecutive parts, of which some have one element more if need be."""
    order, world = _check_order(order, empty=True), check_int("world", world, 1)
    return np.split(order, chunk_bounds(len(order), world)[1:-1])


class Sampler:
    """Iterable over the examples that one rank reads in the current epoch.

    Every rank has its own sampler. All need the same settings, except ``rank``, and the same epochs. With ``shuffle``
    the order of the data set's ``examples`` is that of `permutation`. ``fit`` is `pad`, `drop` or `keep`, and ``cut``
    is `strided` or `contiguous`.
    """

    def __init__(
        self, examples: int, world: int, rank: int, *, shuffle: bool = True, seed: int = 0, fit: Fit = pad,
        cut: Cut = strided,
    ) -> None:  # fmt: skip
        self.examples = check_int("examples", examples, 1)
        self.world = check_int("world", world, 1)
        self.rank = check_int("rank", rank, 0, world - 1)
        self.seed = check_int("seed", seed, 0)
        for name, rule in (("fit", fit), ("cut", cut)):
            if not callable(rule):
                raise InvalidArgument(name, rule, "a function of an order and the world, such as pad or strided")
        self.shuffle, self.fit, self.cut = shuffle, fit, cut
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch. Without this call every epoch has the order of epoch 0."""
        self.epoch = check_int("epoch", epoch, 0)

    def indices(self) -> Array:
        """Return the indices of the examples that this rank reads in this epoch, in their order."""
        order = permutation(self.examples, self.seed, self.epoch) if self.shuffle else np.arange(self.examples)
        return self.cut(self.fit(order, self.world), self.world)[self.rank]

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices().tolist())

    def __len__(self) -> int:
        return len(self.indices())

    def __repr__(self) -> str:
        order = f"seed {self.seed}, epoch {self.epoch}" if self.shuffle else "in order"
        return f"Sampler(rank {self.rank} of {self.world}: {len(self):,} of {self.examples:,} examples, {order})"


def expected_distinct(examples: int, drawn: int, world: int) -> float:
    """Return the mean number of distinct examples that ``world`` ranks read if each draws ``drawn`` independently.

    A rank omits an example with probability 1 − drawn / examples, and all ranks omit it with that to the power of the
    world. The expectation of a sum needs no independence between examples.
    """
    n, k = check_int("examples", examples, 1), check_int("world", world, 1)
    missed = 1 - check_int("drawn", drawn, 0, n) / n
    return float(n * (1 - missed**k))


def _check_order(order: ArrayLike, empty: bool = False) -> Array:
    array = np.asarray(order)
    if array.ndim != 1 or not (empty or len(array)):
        raise InvalidArgument("order", f"array of shape {array.shape}", "one or more examples in one dimension")
    return array


class EpochSampler(Protocol):
    """Interface of a sampler for `feed`, which `Sampler` and torch's DistributedSampler have."""

    def set_epoch(self, epoch: int) -> None: ...

    def __iter__(self) -> Iterator[int]: ...


@dataclass(frozen=True)
class Feed:
    """The examples, of a data set of ``examples``, that every rank reads in every epoch, in batches of ``batch``.

    ``orders[epoch][rank]`` has the indices (n,) of the examples that a rank reads, in their order. The last batch of an
    epoch may be smaller; with ``drop_last`` a rank omits one that is not full.
    """

    examples: int
    batch: int
    orders: tuple[tuple[Array, ...], ...] = field(repr=False)
    drop_last: bool = False

    @property
    def world(self) -> int:
        return len(self.orders[0])

    @property
    def epochs(self) -> int:
        return len(self.orders)

    @property
    def steps(self) -> Array:
        """Number of batches that each rank has in each epoch, (epochs, world)."""
        lengths = np.array([[len(order) for order in ranks] for ranks in self.orders])
        return lengths // self.batch if self.drop_last else -(-lengths // self.batch)

    def batches(self, epoch: int) -> Iterator[list[Array]]:
        """Yield the examples that each rank reads in each step; none for a rank without further batches."""
        check_int("epoch", epoch, 0, self.epochs - 1)
        for step in range(int(self.steps[epoch].max())):
            part = slice(step * self.batch, (step + 1) * self.batch)
            running = self.steps[epoch] > step
            yield [order[part] if runs else order[:0] for order, runs in zip(self.orders[epoch], running, strict=True)]

    def distinct(self, epoch: int = 0) -> Array:
        """Return the number of distinct examples in each step's global batch, (steps,), at most world · batch."""
        return np.array([len(np.unique(np.concatenate(local))) for local in self.batches(epoch)])

    @property
    def times_read(self) -> Array:
        """Number of times that all ranks together read each example in each epoch, (epochs, examples)."""
        return np.stack([self._count(epoch) for epoch in range(self.epochs)])

    @property
    def coverage(self) -> Array:
        """Share of the examples that are read in each epoch, (epochs,)."""
        share: Array = (self.times_read > 0).mean(axis=1)
        return share

    @property
    def reads(self) -> Array:
        """Mean number of times that an example is read in each epoch, (epochs,): 1, except for padding and omissions.

        A value near the number of ranks means that every rank reads the whole data set.
        """
        mean: Array = self.times_read.mean(axis=1)
        return mean

    @property
    def repeated_epochs(self) -> list[int]:
        """Epochs in which every rank reads the same examples in the same order as in the epoch before."""
        pairs = [zip(now, before, strict=True) for before, now in pairwise(self.orders)]
        return [k for k, ranks in enumerate(pairs, start=1) if all(np.array_equal(a, b) for a, b in ranks)]

    @property
    def hang(self) -> str | None:
        """Description of the first epoch in which ranks have different numbers of steps, and wait for others; or None.

        If the ranks exchange anything else at the end of the epoch, or it is the last epoch, they hang there. Otherwise
        the first all-reduce of the next epoch on one rank silently matches the last all-reduce on another.
        """
        for epoch, steps in enumerate(self.steps):
            if (fewest := int(steps.min())) < steps.max():
                finished, waiting = np.flatnonzero(steps == fewest).tolist(), np.flatnonzero(steps > fewest).tolist()
                wait = "waits" if len(waiting) == 1 else "wait"
                had = f"had only {fewest} {'batch' if fewest == 1 else 'batches'}"
                return (
                    f"epoch {epoch}: {ranks_in_words(waiting)} {wait} in step {fewest + 1} "
                    f"for {ranks_in_words(finished)}, which {had}"
                )
        return None

    def __repr__(self) -> str:
        fewest, most = int(self.steps.min()), int(self.steps.max())
        steps = plural(most, "step") if fewest == most else f"{fewest} or {most} steps"
        ever = int((self.times_read > 0).any(axis=0).sum())
        lines = [
            f"Feed: {plural(self.world, 'rank')} × {self.batch}, {plural(self.epochs, 'epoch')} of {steps}",
            f"  examples: {ever:,} of {self.examples:,} read, {self.coverage[0]:.1%} in epoch 0",
        ]
        if self.times_read[0].sum() >= self.examples + self.world:  # padding adds fewer examples than there are ranks
            lines[-1] += f", each {self.reads[0]:.1f} times on average"
        if self.steps[0].max():
            drawn = np.mean([sum(map(len, local)) for local in self.batches(0)])
            lines.append(f"  a step: {self.distinct().mean():.1f} different examples of {drawn:.1f} on average")
        if self.repeated_epochs:
            lines.append(f"  order: the same as in the epoch before, in {plural(len(self.repeated_epochs), 'epoch')}")
        if self.hang:
            lines.append(f"  hang: {self.hang}")
        return "\n".join(lines)

    def _count(self, epoch: int) -> Array:
        lists = zip(self.orders[epoch], self.steps[epoch], strict=True)
        return np.bincount(np.concatenate([order[: n * self.batch] for order, n in lists]), minlength=self.examples)


def feed(
    samplers: Sequence[EpochSampler], examples: int, batch: int, epochs: int = 1, *, set_epoch: bool = True,
    drop_last: bool = False,
) -> Feed:  # fmt: skip
    """Return the examples that every rank reads from its sampler in ``epochs`` epochs, in local batches of ``batch``.

    ``set_epoch`` of each sampler is called before each epoch; omitting it is the usual mistake. With ``drop_last`` a
    rank omits a last batch that is not full.
    """
    check_int("examples", examples, 1)
    check_int("batch", batch, 1)
    if not samplers:
        raise InvalidArgument("samplers", samplers, "one per rank, at least one")
    orders = []
    for epoch in range(check_int("epochs", epochs, 1)):
        if set_epoch:
            for sampler in samplers:
                sampler.set_epoch(epoch)
        orders.append(tuple(_check_indices(list(sampler), examples) for sampler in samplers))
    return Feed(examples, batch, tuple(orders), drop_last)


def _check_indices(indices: list[int], examples: int) -> Array:
    order = np.array(indices) if indices else np.empty(0, np.int64)
    if order.ndim != 1 or order.dtype.kind not in "iu" or not ((order >= 0) & (order < examples)).all():
        raise InvalidArgument("samplers", indices, f"iterables of integers from 0 to {examples - 1}")
    return order


def rank_weights(counts: Sequence[int] | Array) -> Array:
    """Return each rank's weight relative to an equal share, world · n_r / Σn, as float64 (world,).

    ``counts`` are the examples (or tokens) of each rank's local mean; 0 for a rank without any.
    """
    numbers = np.array([check_int("counts", n, 0) for n in counts])
    if numbers.sum() == 0:
        raise InvalidArgument("counts", counts, "one number per rank, at least one of them positive")
    weights: Array = len(numbers) * numbers / numbers.sum()
    return weights


@dataclass(frozen=True)
class Means:
    """Averages of the ranks' local means, of shape () or (size,).

    ``plain`` gives the ranks equal weights, ``weighted`` is the mean over all examples (or tokens) of all ranks.
    """

    plain: Array
    weighted: Array

    @property
    def bias(self) -> Array:
        """Error of the plain mean, due to the correlation of the ranks' means with their sizes."""
        bias: Array = self.plain - self.weighted
        return bias

    def __repr__(self) -> str:
        if np.ndim(self.plain) == 0:
            return f"Means(plain {self.plain:.6g}, weighted {self.weighted:.6g}, bias {self.bias:.3g})"
        return f"Means({np.size(self.plain):,} elements, largest bias {np.abs(self.bias).max():.3g})"


def both_means(local_means: ArrayLike, counts: Sequence[int] | Array) -> Means:
    """Average the ranks' local means, losses (world,) or gradients (world, size), without weights and by ``counts``."""
    values = np.asarray(local_means)
    weights = rank_weights(counts)
    if values.ndim == 0 or len(values) != len(weights) or values.dtype.kind not in "fiu":
        raise InvalidArgument("local_means", f"{values.dtype} array of shape {values.shape}", "one per count, numbers")
    weighted = np.tensordot(weights, values, axes=1) / len(values)
    return Means(values.mean(axis=0), weighted)
