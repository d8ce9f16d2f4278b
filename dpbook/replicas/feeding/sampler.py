"""Which rank reads which examples.

The ranks agree on that without a message: each computes the same order of all examples from the same seed, and takes
its own part of it by the same rule. `strided` and `contiguous` are two such rules; `pad` and `drop` come first where
the world does not divide the examples. The default, ``strided(pad(order, world), world)``, and the one with `drop` deal
an order out exactly as torch's DistributedSampler does.
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from dpbook.collectives import chunk_bounds
from dpbook.core import InvalidArgument, check_int
from dpbook.replicas.array import Array

Fit: TypeAlias = Callable[[Array, int], Array]
Cut: TypeAlias = Callable[[Array, int], list[Array]]


def permutation(examples: int, seed: int = 0, epoch: int = 0) -> Array:
    """Return the order (examples,) in which an epoch takes the examples: the same on every rank, another each epoch.

    It is drawn from child ``epoch`` of ``SeedSequence(seed)``. A sum of the two as the seed, which is torch's rule,
    would make epoch 1 of seed 0 and epoch 0 of seed 1 the same.
    """
    check_int("examples", examples, 1)
    sequence = np.random.SeedSequence(check_int("seed", seed, 0), spawn_key=(check_int("epoch", epoch, 0),))
    return np.random.default_rng(sequence).permutation(examples)


def pad(order: ArrayLike, world: int) -> Array:
    """Repeat ``order`` (n,) from its start until ``world`` divides its length: nothing is lost, some is read twice."""
    order, world = _check_order(order), check_int("world", world, 1)
    return np.resize(order, -(-len(order) // world) * world)


def drop(order: ArrayLike, world: int) -> Array:
    """Cut the end of ``order`` (n,) off so that ``world`` divides its length: nothing is read twice, some is lost."""
    order, world = _check_order(order), check_int("world", world, 1)
    return order[: len(order) // world * world]


def keep(order: ArrayLike, world: int) -> Array:
    """Leave ``order`` (n,) as it is: nothing is lost or read twice, and the ranks' parts differ by one."""
    check_int("world", world, 1)
    return _check_order(order)


def strided(order: ArrayLike, world: int) -> list[Array]:
    """Deal ``order`` (n,) out like cards: rank r reads elements r, r + world, r + 2 · world, …"""
    order, world = _check_order(order, empty=True), check_int("world", world, 1)
    return [order[rank::world] for rank in range(world)]


def contiguous(order: ArrayLike, world: int) -> list[Array]:
    """Cut ``order`` (n,) into ``world`` consecutive parts; where it does not divide, some ranks read one more."""
    order, world = _check_order(order, empty=True), check_int("world", world, 1)
    return np.split(order, chunk_bounds(len(order), world)[1:-1])


class Sampler:
    """One rank's reading list: what it iterates over in the current epoch.

    Every rank has its own sampler and must be given the same settings, apart from its rank, and the same epochs.

    Args:
        examples: number of examples in the data set.
        world, rank: how many ranks there are, and which one this is.
        shuffle: whether to take the examples in the order of `permutation`, or in their own.
        seed: of the order.
        fit: `pad`, `drop` or `keep`.
        cut: `strided` or `contiguous`.
    """

    def __init__(
        self,
        examples: int,
        world: int,
        rank: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        fit: Fit = pad,
        cut: Cut = strided,
    ) -> None:
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
        """Say which epoch comes next. Without it every epoch has the order of epoch 0."""
        self.epoch = check_int("epoch", epoch, 0)

    def indices(self) -> Array:
        """Return what this rank reads in this epoch, as integers in their order."""
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
    """Return how many different examples ``world`` ranks read on average if each draws ``drawn`` of them on its own.

    A rank leaves an example out with probability 1 − drawn / examples, and all ranks leave it out with that to the
    power of the world; the expectation of a sum needs no independence between examples.
    """
    n, k = check_int("examples", examples, 1), check_int("world", world, 1)
    missed = 1 - check_int("drawn", drawn, 0, n) / n
    return float(n * (1 - missed**k))


def _check_order(order: ArrayLike, empty: bool = False) -> Array:
    array = np.asarray(order)
    if array.ndim != 1 or not (empty or len(array)):
        raise InvalidArgument("order", f"array of shape {array.shape}", "one or more examples in one dimension")
    return array
