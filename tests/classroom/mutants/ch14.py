"""Wrong answers to exercise 14, each with the mistake that people make."""

import math

import numpy as np

from dpbook.book import ch14
from dpbook.classroom.tasks.judging import Mutant

# 14.1


def _sent(
    part=lambda n: (n - 1) / n,
    scatters=lambda stage, a: 1 if stage < 2 else a,
    gathers=lambda stage, a, keep: (0, 1, 1, a if keep else 2 * a)[stage],
    swapped=False,
):
    """Halves that carry gradients, and halves that carry weights."""

    def sent(stage, parameters, ranks, micro_batches, weight, gradient, keep):
        w, g = (gradient, weight) if swapped else (weight, gradient)
        total = scatters(stage, micro_batches) * g + gathers(stage, micro_batches, keep) * w
        return parameters * part(ranks) * (total + g if stage == 0 else total)

    return sent


# 14.2


class Right:
    """Mutants change one thing of it."""

    def __init__(self, weights, wire):
        self.wire, self.shapes = wire, [each.shape for each in weights]
        self.shards = [self.padded(each, np.float32).reshape(wire.world, -1)[wire.rank].copy() for each in weights]
        self.gathers, self.reductions = {}, {}

    def padded(self, whole, dtype):
        row = np.zeros(-(-whole.size // self.wire.world) * self.wire.world, dtype)
        row[: whole.size] = whole.ravel()
        return row

    def gather(self, unit):
        if 0 <= unit < len(self.shards) and unit not in self.gathers:
            self.gathers[unit] = self.wire.all_gather(self.shards[unit].astype(np.float16))

    def whole(self, unit, following):
        self.gather(unit)
        self.gather(following)
        shape = self.shapes[unit]
        return self.gathers[unit].wait()[: math.prod(shape)].reshape(shape)

    def before_forward(self, unit):
        return self.whole(unit, unit + 1)

    def after_forward(self, unit):
        self.gathers.pop(unit).free()

    def before_backward(self, unit):
        return self.whole(unit, unit - 1)

    def after_backward(self, unit, gradient):
        self.gathers.pop(unit).free()
        self.reductions[unit] = self.wire.reduce_scatter(self.row(unit, gradient))
        if unit + 1 in self.reductions:
            self.reductions[unit + 1].wait()

    def row(self, unit, gradient):
        return self.padded(gradient, np.float32)

    def finish(self):
        found = [self.reductions[k].wait() / self.wire.world for k in range(len(self.shards))]
        self.reductions.clear()
        return found


class NeverFrees(Right):
    def after_forward(self, unit):
        self.gathers.pop(unit)

    def after_backward(self, unit, gradient):
        self.gathers[unit].free = lambda: None
        super().after_backward(unit, gradient)


class FreesTooEarly(Right):
    """When the next one is on its way, this one has come, and seems to be done with."""

    def whole(self, unit, following):
        weights = super().whole(unit, following)
        self.gathers[unit].free()
        return weights

    def after_forward(self, unit):
        self.gathers.pop(unit)

    def after_backward(self, unit, gradient):
        self.gathers[unit].free = lambda: None
        super().after_backward(unit, gradient)


class ReducesInHalf(Right):
    def row(self, unit, gradient):
        return self.padded(gradient, np.float16)


class Synchronous(Right):
    """The next gather begins, and is waited for."""

    def whole(self, unit, following):
        weights = super().whole(unit, following)
        if following in self.gathers:
            self.gathers[following].wait()
        return weights


class WaitsForTheSum(Right):
    """Free the unit that has just computed, not the one before."""

    def after_backward(self, unit, gradient):
        super().after_backward(unit, gradient)
        self.reductions[unit].wait()


class WaitsAtTheEnd(Right):
    """Every unit's row is whole until `finish`."""

    def after_backward(self, unit, gradient):
        self.gathers.pop(unit).free()
        self.reductions[unit] = self.wire.reduce_scatter(self.row(unit, gradient))


class Stale(Right):
    """Unit −1 is the last one: in the next step its weights of this step are there already."""

    def gather(self, unit):
        super().gather(unit % len(self.shards))


class OneRow(Right):
    """One row for all gradients: the next one is written while the last one is on its way."""

    def row(self, unit, gradient):
        size = -(-gradient.size // self.wire.world) * self.wire.world
        self.kept = getattr(self, "kept", np.zeros(100, np.float32))
        self.kept[:size] = self.padded(gradient, np.float32)
        return self.kept[:size]


# 14.3


def simulated(layers, groups):
    step = ch14.cut_step(layers, groups)
    return step.timeline.exposed(), step.memory.peak


def each(layers, limit):
    return [[k] for k in range(len(layers))]


def all_in_one(layers, limit):
    return [list(range(len(layers)))]


def equal_numbers(layers, limit):
    """Best plan among those that fit, with equal numbers of layers in each unit."""
    count = len(layers)
    tried = [[list(range(i, min(i + m, count))) for i in range(0, count, m)] for m in range(1, count + 1)]
    return min((simulated(layers, g)[0], g) for g in tried if simulated(layers, g)[1] <= limit or len(g) == count)[1]


def best_cut(layers, limit, fits=lambda peak, limit: peak <= limit, better=lambda exposed, groups: exposed):
    count, found = len(layers), []
    for bits in range(2 ** (count - 1)):
        groups = [[0]]
        for k in range(1, count):
            groups = [*groups, [k]] if bits >> (k - 1) & 1 else [*groups[:-1], [*groups[-1], k]]
        exposed, peak = simulated(layers, groups)
        if fits(peak, limit):
            found.append((better(exposed, groups), groups))
    return min(found)[1]


def without_limit(layers, limit):
    return best_cut(layers, limit, fits=lambda peak, limit: True)


def fewest_units(layers, limit):
    return best_cut(layers, limit, better=lambda exposed, groups: len(groups))


# 14.4


def _clip(square=lambda g: float(np.square(g, dtype=float).sum()), share=True, root=True, once=True, raises=False):
    def clip(pieces, copies, limit, all_reduce):
        parts = [square(g) / (n if share else 1) for g, n in zip(pieces, copies, strict=True)]
        if not root:  # norms are added up
            norm = all_reduce(math.sqrt(sum(parts)))
        elif once:
            norm = math.sqrt(all_reduce(sum(parts)))
        else:
            norm = math.sqrt(sum(all_reduce(part) for part in parts))
        factor = limit / norm if raises else min(1.0, limit / norm)
        for g in pieces:
            g *= g.dtype.type(factor)
        return norm

    return clip


def overflowing(gradient):
    with np.errstate(over="ignore"):
        return float(np.square(gradient).sum())


def own_norm(pieces, copies, limit, all_reduce):
    return _clip()(pieces, copies, limit, lambda number: number)


def piece_by_piece(pieces, copies, limit, all_reduce):
    norm = _clip()([g.copy() for g in pieces], copies, limit, all_reduce)
    for g in pieces:
        g *= g.dtype.type(min(1.0, limit / max(float(np.linalg.norm(g.astype(float))), 1e-9)))
    return norm


def other_arrays(pieces, copies, limit, all_reduce):
    """The list is changed, and not the arrays."""
    pieces[:] = [g.copy() for g in pieces]
    return _clip()(pieces, copies, limit, all_reduce)


COUNTED = "as they are counted"
WHOLE, IN_TIME, REDUCED = "whole weights", "gathered in time, freed after use", "gradients reduced"
FITS, BEST = "fits, and hides", "near the best"
NORM, BELOW = "clipped by the whole norm", "left as it is below the limit"
MUTANTS = (
    Mutant("14.1", "stage 2 reduces once per step", _sent(scatters=lambda stage, a: 1 if stage < 3 else a), COUNTED),
    Mutant("14.1", "one gather in stage 3", _sent(gathers=lambda s, a, keep: (0, 1, 1, a)[s]), COUNTED),
    Mutant("14.1", "a gather per micro-batch in stage 2", _sent(gathers=lambda s, a, k: (0, 1, a, 2 * a)[s]), COUNTED),
    Mutant(
        "14.1", "weights gathered once per step", _sent(gathers=lambda s, a, k: (0, 1, 1, 1 if k else 2)[s]), COUNTED
    ),
    Mutant("14.1", "an all-reduce in every micro-batch", _sent(scatters=lambda stage, a: a), COUNTED),
    Mutant("14.1", "all of the buffer", _sent(part=lambda n: 1.0 if n > 1 else 0.0), COUNTED),
    Mutant("14.1", "gradients of the weights' size", _sent(swapped=True), COUNTED),
    Mutant("14.2", "never frees", NeverFrees, IN_TIME),
    Mutant("14.2", "frees too early", FreesTooEarly, WHOLE),
    Mutant("14.2", "reduces in half precision", ReducesInHalf, REDUCED),
    Mutant("14.2", "waits for what it gathers ahead", Synchronous, IN_TIME),
    Mutant("14.2", "waits for a sum at once", WaitsForTheSum, REDUCED),
    Mutant("14.2", "waits for all sums at the end", WaitsAtTheEnd, REDUCED),
    Mutant("14.2", "a stale prefetch", Stale, WHOLE),
    Mutant("14.2", "a row written before the wait", OneRow, REDUCED),
    Mutant("14.3", "a unit per layer", each, FITS),
    Mutant("14.3", "one unit", all_in_one, FITS),
    Mutant("14.3", "without the limit", without_limit, FITS),
    Mutant("14.3", "equal numbers of layers", equal_numbers, BEST),
    Mutant("14.3", "as few units as fit", fewest_units, BEST),
    Mutant("14.4", "its own norm", own_norm, NORM),
    Mutant("14.4", "norms added up", _clip(root=False), NORM),
    Mutant("14.4", "copies counted again", _clip(share=False), NORM),
    Mutant("14.4", "squares in half precision", _clip(square=overflowing), NORM),
    Mutant("14.4", "a call per piece", _clip(once=False), NORM),
    Mutant("14.4", "each piece clipped alone", piece_by_piece, NORM),
    Mutant("14.4", "other arrays in the list", other_arrays, NORM),
    Mutant("14.4", "raised to the limit", _clip(raises=True), BELOW),
)

WORTHLESS = (
    ("14.1", lambda stage, parameters, ranks, *others: 2 * parameters * (ranks - 1) / ranks),
    ("14.3", each),
    ("14.3", all_in_one),
    ("14.4", lambda pieces, copies, limit, all_reduce: 0.0),
    ("14.4", own_norm),
)
"""Answers that must not earn a single point."""
