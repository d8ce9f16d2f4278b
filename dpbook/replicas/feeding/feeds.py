"""What all ranks read, batch by batch, as data: it can be inspected before anything is trained on it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import numpy as np

from dpbook.core import InvalidArgument, check_int, plural
from dpbook.replicas.array import Array


class EpochSampler(Protocol):
    """What `feed` asks of a sampler; dpbook's and torch's DistributedSampler both have it."""

    def set_epoch(self, epoch: int) -> None: ...

    def __iter__(self) -> Iterator[int]: ...


@dataclass(frozen=True)
class Feed:
    """Which examples every rank reads in every epoch, in local batches.

    Attributes:
        examples: number of examples in the data set.
        batch: examples in a local batch; the last one of an epoch may be smaller.
        orders: ``orders[epoch][rank]``, the examples (n,) that a rank reads, in their order.
        drop_last: whether a rank leaves out a last batch that is not full.
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
        """Yield, step by step, the examples that each rank reads; none for a rank that has run out of batches."""
        check_int("epoch", epoch, 0, self.epochs - 1)
        for step in range(int(self.steps[epoch].max())):
            part = slice(step * self.batch, (step + 1) * self.batch)
            enough = self.steps[epoch] > step
            yield [order[part] if has else order[:0] for order, has in zip(self.orders[epoch], enough, strict=True)]

    def distinct(self, epoch: int = 0) -> Array:
        """Return the number of different examples in each step's global batch, (steps,): world · batch at best."""
        return np.array([len(np.unique(np.concatenate(local))) for local in self.batches(epoch)])

    @property
    def times_read(self) -> Array:
        """How often each example is read in each epoch by all ranks together, (epochs, examples)."""
        return np.stack([self._count(epoch) for epoch in range(self.epochs)])

    @property
    def coverage(self) -> Array:
        """Share of the examples that are read in each epoch, (epochs,)."""
        share: Array = (self.times_read > 0).mean(axis=1)
        return share

    @property
    def reads(self) -> Array:
        """How often an example is read in each epoch on average, (epochs,): 1, but for what is padded or left out.

        Where it is about the number of ranks each of them reads everything for itself, and an epoch takes that many
        times the steps.
        """
        mean: Array = self.times_read.mean(axis=1)
        return mean

    @property
    def repeated_epochs(self) -> list[int]:
        """Epochs in which every rank reads the same in the same order as in the epoch before."""
        pairs = [zip(now, before, strict=True) for before, now in pairwise(self.orders)]
        return [k for k, ranks in enumerate(pairs, start=1) if all(np.array_equal(a, b) for a, b in ranks)]

    @property
    def hang(self) -> str | None:
        """Which rank waits for which in the first epoch that gives ranks different numbers of steps, or None.

        If something else is exchanged at the epoch's end, or it is the last one, the ranks hang there. Otherwise the
        next epoch's first all-reduce of the one is taken for the last all-reduce of the other, without a word.
        """
        for epoch, steps in enumerate(self.steps):
            if (fewest := int(steps.min())) < steps.max():
                done, waiting = np.flatnonzero(steps == fewest), np.flatnonzero(steps > fewest)
                return (
                    f"epoch {epoch}: {_ranks(waiting)} {'waits' if len(waiting) == 1 else 'wait'} in step {fewest + 1} "
                    f"for {_ranks(done)}, which had only {fewest} {'batch' if fewest == 1 else 'batches'}"
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
        if self.times_read[0].sum() >= self.examples + self.world:  # padding adds fewer than there are ranks
            lines[-1] += f", each {self.reads[0]:.1f} times on average"
        if self.steps[0].max():
            drawn = np.mean([sum(map(len, local)) for local in self.batches(0)])
            lines.append(f"  a step: {self.distinct().mean():.1f} different examples of {drawn:.1f} on average")
        if self.repeated_epochs:
            lines.append(f"  order: {plural(len(self.repeated_epochs), 'epoch')} in that of the epoch before")
        if self.hang:
            lines.append(f"  hang: {self.hang}")
        return "\n".join(lines)

    def _count(self, epoch: int) -> Array:
        lists = zip(self.orders[epoch], self.steps[epoch], strict=True)
        return np.bincount(np.concatenate([order[: n * self.batch] for order, n in lists]), minlength=self.examples)


def feed(
    samplers: Sequence[EpochSampler],
    examples: int,
    batch: int,
    epochs: int = 1,
    *,
    set_epoch: bool = True,
    drop_last: bool = False,
) -> Feed:
    """Let every rank read its sampler through ``epochs`` epochs in local batches of ``batch``.

    Args:
        samplers: one per rank.
        examples: number of examples in the data set.
        set_epoch: whether each sampler is told the epoch before it starts. Forgetting it is the usual mistake.
        drop_last: whether a rank leaves out a last batch that is not full.
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
        orders.append(tuple(_check_order(list(sampler), examples) for sampler in samplers))
    return Feed(examples, batch, tuple(orders), drop_last)


def _check_order(indices: list[int], examples: int) -> Array:
    order = np.array(indices) if indices else np.empty(0, np.int64)
    if order.ndim != 1 or order.dtype.kind not in "iu" or not ((order >= 0) & (order < examples)).all():
        raise InvalidArgument("samplers", indices, f"such that they yield integers from 0 to {examples - 1}")
    return order


def _ranks(ranks: Array) -> str:
    named = ", ".join(map(str, ranks[:3])) + (", …" if len(ranks) > 3 else "")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {named}"
