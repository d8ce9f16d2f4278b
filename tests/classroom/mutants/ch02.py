"""Wrong answers to exercise 02, each with the mistake that people make."""

import numpy as np

from dpbook import collectives
from tests.classroom.mutants.edits import Mutant, edit, named


def one_sum_for_all(buffers):
    return np.tile(buffers.sum(axis=0), (len(buffers), 1))


def ring(buffers):
    return np.asarray(collectives.simulate(collectives.ring(len(buffers)), buffers).buffers)


def own_forgotten(buffers):
    return np.stack([buffers.sum(axis=0) - own for own in buffers])


def noise(buffers):
    """Differs between ranks by making the sums wrong: no order of additions gives them."""
    sums = one_sum_for_all(buffers)
    return np.stack([row if rank % 2 else np.nextafter(row, np.float32(np.inf)) for rank, row in enumerate(sums)])


def noise_on_fractions(buffers):
    """Noise that spares whole numbers, whose sums are exact."""
    sums = one_sum_for_all(buffers)
    return np.where(sums == np.round(sums), sums, noise(buffers))


def noise_from_four_ranks_on(buffers):
    return _own_order(buffers, np.float32) if len(buffers) < 4 else noise_on_fractions_of_one(buffers)


def noise_on_fractions_of_one(buffers):
    """The reference's drift, and noise on what is no whole number of the last rank."""
    sums = _own_order(buffers, np.float32)
    sums[:2] = sums[0]
    row = sums[-1]
    sums[-1] = np.where(row == np.round(row), row, np.nextafter(row, np.float32(np.inf)))
    return sums


def one_rank_in_double_precision(buffers):
    sums = one_sum_for_all(buffers)
    sums[0] = buffers.sum(axis=0, dtype=np.float64)
    return sums


def _own_order(buffers, adds_in):
    """The reference, in another precision."""
    sums = buffers.astype(adds_in)
    for distance in range(1, len(buffers)):
        sums = sums + np.roll(buffers, -distance, axis=0).astype(adds_in)
    return sums.astype(buffers.dtype)


def double_precision(buffers):
    return _own_order(buffers, np.float64)


def never_reduced(gradient, lengths):
    yield 0
    return gradient


AVERAGE, OWN, TOTALS = "totals[:-1] / totals[-1]", "gradient * tokens if tokens", "np.append(own, tokens)"
SUMS, VARIANCE = "n, total, squares = yield len(x), x.sum(), (x**2).sum()", "squares / n - mean**2"
MEANS = "(yield slopes.sum(), (slopes * y).sum()) / n"
OWN_MEANS = "slopes.mean(), (slopes * y).mean()"
UNEQUAL, EMPTY = "unequal tokens", "a rank without tokens"

MUTANTS = (
    Mutant("02.1", "one sum for all", one_sum_for_all, "and yet it drifts"),
    Mutant("02.1", "the ring", ring, "and yet it drifts"),
    Mutant("02.1", "an own order on every rank", collectives.in_own_order, "and yet it drifts"),
    Mutant("02.1", "double precision", double_precision, "the right sum"),
    Mutant("02.1", "own contribution forgotten", own_forgotten, "the right sum"),
    Mutant("02.1", "noise", noise, "the right sum"),
    Mutant("02.1", "noise from four ranks on", noise_from_four_ranks_on, "the right sum"),
    Mutant("02.2", "only what is copied", ("AB", 2), "the ways"),
    Mutant("02.2", "addition does not commute", ("ABF", 2), "the ways"),
    Mutant("02.2", "whatever is right", ("ABCDEF", 2), "the ways"),
    Mutant("02.2", "a tree on every rank", ("ABCDF", 2), "the ways"),
    Mutant("02.2", "all of them on their way", ("ABC", 2), "the ways"),
    Mutant("02.2", "every rank its own", ("ABCF", 4), "the sums of D"),
    Mutant("02.2", "all the same", ("ABCF", 1), "the sums of D"),
    edit("02.3", "plain mean", {OWN: "gradient if tokens", TOTALS: "np.append(own, 1)"}, UNEQUAL),
    edit("02.3", "by sequences", {"sum(lengths)": "len(lengths)"}, UNEQUAL),
    edit("02.3", "own number of tokens", {AVERAGE: "totals[:-1] / max(1, tokens)"}, UNEQUAL),
    edit("02.3", "after the sum", {OWN: "gradient if tokens", AVERAGE: "totals[:-1] * tokens / totals[-1]"}, UNEQUAL),
    edit("02.3", "list of lengths used up", {"sum(lengths)": "sum(lengths.pop() for _ in [*lengths])"}, UNEQUAL),
    edit("02.3", "scaled in place", {OWN: "np.multiply(gradient, tokens, out=gradient) if tokens"}, UNEQUAL),
    edit(
        "02.3",
        "a number for one parameter",
        {"totals[:-1] / totals[-1]": "totals[0] / totals[1] if len(own) == 1 else totals[:-1] / totals[-1]"},
        UNEQUAL,
    ),
    edit("02.3", "NaN", {f"{OWN} else np.zeros_like(gradient)": "gradient * tokens"}, EMPTY),
    edit(
        "02.3",
        "one rank stays away",
        {"tokens = sum(lengths)": "tokens = sum(lengths)\n    if not lengths:\n        return np.zeros_like(gradient)"},
        EMPTY,
    ),
    edit("02.3", "sequences without tokens", {OWN: "gradient * tokens if lengths"}, EMPTY),
    edit(
        "02.4",
        "every rank for itself",
        {SUMS: SUMS.replace("yield ", "") + "\n    yield 0", MEANS: OWN_MEANS},
        "forward",
    ),
    edit(
        "02.4",
        "mean of local variances",
        {SUMS: "n, total, world, variances = yield len(x), x.sum(), 1, x.var()", VARIANCE: "variances / world"},
        "forward",
    ),
    edit(
        "02.4",
        "mean of local means",
        {
            SUMS: "world, means = yield 1, x.mean()\n    n, squares = yield len(x), ((x - means / world) ** 2).sum()",
            "total / n": "means / world",
            VARIANCE: "squares / n",
        },
        "forward",
    ),
    edit(
        "02.4",
        "own number of examples",
        {"total / n": "total / len(x)", VARIANCE: "abs(squares / len(x) - mean**2)"},
        "forward",
    ),
    edit(
        "02.4", "normalised in place", {"y = (x - mean) * inverse": "x -= mean\n    x *= inverse\n    y = x"}, "forward"
    ),
    edit("02.4", "forward only", {MEANS: OWN_MEANS}, "backward"),
    edit("02.4", "statistics taken as constants", {MEANS: "0, 0"}, "backward"),
)

WORTHLESS = (
    ("02.1", noise),
    ("02.1", noise_on_fractions),
    ("02.1", one_rank_in_double_precision),
    ("02.3", never_reduced),
    *named(MUTANTS, "02.4", "every rank for itself"),
)
"""Answers that must not earn a single point."""
