"""Compressors for a vector of one rank, and the bytes that a run under torch's hooks sends, by arithmetic alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from dpbook.core import InvalidArgument, check_float, check_int, check_one_of
from dpbook.replicas import Array

METHODS = ("exact", "fp16", "bf16", "powersgd", "local")
SHAPES = ((128, 64), (128,), (128, 128), (128,), (10, 128), (10,))
"""Of the model's parameters: 64 pixels, two hidden layers of 128, 10 digits; in fp32."""
Bytes = NDArray[np.int64]
"""Of shape (steps,)."""


@dataclass(frozen=True)
class Setting:
    """A method and how it is trained with; each rank has its own ``batch`` in each of ``steps``.

    "exact": torch's `allreduce_hook`. "fp16", "bf16": its hooks that cast. "powersgd": `powerSGD_hook`, with matrices
    of ``rank``, from step ``begin`` on, where a matrix shrinks more than ``least`` times; ``feedback`` and ``warm``:
    with error feedback, and with the last Q as the next start. "local": post-local SGD: from step ``begin`` on ranks
    step alone, or with the others of a ``group`` of so many, and all average their weights once in ``every`` steps.
    ``lr`` and ``momentum`` are SGD's.
    """

    method: str = "exact"
    steps: int = 60
    batch: int = 16
    lr: float = 0.4
    momentum: float = 0.0
    begin: int = 5
    rank: int = 2
    least: float = 2.0
    feedback: bool = True
    warm: bool = True
    every: int = 4
    group: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        check_one_of("method", self.method, METHODS)
        for name in ("steps", "batch", "rank", "every", "group"):
            check_int(name, getattr(self, name), 1)
        check_int("begin", self.begin, 0)
        check_float("lr", self.lr, above=0)
        check_float("least", self.least, above=0)
        check_float("momentum", self.momentum, minimum=0)
        if self.method == "powersgd" and (self.feedback or self.warm) and self.begin < 2:
            raise InvalidArgument("begin", self.begin, "at least 2: DDP rebuilds its buckets after the first step")


def powersgd_elements(shapes: Sequence[Sequence[int]], rank: int, least: float = 2.0) -> int:
    """Elements that a rank hands over in a step of PowerSGD, by torch's rule for what is worth it.

    A tensor is read as a matrix of n rows and m columns, its rank r at most min(n, m). It travels as P (n × r) and
    Q (m × r) if that is more than ``least`` times less, and whole otherwise, as vectors do.
    """
    total = 0
    for shape in shapes:
        rows, columns = shape[0], prod(shape[1:])
        small = (rows + columns) * min(rows, columns, rank)
        total += small if small * least < rows * columns else rows * columns
    return total


def payload(setting: Setting, shapes: Sequence[Sequence[int]] = SHAPES) -> Bytes:
    """What each rank hands to all-reduces, step by step."""
    with_all, in_group = _handed(setting, shapes)
    return with_all + in_group


def wire(setting: Setting, world: int, shapes: Sequence[Sequence[int]] = SHAPES) -> Bytes:
    """What ``world`` ranks send together, step by step: of n bytes, a ring of N makes each send 2(N − 1)/N · n.

    Headers are left out. Raises `InvalidArgument` where the ranks are no whole number of groups.
    """
    group = setting.group
    if check_int("world", world, 1) % group:
        raise InvalidArgument("world", world, f"a multiple of {group}, the ranks of a group")
    with_all, in_group = _handed(setting, shapes)
    return 2 * (world - 1) * with_all + world // group * 2 * (group - 1) * in_group


def _handed(setting: Setting, shapes: Sequence[Sequence[int]]) -> tuple[Bytes, Bytes]:
    """What a rank hands to all-reduces of all ranks, and of its group."""
    everything, late = sum(map(prod, shapes)), np.arange(setting.steps) - setting.begin
    with_all, in_group = np.full(setting.steps, everything), np.zeros(setting.steps, np.int64)
    if setting.method == "powersgd":
        with_all[late >= 0] = powersgd_elements(shapes, setting.rank, setting.least)
    if setting.method == "local":
        with_all[(late >= 0) & (late % setting.every > 0)] = 0
        in_group[late >= 0] = everything * (setting.group > 1)
    itemsize = 2 if setting.method in ("fp16", "bf16") else 4
    return itemsize * with_all, itemsize * in_group


def _check_vector(vector: Array) -> None:
    if np.ndim(vector) != 1:
        raise InvalidArgument("vector", f"an array of shape {np.shape(vector)}", "one rank's vector, of one dimension")


@dataclass(frozen=True)
class Largest:
    """Keeps the ``k`` numbers of the largest magnitude, of equal ones the first, and puts 0 for the others."""

    k: int

    def __call__(self, vector: Array) -> Array:
        _check_vector(vector)
        chosen = np.argsort(-np.abs(vector), kind="stable")[: check_int("k", self.k, 0)]
        kept = np.zeros_like(vector)
        kept[chosen] = vector[chosen]
        return kept


@dataclass(frozen=True)
class Multiples:
    """Rounds every number to the nearest multiple of ``unit``."""

    unit: float

    def __call__(self, vector: Array) -> Array:
        _check_vector(vector)
        rounded: Array = self.unit * np.rint(vector / self.unit)
        return rounded


@dataclass
class Drawn:
    """Keeps ``k`` numbers, drawn anew at every call, and puts 0 for the others."""

    k: int
    seed: int

    def __post_init__(self) -> None:
        check_int("k", self.k, 0)
        self._rng = np.random.default_rng(self.seed)

    def __call__(self, vector: Array) -> Array:
        _check_vector(vector)
        chosen = self._rng.permutation(len(vector))[: self.k]
        kept = np.zeros_like(vector)
        kept[chosen] = vector[chosen]
        return kept
