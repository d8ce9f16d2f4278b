"""Gradient accumulation: several micro-batches, one after another, replace one batch that does not fit into memory.

The gradients of the micro-batches are added up in a buffer, each divided by the number of micro-batches in one update.
Then the optimizer steps, and the buffer is cleared. Only the update needs the other ranks.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from dpbook.core import InvalidArgument, check_int, check_one_of
from dpbook.replicas.feeding import Feed, rank_weights
from dpbook.replicas.four_phases import Shard, local_gradients
from dpbook.replicas.networks import Array, Model

Leftover: TypeAlias = Literal["step", "drop", "carry"]
"""Handling of the last micro-batches of an epoch if they are fewer than one update takes. "step": they get an update,
with their number as the divisor. "drop": they are not computed. "carry", a mistake: their gradients stay in the
buffer."""


def effective_batch(per_device: int, world: int, accumulation: int = 1) -> int:
    """Return the number of examples in one update: per-device batch × world × accumulation."""
    sizes = {"per_device": per_device, "world": world, "accumulation": accumulation}
    return math.prod(check_int(name, size, 1) for name, size in sizes.items())


def accumulation_for(effective: int, per_device: int, world: int) -> int:
    """Return the number of micro-batches of each rank in an update of ``effective`` examples.

    Raises `InvalidArgument` unless per-device batch × world divides ``effective``.
    """
    at_once = effective_batch(per_device, world)
    if check_int("effective", effective, 1) % at_once:
        raise InvalidArgument("effective", effective, f"a multiple of {per_device} × {world} = {at_once}")
    return effective // at_once


@dataclass(frozen=True)
class MicroBatch:
    """Micro-batch number ``index`` of an epoch, from 0, whose mean gradient / ``divisor`` is added to the buffer.

    With ``update`` the optimizer then steps, and the buffer is cleared.
    """

    index: int
    divisor: int
    update: bool


def accumulate(micro_batches: int, accumulation: int, leftover: Leftover = "step") -> Iterator[MicroBatch]:
    """Yield the ``micro_batches`` of an epoch in order, ``accumulation`` of them for each update; see `Leftover`."""
    n, per_update = check_int("micro_batches", micro_batches, 0), check_int("accumulation", accumulation, 1)
    check_one_of("leftover", leftover, get_args(Leftover))
    whole = n - n % per_update
    for index in range(whole if leftover == "drop" else n):
        divisor = per_update if index < whole or leftover == "carry" else n - whole
        yield MicroBatch(index, divisor, (index + 1) % per_update == 0 or (leftover == "step" and index + 1 == n))


@dataclass(frozen=True)
class UpdateGroup:
    """The micro-batches whose gradients go into one update, and the divisor of the sum of their gradients.

    ``micro_batches[m][rank]`` has the indices of the examples that a rank reads in micro-batch m.
    """

    micro_batches: tuple[tuple[Array, ...], ...]
    divisor: int

    def __repr__(self) -> str:
        examples = sum(len(local) for ranks in self.micro_batches for local in ranks)
        return f"UpdateGroup({len(self.micro_batches)} micro-batches, {examples} examples, divided by {self.divisor})"


def groups(fed: Feed, accumulation: int = 1, leftover: Leftover = "step") -> Iterator[UpdateGroup]:
    """Yield the micro-batches of every update of a run over all epochs of ``fed``, as `accumulate` groups them.

    With "carry" the first group of an epoch begins with the micro-batches that the previous epoch left in the buffer.
    """
    buffered: list[tuple[Array, ...]] = []
    for epoch in range(fed.epochs):
        batches = [tuple(local) for local in fed.batches(epoch)]
        for micro_batch in accumulate(len(batches), accumulation, leftover):
            buffered.append(batches[micro_batch.index])
            if micro_batch.update:
                yield UpdateGroup(tuple(buffered), micro_batch.divisor)
                buffered = []


def accumulated_gradients(
    model: Model, params: Array, micro_batches: Sequence[Sequence[Shard]], divisor: int | None = None, *,
    weighted: bool = True,
) -> Array:  # fmt: skip
    """Add up each rank's gradients (world, size) over its micro-batches, all at the same ``params``.

    ``micro_batches[m][rank]`` is an (x, y). The sum is divided by ``divisor``, the number of micro-batches by default.
    That is then the gradient of the mean loss over all of a rank's examples, within rounding; 0 for a rank without
    examples. If ``weighted``, a micro-batch counts by its number of examples; that changes no bit if all are equal.
    """
    if not micro_batches:
        raise InvalidArgument("micro_batches", micro_batches, "one or more, each with one (x, y) per rank")
    counts = [[len(x) for x, _ in shards] for shards in micro_batches]
    weights = np.ones_like(params, shape=(len(counts), len(params), 1))
    if weighted and len(counts) > 1:  # a single micro-batch has weight 1
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
