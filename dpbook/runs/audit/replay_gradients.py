"""What the ranks have kept of one update for a replay, and how two gradients are compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpbook.replicas import Array
from dpbook.runs.watching.journal import array_key


@dataclass(frozen=True)
class Kept:
    """Arrays of all ranks for one optimizer, by `array_key`; ``names``: parameters, ``lines``: those of the script."""

    ranks: tuple[Mapping[str, Array], ...]
    names: tuple[str, ...]
    lines: tuple[str, ...]

    def of(self, kind: str, rank: int, line: str = "") -> dict[str, Array]:
        """One rank's arrays of one kind; zeros where a backward gave nothing to a parameter."""
        arrays = self.ranks[rank]
        return {
            name: arrays.get(array_key(kind, name, line), np.zeros_like(arrays[array_key("plain", name)]))
            for name in self.names
        }

    @property
    def world(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

    def divisor(self, line: str) -> tuple[float, int]:
        """What the losses of a line are divided by, the mean over ranks and micro-batches; how many those are."""
        found = [arrays[each] for arrays in self.ranks for each in arrays if each.startswith(f"divisors|{line}|")]
        most = max(found, key=lambda pair: float(pair[1]))
        total = [
            max(self._divisors(rank, line), key=lambda pair: float(pair[1]), default=most) for rank in range(self.world)
        ]
        backwards = sum(float(pair[1]) for pair in total)
        return sum(float(pair[0]) for pair in total) / backwards, int(backwards)

    def _divisors(self, rank: int, line: str) -> list[Array]:
        arrays = self.ranks[rank]
        return [arrays[each] for each in arrays if each.startswith(f"divisors|{line}|")]

    def big(self, kind: str) -> dict[str, Array]:
        """``weighted``: the gradient of the big batch, whose terms all weigh the same; ``sizes``: of its terms."""
        total = {name: np.zeros(self.ranks[0][array_key("plain", name)].shape) for name in self.names}
        for line in self.lines:
            fair = self.world * self.divisor(line)[0]
            for rank in range(self.world):
                for name, array in self.of(kind, rank, line).items():
                    total[name] += array / fair
        return total


def load(path: Path) -> dict[str, Array]:
    with np.load(path, allow_pickle=False) as archive:
        return {each: archive[each] for each in archive.files}


def put_together(ranks: Sequence[dict[str, Array]]) -> tuple[dict[str, Array], ...]:
    """Give every rank the whole of those gradients of which each has a part; those that do not fit are left out."""
    for name in [each.split("|", 2)[2] for each in ranks[0] if each.startswith("shard|")]:
        places = [arrays.get(array_key("shard", name)) for arrays in ranks]
        parts = [arrays.pop(array_key("applied", name), None) for arrays in ranks]
        if all(place is not None and int(place) >= 0 for place in places) and all(part is not None for part in parts):
            whole = np.concatenate(
                [part for part in parts if part is not None], axis=int(ranks[0][array_key("shard", name)])
            )
            if whole.shape == ranks[0][array_key("plain", name)].shape:
                for arrays in ranks:
                    arrays[array_key("applied", name)] = whole
    return tuple(ranks)


def scale(applied: Mapping[str, Array], other: Mapping[str, Array]) -> float:
    """The factor with which ``other`` comes closest to ``applied``."""
    square = sum(float(np.vdot(each, each)) for each in other.values())
    along = sum(float(np.vdot(other[name], values.astype(np.float64))) for name, values in applied.items())
    return along / square if square else 1.0


def furthest(
    applied: Mapping[str, Array], other: Mapping[str, Array], bound: Mapping[str, Array], factor: float
) -> tuple[str, float] | None:
    """The parameter furthest beyond its bound from ``factor`` times the other, and its relative error; or None."""
    beyond: dict[str, float] = {}
    for name, values in applied.items():
        limit = abs(factor) * bound[name] + float(np.finfo(values.dtype).tiny)
        beyond[name] = float(np.max(np.abs(values - factor * other[name]) / limit, initial=0.0))
    name = max(beyond, key=beyond.__getitem__)
    if beyond[name] <= 1:
        return None
    size = float(np.linalg.norm(other[name])) * abs(factor) or 1.0
    return name, float(np.linalg.norm(applied[name] - factor * other[name])) / size
