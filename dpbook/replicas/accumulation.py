"""Gradient accumulation: several micro-batches, one after another, in place of one batch that does not fit.

The gradients of the micro-batches are added up in a buffer, each divided by the number of micro-batches that go into
one update; then the optimizer steps and the buffer is cleared. Only the update needs the other ranks.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from dpbook.core import InvalidArgument, check_int, check_one_of
from dpbook.replicas.array import Array
from dpbook.replicas.feeding.feeds import Feed
from dpbook.replicas.feeding.weighting import rank_weights
from dpbook.replicas.loop import Shard, local_gradients
from dpbook.replicas.models import Model

Leftover: TypeAlias = Literal["step", "drop", "carry"]
"""What becomes of an epoch's last micro-batches where they are fewer than one update takes: they get an update of their
own, with their own number as the divisor; they are not computed; or, by mistake, their gradients stay in the buffer."""


def effective_batch(per_device: int, world: int, accumulation: int = 1) -> int:
    """Return the number of examples in one update: per-device batch × world × accumulation."""
    sizes = {"per_device": per_device, "world": world, "accumulation": accumulation}
    return math.prod(check_int(name, size, 1) for name, size in sizes.items())


def accumulation_for(effective: int, per_device: int, world: int) -> int:
    """Return how many micro-batches of each rank make up an update of ``effective`` examples.

    Raises:
        InvalidArgument: per-device batch × world does not divide ``effective``.
    """
    at_once = effective_batch(per_device, world)
    if check_int("effective", effective, 1) % at_once:
        raise InvalidArgument("effective", effective, f"a multiple of {per_device} × {world} = {at_once}")
    return effective // at_once


@dataclass(frozen=True)
class Turn:
    """What to do with one micro-batch: add its mean gradient / ``divisor`` to the buffer; then perhaps update.

    Attributes:
        index: of the micro-batch in its epoch, from 0.
        divisor: number that the gradient (or the loss) is divided by.
        update: whether the optimizer steps now and the buffer is cleared.
    """

    index: int
    divisor: int
    update: bool


def accumulate(micro_batches: int, accumulation: int, leftover: Leftover = "step") -> Iterator[Turn]:
    """Yield an epoch's micro-batches in their turn, ``accumulation`` of them for each update."""
    n, every = check_int("micro_batches", micro_batches, 0), check_int("accumulation", accumulation, 1)
    check_one_of("leftover", leftover, get_args(Leftover))
    whole = n - n % every
    for index in range(whole if leftover == "drop" else n):
        divisor = every if index < whole or leftover == "carry" else n - whole
        yield Turn(index, divisor, (index + 1) % every == 0 or (leftover == "step" and index + 1 == n))


@dataclass(frozen=True)
class Group:
    """The micro-batches whose gradients go into one update.

    Attributes:
        micro_batches: ``micro_batches[m][rank]``, which examples a rank reads in micro-batch m, as indices.
        divisor: number that the sum of their gradients is divided by.
    """

    micro_batches: tuple[tuple[Array, ...], ...]
    divisor: int

    def __repr__(self) -> str:
        examples = sum(len(local) for ranks in self.micro_batches for local in ranks)
        return f"Group({len(self.micro_batches)} micro-batches, {examples} examples, divided by {self.divisor})"


def groups(fed: Feed, accumulation: int = 1, leftover: Leftover = "step") -> Iterator[Group]:
    """Yield every update of a run: the micro-batches of ``fed``, of all epochs, as `accumulate` groups them.

    With "carry" an epoch's first group begins with what the epoch before left in the buffer.
    """
    held: list[tuple[Array, ...]] = []
    for epoch in range(fed.epochs):
        batches = [tuple(local) for local in fed.batches(epoch)]
        for turn in accumulate(len(batches), accumulation, leftover):
            held.append(batches[turn.index])
            if turn.update:
                yield Group(tuple(held), turn.divisor)
                held = []


def accumulated_gradients(
    model: Model,
    params: Array,
    micro_batches: Sequence[Sequence[Shard]],
    divisor: int | None = None,
    *,
    weighted: bool = True,
) -> Array:
    """Add up each rank's gradients over its micro-batches, at parameters that do not change meanwhile.

    Args:
        params: (world, size), one row per replica.
        micro_batches: ``micro_batches[m][rank]``, an (x, y).
        divisor: what the sum is divided by; the number of micro-batches by default, which makes it a mean.
        weighted: whether each micro-batch counts by its number of examples. That changes no bit where they are equal.

    Returns:
        (world, size): with the default divisor the gradient of the mean loss over all of a rank's examples, within
        rounding; 0 for a rank without any.
    """
    if not micro_batches:
        raise InvalidArgument("micro_batches", micro_batches, "one or more, each with one (x, y) per rank")
    counts = [[len(x) for x, _ in shards] for shards in micro_batches]
    weights = np.ones_like(params, shape=(len(counts), len(params), 1))
    if weighted and len(counts) > 1:  # a single one counts as 1
        for rank, sizes in enumerate(zip(*counts, strict=True)):
            weights[:, rank, 0] = rank_weights(sizes) if any(sizes) else 0
    parts = (
        weight * local_gradients(model, params, shards) for weight, shards in zip(weights, micro_batches, strict=True)
    )
    total = next(parts)
    for part in parts:
        total = total + part
    mean: Array = total / check_int("divisor", len(counts) if divisor is None else divisor, 1)
    return mean
