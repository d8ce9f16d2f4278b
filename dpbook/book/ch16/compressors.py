"""Compressors for a vector of one rank: each returns what others get of it, of the same length."""

from dataclasses import dataclass

import numpy as np

from dpbook.core import InvalidArgument, check_int
from dpbook.replicas import Array


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
