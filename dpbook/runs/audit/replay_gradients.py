"""Gradients that the ranks saved of one update, and the mistake that explains a deviation.

Each known mistake is applied to the saved gradients. The first one that yields the gradient of the step explains it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpbook.replicas import Array
from dpbook.runs.audit.findings import CheckResult, Status
from dpbook.runs.audit.journals import Update, first_difference
from dpbook.runs.watching.journal import array_key


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

    def divisor(self, line: str) -> tuple[float, int]:
        """Return the mean divisor of the losses of a line, over ranks and micro-batches, and the number of losses."""
        pairs = [arrays[each] for arrays in self.ranks for each in arrays if each.startswith(f"divisors|{line}|")]
        most = max(pairs, key=lambda pair: float(pair[1]))
        total = [
            max(self._divisors(rank, line), key=lambda pair: float(pair[1]), default=most) for rank in range(self.world)
        ]
        backwards = sum(float(pair[1]) for pair in total)
        return sum(float(pair[0]) for pair in total) / backwards, int(backwards)

    def _divisors(self, rank: int, line: str) -> list[Array]:
        arrays = self.ranks[rank]
        return [arrays[each] for each in arrays if each.startswith(f"divisors|{line}|")]

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
    with np.load(path, allow_pickle=False) as archive:
        return {each: archive[each] for each in archive.files}


def join_shards(ranks: Sequence[dict[str, Array]]) -> tuple[dict[str, Array], ...]:
    """Replace sharded gradients by the whole ones on every rank; drop those whose shards do not fit together."""
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
    """Return the factor by which ``other`` must be multiplied to be closest to ``applied`` (least squares)."""
    square = sum(float(np.vdot(each, each)) for each in other.values())
    along = sum(float(np.vdot(other[name], values.astype(np.float64))) for name, values in applied.items())
    return along / square if square else 1.0


def largest_violation(
    applied: Mapping[str, Array], other: Mapping[str, Array], bound: Mapping[str, Array], factor: float
) -> tuple[str, float] | None:
    """Return the parameter that exceeds its bound the most, and its relative error; None if every one is within.

    The difference is that of ``applied`` and ``factor`` times ``other``; the bound is ``abs(factor)`` times ``bound``.
    """
    beyond: dict[str, float] = {}
    for name, values in applied.items():
        limit = abs(factor) * bound[name] + float(np.finfo(values.dtype).tiny)
        beyond[name] = float(np.max(np.abs(values - factor * other[name]) / limit, initial=0.0))
    name = max(beyond, key=beyond.__getitem__)
    if beyond[name] <= 1:
        return None
    size = float(np.linalg.norm(other[name])) * abs(factor) or 1.0
    return name, float(np.linalg.norm(applied[name] - factor * other[name])) / size


GUESS_TOLERANCE = 1e-5
"""Largest error of a guess that explains a gradient, relative to the largest element of a parameter."""
MEANS = "each rank's mean counts the same, whatever it is a mean over"


def explain_difference(
    update: Update, gradients: ReplayGradients, rank: int, worst: tuple[str, float], *, mild: bool
) -> CheckResult:
    """Return the first mistake that explains the gradient of a rank's step.

    It is a warning if no known mistake explains it, or if the ranks' means are over different numbers of terms and that
    is ``mild``: the numbers differ a little, or at the end of an epoch.
    """
    name, error = worst
    place = update.steps[rank]["place"]
    applied = gradients.of("applied", rank)
    for mistake, guess, guilty in _guesses(update, gradients, rank):
        near = {each: GUESS_TOLERANCE * (np.abs(array) + np.abs(array).max(initial=0)) for each, array in guess.items()}
        factor = scale(applied, guess)
        if factor > 0 and largest_violation(applied, guess, near, factor) is None:
            status: Status = "WARN" if mild and mistake == MEANS else "FAIL"
            return CheckResult(
                status, f"{mistake}: relative error {error:.1e} in {name}", guilty, name, update.number, place
            )
    message = f"relative error {error:.1e} in {name}, and no mistake that was tried explains it: what the script does "
    message += "between backward and step (noise, clipping by value, a hook that compresses) does, or its own averaging"
    return CheckResult("WARN", message, rank, name, update.number, place)


def _guesses(update: Update, gradients: ReplayGradients, rank: int) -> Iterator[tuple[str, dict[str, Array], int]]:
    """Yield known mistakes: a description, the gradient that the mistake yields, and the rank to blame."""
    if first_difference([step["gradients"] for step in update.steps], gradients.names):
        yield "it is this rank's own gradient, which nothing averaged", gradients.of("plain", rank), rank
    yield MEANS, _over_ranks(gradients, "plain"), rank
    yield "only the last micro-batch is in it", _over_ranks(gradients, "last"), rank
    if any(update.of("clip")):
        clipped = _over_ranks(gradients, "plain", _clipped(update, gradients))
        yield "each rank clipped its own gradient before they were averaged", clipped, rank
    for left_out in range(gradients.world) if gradients.world > 1 else ():
        without = _over_ranks(gradients, "plain", lambda each, out=left_out: float(each != out))  # type: ignore[misc]
        yield f"the gradient of rank {left_out} is not in it", without, left_out


def _over_ranks(
    gradients: ReplayGradients, kind: str, weight: Callable[[int], float] = lambda rank: 1.0
) -> dict[str, Array]:
    arrays = [gradients.of(kind, rank) for rank in range(gradients.world)]
    return {
        name: np.sum([weight(rank) * of_rank[name] for rank, of_rank in enumerate(arrays)], axis=0)
        for name in gradients.names
    }


def _clipped(update: Update, gradients: ReplayGradients) -> Callable[[int], float]:
    """Return the factor by which each rank would clip its local gradient (`torch.nn.utils.clip_grad_norm_`)."""

    def weight(rank: int) -> float:
        most = next((event["most"] for event in update.of("clip")[rank] if event["most"]), np.inf)
        norm = np.sqrt(sum(float(np.vdot(each, each)) for each in gradients.of("plain", rank).values()))
        return min(1.0, float(most / (norm + 1e-6)))

    return weight
