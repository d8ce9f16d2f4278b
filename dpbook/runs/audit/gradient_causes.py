"""Which mistake makes a gradient that is not the big batch's? Each is tried on what the ranks have kept."""

from collections.abc import Callable, Iterator

import numpy as np

from dpbook.replicas import Array
from dpbook.runs.audit.findings import Found, Status
from dpbook.runs.audit.journals import Update, first_difference
from dpbook.runs.audit.replay_gradients import Kept, furthest, scale

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
