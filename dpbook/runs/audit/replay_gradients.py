"""Gradients of a replay: those that the ranks kept of one update, and the mistake that explains a difference.

Each known mistake is tried on what the ranks have kept: which of them makes the gradient that the update stepped with?
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpbook.replicas import Array
from dpbook.runs.audit.findings import Found, Status
from dpbook.runs.audit.journals import Update, first_difference
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


CLOSE = 1e-5
"""How near, relative to the largest element of a parameter, a guess must come."""


MEANS = "each rank's mean counts the same, whatever it is a mean over"


def what_else(update: Update, kept: Kept, rank: int, worst: tuple[str, float], *, mild: bool) -> Found:
    """The first mistake that explains what ``rank`` stepped with; a warning where none does, or where the ranks' means
    are over different numbers and that is ``mild``: a little, or at the end of an epoch.
    """
    name, error = worst
    place = update.steps[rank]["place"]
    applied = kept.of("applied", rank)
    for why, guess, guilty in _guesses(update, kept, rank):
        near = {each: CLOSE * (np.abs(array) + np.abs(array).max(initial=0)) for each, array in guess.items()}
        factor = scale(applied, guess)
        if factor > 0 and furthest(applied, guess, near, factor) is None:
            status: Status = "WARN" if mild and why == MEANS else "FAIL"
            return Found(status, f"{why}: relative error {error:.1e} in {name}", guilty, name, update.number, place)
    told = f"relative error {error:.1e} in {name}, and no mistake that was tried explains it: what the script does "
    told += "between backward and step (noise, clipping by value, a hook that compresses) does, or its own averaging"
    return Found("WARN", told, rank, name, update.number, place)


def _guesses(update: Update, kept: Kept, rank: int) -> Iterator[tuple[str, dict[str, Array], int]]:
    """What may have been done, the gradient that it makes, and the rank to be named."""
    if first_difference([step["gradients"] for step in update.steps], kept.names):
        yield "it is this rank's own gradient, which nothing averaged", kept.of("plain", rank), rank
    yield MEANS, _over_ranks(kept, "plain"), rank
    yield "only the last micro-batch is in it", _over_ranks(kept, "last"), rank
    if any(update.of("clip")):
        clipped = _over_ranks(kept, "plain", _clipped(update, kept))
        yield "each rank clipped its own gradient before they were averaged", clipped, rank
    for left_out in range(kept.world) if kept.world > 1 else ():
        without = _over_ranks(kept, "plain", lambda each, out=left_out: float(each != out))  # type: ignore[misc]
        yield f"the gradient of rank {left_out} is not in it", without, left_out


def _over_ranks(kept: Kept, kind: str, weight: Callable[[int], float] = lambda rank: 1.0) -> dict[str, Array]:
    arrays = [kept.of(kind, rank) for rank in range(kept.world)]
    return {
        name: np.sum([weight(rank) * of_rank[name] for rank, of_rank in enumerate(arrays)], axis=0)
        for name in kept.names
    }


def _clipped(update: Update, kept: Kept) -> Callable[[int], float]:
    """By what each rank would multiply its own gradient (`torch.nn.utils.clip_grad_norm_`)."""

    def weight(rank: int) -> float:
        most = next((event["most"] for event in update.of("clip")[rank] if event["most"]), np.inf)
        norm = np.sqrt(sum(float(np.vdot(each, each)) for each in kept.of("plain", rank).values()))
        return min(1.0, float(most / (norm + 1e-6)))

    return weight
