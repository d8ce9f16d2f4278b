"""Is the gradient with which an update steps that of the big batch, but for rounding? And if not, what is it?

The ranks have kept their own gradients of one update, before any averaging, times what their losses were divided by:
the gradients of plain sums over examples. Added up over micro-batches and ranks, slice by slice, and divided by the
number of all terms, they are the gradient of the big batch's mean. What the update stepped with is compared with it,
against the bound of rounding (`dpbook.replicas.rounding_bound`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpbook.audit.checks.counts import reduced
from dpbook.audit.lines import Found, Line, untested
from dpbook.audit.seen import Seen, Update
from dpbook.replicas import Array, compare, gamma, unit_roundoff

CLAIM = "the gradient is the big batch's"
BOOK = "chapter 02"
KINDS = ("applied", "weighted", "sizes", "plain", "last")
FILE = "replay-{}-{}.npz"
AFTER = ("start", "sync", "unused", "clip", "mean", "gradients", "finite")
_EXTRA = 16
"""Roundings besides those of the sums: factors, quotients, clipping, the scaler, the conversion to float32."""


@dataclass(frozen=True)
class Kept:
    """Of each rank the arrays of one kind for one optimizer, by parameter."""

    ranks: tuple[Mapping[str, Array], ...]

    def __call__(self, kind: str, rank: int, name: str) -> Array:
        return self.ranks[rank][f"{kind}/{name}"]

    @property
    def names(self) -> list[str]:
        """The parameters that all ranks have kept, in their order."""
        of_ranks = [[key.removeprefix("applied/") for key in arrays if key.startswith("applied/")] for arrays in self.ranks]
        return [name for name in of_ranks[0] if all(name in names for names in of_ranks)]

    def total(self, kind: str, name: str) -> Array:
        """The sum over ranks, in float64."""
        return np.sum([self(kind, rank, name) for rank in range(len(self.ranks))], axis=0)


def replay_lines(seen: Seen, number: int) -> list[Line]:
    """One line for each optimizer, of its update ``number``."""
    updates = [update for update in seen.updates if update.number == number]
    if not updates:
        return [Line("replay", CLAIM, untested(f"update {number} was not seen"), BOOK)]
    return [Line("replay", CLAIM, found, BOOK) for update in updates if (found := _replay(seen, update)) is not None]


def _replay(seen: Seen, update: Update) -> Found | None:
    assert seen.folder is not None
    shared = seen.shared(update.optimizer)
    if not shared:
        return untested("the parameters are spread over the ranks, whose own gradients cannot be seen")
    paths = [seen.folder / FILE.format(rank, update.optimizer) for rank in range(seen.world)]
    if not all(path.exists() for path in paths):
        return untested("a rank has kept nothing")
    kept = Kept(tuple(_load(path) for path in paths))
    names = [name for name in kept.names if name in shared]
    terms = _terms(update)
    if isinstance(terms, str):
        return untested(terms)
    return _verdict(seen, update, kept, names, terms) if names else untested("no gradient was kept")


def _load(path: Path) -> dict[str, Array]:
    with np.load(path, allow_pickle=False) as archive:
        return {key: archive[key] for key in archive.files}


def _terms(update: Update) -> float | str:
    """The number of terms of the big batch, or why there is no such number."""
    events = [event for of_rank in update.of("backward") for event in of_rank]
    if not events:
        return "no backward was seen"
    parts = list(reduced(events))
    if not parts:
        return "what the loss is divided by cannot be read from its graph"
    first = [part["divisor"] for part in parts[0]]
    for other in parts[1:]:
        ratios = [part["divisor"] / divisor for part, divisor in zip(other, first, strict=True)]
        if max(ratios) - min(ratios) > 1e-6 * max(map(abs, ratios)):
            return "the loss has several parts, whose numbers of terms differ from rank to rank each in its own way"
    return float(sum(part["terms"] for part in parts[0]))


def _verdict(seen: Seen, update: Update, kept: Kept, names: Sequence[str], terms: float) -> Found:
    micro = max(len(events) for events in update.of("backward"))
    big = {name: kept.total("weighted", name) / terms for name in names}
    for rank in range(seen.world):
        applied = {name: kept("applied", rank, name) for name in names}
        factor = _factor(applied, big)
        unit = unit_roundoff(np.result_type(*applied.values()))
        growth = 2 * gamma(seen.world * micro + _EXTRA, unit)
        bound = {name: growth * kept.total("sizes", name) / terms for name in names}
        worst = _worst(applied, big, bound, factor)
        if worst is not None:
            return _what_else(seen, update, kept, names, rank, worst, big)
    return _length(seen, update, factor, _agreement(applied, big, bound, factor))


def _factor(applied: Mapping[str, Array], big: Mapping[str, Array]) -> float:
    """The number by which the big batch's gradient comes closest to ``applied``."""
    square = sum(float(np.vdot(each, each)) for each in big.values())
    along = sum(float(np.vdot(big[name], applied[name].astype(np.float64))) for name in big)
    return along / square if square else 1.0


def _worst(
    applied: Mapping[str, Array], other: Mapping[str, Array], bound: Mapping[str, Array], factor: float = 1.0
) -> tuple[str, float] | None:
    """The parameter that is furthest beyond its bound, and its relative error; None if all are within."""
    worst: tuple[str, float, float] | None = None
    for name, values in applied.items():
        wanted = factor * other[name]
        error = np.abs(values - wanted)
        tiny = float(np.finfo(values.dtype).tiny)
        beyond = float(np.max(error / (abs(factor) * bound[name] + tiny), initial=0.0))
        size = float(np.linalg.norm(wanted)) or 1.0
        if not beyond <= 1 and (worst is None or beyond > worst[1]):
            worst = (name, beyond, float(np.linalg.norm(error)) / size)
    return None if worst is None else (worst[0], worst[2])


def _agreement(
    applied: Mapping[str, Array], big: Mapping[str, Array], bound: Mapping[str, Array], factor: float
) -> str:
    """How near they are, in ulps and against the bound."""
    results = {
        name: compare(values.ravel(), (factor * big[name]).astype(values.dtype).ravel(), abs(factor) * bound[name].ravel())
        for name, values in applied.items()
    }
    size = max(float(np.max(np.abs(values), initial=0)) for values in applied.values()) or 1.0
    error = max(result.max_error for result in results.values()) / size
    limit = max(float(np.max(each, initial=0)) for each in bound.values()) * abs(factor) / size
    ulps, where = max((result.ulps, name) for name, result in results.items())
    return f"relative error {error:.1e}, rounding bound {limit:.1e}, at most {ulps} ulp ({where})"


def _length(seen: Seen, update: Update, factor: float, agreement: str) -> Found:
    """The direction is the big batch's; is the length?"""
    expected = _expected(update, seen.world)
    clipped = any(update.of("clip"))
    if abs(factor - 1) < 1e-4:
        return Found("PASS", agreement, update=update.number)
    if clipped and factor < max(1.0, expected):
        return Found("PASS", f"clipped to {factor:.3g} of it; {agreement}", update=update.number)
    if abs(factor / expected - 1) < 1e-4:
        return Found("PASS", f"times {factor:.4g}, as its loss says; {agreement}", update=update.number)
    mean = all(part["mean"] for events in update.of("backward") for event in events for part in event["losses"])
    for ratio, why in (
        (seen.world, f"it is {seen.world} times as long: the ranks' gradients are added, not averaged"),
        (1 / seen.world, f"it is {seen.world} times too short: it is divided by the number of ranks twice"),
    ):
        if abs(factor / expected / ratio - 1) < 1e-4 and mean:
            return Found("FAIL", f"{why}; {agreement}", None, None, update.number, update.steps[0]["place"])
    told = f"its direction is the big batch's, its length {factor:.4g} times that; {agreement}"
    return Found("PASS" if not mean else "WARN", told, update=update.number)


def _expected(update: Update, world: int) -> float:
    """The factor that averaging over ranks gives to this loss: 1 for a mean, the number of terms a rank for a sum."""
    events = [event for of_rank in update.of("backward") for event in of_rank]
    parts = next(iter(reduced(events)))
    fair = sum(part["divisor"] for part in parts) / len(parts)
    return sum(part["terms"] for part in parts) / (world * fair)


def _what_else(
    seen: Seen, update: Update, kept: Kept, names: Sequence[str], rank: int, worst: tuple[str, float],
    big: Mapping[str, Array],
) -> Found:  # fmt: skip
    """Try what it could be instead: the first that fits is the cause."""
    name, error = worst
    world = seen.world
    applied = {each: kept("applied", rank, each) for each in names}

    def over_ranks(kind: str, weight: Callable[[int], float] = lambda rank: 1.0) -> dict[str, Array]:
        return {
            each: np.sum([weight(r) * kept(kind, r, each) for r in range(world)], axis=0) / world for each in names
        }

    def norm(arrays: Iterable[Array]) -> float:
        return float(np.sqrt(sum(float(np.vdot(each, each)) for each in arrays)))

    def clipped(r: int) -> float:
        most = max((event["most"] for event in update.of("clip")[r] if event["most"]), default=np.inf)
        return min(1.0, most / (norm(kept("plain", r, each) for each in names) + 1e-6))

    candidates: list[tuple[str, dict[str, Array]]] = [
        ("it is this rank's own gradient: nothing was averaged", {each: kept("plain", rank, each) for each in names}),
        ("each rank's mean counts the same, whatever it is a mean over", over_ranks("plain")),
        ("only the last micro-batch is in it", over_ranks("last")),
        ("each rank clipped its own gradient before they were averaged", over_ranks("plain", clipped)),
    ]
    for why, candidate in candidates:
        scale = _factor(applied, candidate)
        sizes = {each: 1e-5 * (np.abs(candidate[each]).max(initial=0) + np.abs(candidate[each])) for each in names}
        if scale > 0 and _worst(applied, candidate, sizes, scale) is None:
            told = f"{why}: relative error {error:.1e} in {name}"
            return Found("FAIL", told, rank, name, update.number, update.steps[rank]["place"])
    told = f"relative error {error:.1e} in {name}; no cause that was tried explains it: what comes between backward "
    told += "and step (noise, a compressing hook, clipping by value) does it, or the script's own averaging"
    return Found("WARN", told, rank, name, update.number, update.steps[rank]["place"])
