"""Compressors of one rank's vector, and the bytes that a run under torch's hooks sends, by arithmetic alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from dpbook.core import InvalidArgument, check_int, check_one_of
from dpbook.replicas import Array

METHODS = ("exact", "fp16", "bf16", "powersgd", "local")
SHAPES = ((128, 64), (128,), (128, 128), (128,), (10, 128), (10,))
"""Shapes of the model's parameters, in fp32: 64 pixels, two hidden layers of 128, 10 digits."""
Bytes = NDArray[np.int64]
"""Bytes of each step, (steps,)."""


@dataclass(frozen=True)
class Setting:
    """Method and settings of a training run; each rank has its own ``batch`` in each of ``steps``.

    "exact" is torch's `allreduce_hook`; "fp16" and "bf16" are its hooks that cast. "powersgd" is `powerSGD_hook` with
    matrices of ``rank``, from step ``begin`` on, for matrices that shrink more than ``least`` times. ``feedback``
    switches its error feedback. "local" is post-local SGD: from step ``begin`` on, ranks step alone, and all average
    their weights once in ``every`` steps. ``lr`` is that of plain SGD.
    """

    method: str = "exact"
    steps: int = 60
    batch: int = 16
    lr: float = 0.4
    begin: int = 5
    rank: int = 2
    least: float = 2.0
    feedback: bool = True
    every: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        check_one_of("method", self.method, METHODS)
        if self.method == "powersgd" and self.begin < 2:
            raise InvalidArgument("begin", self.begin, "at least 2: DDP rebuilds its buckets after the first step")


def powersgd_elements(shapes: Sequence[Sequence[int]], rank: int, least: float = 2.0) -> int:
    """Return the elements that a rank all-reduces in a step of PowerSGD, by torch's rule of which tensors to compress.

    A tensor is viewed as a matrix of n rows and m columns, of rank r at most min(n, m). It travels as P (n × r) and
    Q (m × r) if these are more than ``least`` times smaller, and whole otherwise, as vectors do.
    """
    total = 0
    for shape in shapes:
        rows, columns = shape[0], prod(shape[1:])
        small = (rows + columns) * min(rows, columns, rank)
        total += small if small * least < rows * columns else rows * columns
    return total


def payload(setting: Setting) -> Bytes:
    """Return the bytes that each rank hands to all-reduces, step by step."""
    elements, late = np.full(setting.steps, sum(map(prod, SHAPES))), np.arange(setting.steps) - setting.begin
    if setting.method == "powersgd":
        elements[late >= 0] = powersgd_elements(SHAPES, setting.rank, setting.least)
    if setting.method == "local":
        elements[(late >= 0) & (late % setting.every > 0)] = 0
    return elements * (2 if setting.method in ("fp16", "bf16") else 4)


def wire(setting: Setting, world: int) -> Bytes:
    """Return the bytes that ``world`` ranks send together, step by step, without headers.

    In a ring of N, each rank sends 2(N − 1)/N · n of n bytes.
    """
    return 2 * (check_int("world", world, 1) - 1) * payload(setting)


def _check_vector(vector: Array) -> None:
    if np.ndim(vector) != 1:
        raise InvalidArgument("vector", f"an array of shape {np.shape(vector)}", "one rank's vector, of one dimension")


def _only(chosen: NDArray[np.intp], vector: Array) -> Array:
    """Return ``vector`` with all numbers except those at ``chosen`` places set to 0."""
    compressed = np.zeros_like(vector)
    compressed[chosen] = vector[chosen]
    return compressed


@dataclass(frozen=True)
class Largest:
    """Compressor that keeps the ``k`` numbers of largest magnitude and sets the others to 0; ties keep the first."""

    k: int

    def __call__(self, vector: Array) -> Array:
        _check_vector(vector)
        return _only(np.argsort(-np.abs(vector), kind="stable")[: check_int("k", self.k, 0)], vector)


@dataclass(frozen=True)
class Multiples:
    """Compressor that rounds every number to the nearest multiple of ``unit``."""

    unit: float

    def __call__(self, vector: Array) -> Array:
        _check_vector(vector)
        return self.unit * np.rint(vector / self.unit)


@dataclass
class Drawn:
    """Compressor that keeps ``k`` random numbers, drawn anew at every call, and sets the others to 0."""

    k: int
    seed: int

    def __post_init__(self) -> None:
        check_int("k", self.k, 0)
        self._rng = np.random.default_rng(self.seed)

    def __call__(self, vector: Array) -> Array:
        _check_vector(vector)
        return _only(self._rng.permutation(len(vector))[: self.k], vector)
