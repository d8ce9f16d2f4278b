"""A mean over random draws, with how far it may be off."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Estimate:
    """The ``mean`` of independent draws and its standard ``error``, in the same unit."""

    mean: float
    error: float

    def off(self, expected: float) -> float:
        """How many standard errors lie between the mean and what was expected; beyond 4 is no accident."""
        return abs(self.mean - expected) / self.error if self.error else float("inf") * (self.mean != expected)

    def __repr__(self) -> str:
        return f"{self.mean:.4g} ± {self.error:.1g}"


def estimate(draws: NDArray[np.float64]) -> Estimate:
    """The mean of ``draws``, two or more in one dimension."""
    return Estimate(float(draws.mean()), float(draws.std(ddof=1) / np.sqrt(draws.size)))
