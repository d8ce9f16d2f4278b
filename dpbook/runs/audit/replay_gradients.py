"""Gradients that the ranks saved for a replay, read from their files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import TypeAlias

import numpy as np

from dpbook.replicas import Array
from dpbook.runs.watching.journal import array_key

Arrays: TypeAlias = Mapping[str, Array]
"""Values of one kind, by the name of their parameter."""


@dataclass(frozen=True)
class ReplayGradients:
    """Saved gradients of one update of one optimizer.

    Attributes:
        ranks: arrays of each rank, by `array_key`.
        names: parameters that all ranks saved.
        lines: lines of the script that called backward.
    """

    ranks: tuple[Mapping[str, Array], ...]
    names: tuple[str, ...]
    lines: tuple[str, ...]

    def of(self, kind: str, rank: int, line: str = "") -> dict[str, Array]:
        """Return one rank's arrays of one kind by parameter; zeros if a backward gave a parameter no gradient."""
        arrays = self.ranks[rank]
        return {
            name: arrays.get(array_key(kind, name, line), np.zeros_like(arrays[array_key("plain", name)]))
            for name in self.names
        }

    @property
    def world(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @cached_property
    def units(self) -> dict[str, float]:
        """Unit roundoff of each parameter's gradient, the largest of all ranks."""
        return {name: max(float(arrays[array_key("unit", name)]) for arrays in self.ranks) for name in self.names}

    @property
    def backwards(self) -> int:
        """Number of backwards of all ranks."""
        return sum(self.divisor(line)[1] for line in self.lines)

    def divisor(self, line: str) -> tuple[float, int]:
        """Return the mean divisor of the losses of a line, over ranks and micro-batches, and the number of losses."""
        prefix = array_key("divisors", "", line)
        pairs = [[array for key, array in arrays.items() if key.startswith(prefix)] for arrays in self.ranks]
        most = max(chain(*pairs), key=itemgetter(1))
        divisors, backwards = np.sum([max(of_rank, key=itemgetter(1), default=most) for of_rank in pairs], axis=0)
        return float(divisors / backwards), int(backwards)

    def big(self, kind: str) -> dict[str, Array]:
        """Return a sum over ranks and lines for the big batch, in which all terms have the same weight.

        Args:
            kind: ``"weighted"`` for the gradient, ``"sizes"`` for the sum of the absolute values of its terms.
        """
        total = {name: np.zeros(self.ranks[0][array_key("plain", name)].shape) for name in self.names}
        for line in self.lines:
            fair = self.world * self.divisor(line)[0]
            for rank in range(self.world):
                for name, array in self.of(kind, rank, line).items():
                    total[name] += array / fair
        return total


def load(path: Path) -> dict[str, Array]:
    with np.load(path) as archive:
        return dict(archive)


def join_shards(ranks: Sequence[dict[str, Array]]) -> tuple[dict[str, Array], ...]:
    """Replace sharded gradients by the whole ones on every rank; drop those whose shards do not fit together."""
    for name in [each.split("|", 2)[2] for each in ranks[0] if each.startswith("shard|")]:
        dimensions = [int(arrays.get(array_key("shard", name), -1)) for arrays in ranks]
        parts = [part for arrays in ranks if (part := arrays.pop(array_key("applied", name), None)) is not None]
        if min(dimensions) >= 0 and len(parts) == len(ranks):
            whole = np.concatenate(parts, axis=dimensions[0])
            if whole.shape == ranks[0][array_key("plain", name)].shape:
                for arrays in ranks:
                    arrays[array_key("applied", name)] = whole
    return tuple(ranks)
