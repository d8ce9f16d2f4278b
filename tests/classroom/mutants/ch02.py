"""Wrong answers to exercise 02, each with the mistake that people make."""

import numpy as np

from dpbook import collectives
from dpbook.classroom.tasks.judging import Mutant


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


def _average(weight, divisor=lambda lengths: sum(lengths)):
    """An average with another weight of the own gradient, or another divisor."""

    def average(gradient, lengths):
        totals = yield np.append(np.nan_to_num(gradient) * weight(lengths), divisor(lengths))
        return totals[:-1] / totals[-1]

    return average


def own_number_of_tokens(gradient, lengths):
    total = yield np.nan_to_num(gradient) * sum(lengths)
    return total / max(1, sum(lengths))


def after_the_sum(gradient, lengths):
    totals = yield np.append(np.nan_to_num(gradient), sum(lengths))
    return totals[:-1] * sum(lengths) / totals[-1]


def empty_rank_is_nan(gradient, lengths):
    totals = yield np.append(gradient * sum(lengths), sum(lengths))
    return totals[:-1] / totals[-1]


def no_sequence_is_nan(gradient, lengths):
    """Zeros from a rank that has no sequence, but not from one whose sequences have no tokens."""
    own = gradient * sum(lengths) if lengths else np.zeros_like(gradient)
    totals = yield np.append(own, sum(lengths))
    return totals[:-1] / totals[-1]


def empty_rank_stays_away(gradient, lengths):
    if not lengths:
        return np.zeros_like(gradient)
    return (yield from _average(sum)(gradient, lengths))


def lengths_used_up(gradient, lengths):
    tokens = 0
    while lengths:
        tokens += lengths.pop()
    return (yield from _average(lambda _: tokens, lambda _: tokens)(gradient, []))


def never_reduced(gradient, lengths):
    yield 0
    return gradient


def _moments(x):
    n, total, squares = yield len(x), x.sum(), (x**2).sum()
    return total / n, squares / n - (total / n) ** 2


def _means(slopes, y):
    n, first, second = yield len(y), slopes.sum(), (slopes * y).sum()
    return first / n, second / n


def _batch_norm(moments=_moments, means=_means):
    """Batch normalisation with one thing wrong."""

    def batch_norm(x, slopes):
        mean, variance = yield from moments(x)
        inverse = 1 / np.sqrt(variance + 1e-5)
        y = (x - mean) * inverse
        by_mean, by_variance = yield from means(slopes, y)
        return y, inverse * (slopes - by_mean - y * by_variance)

    return batch_norm


def normalised_in_place(x, slopes):
    """Right numbers, in the memory of the examples."""
    n, total, squares = yield len(x), x.sum(), (x**2).sum()
    inverse = 1 / np.sqrt(squares / n - (total / n) ** 2 + 1e-5)
    x -= total / n
    x *= inverse
    by_mean, by_variance = yield from _means(slopes, x)
    return x, inverse * (slopes - by_mean - x * by_variance)


def own_moments(x):
    yield 0
    return x.mean(), x.var()


def own_means(slopes, y):
    yield 0
    return slopes.mean(), (slopes * y).mean()


def mean_of_variances(x):
    mean, _ = yield from _moments(x)
    world, variances = yield 1, x.var()
    return mean, variances / world


def mean_of_means(x):
    world, means = yield 1, x.mean()
    n, squares = yield len(x), ((x - means / world) ** 2).sum()
    return means / world, squares / n


def own_number(x):
    """Sums over the ranks, divided by the number of the own examples."""
    total, squares = yield x.sum(), (x**2).sum()
    mean = total / len(x)
    return mean, abs(squares / len(x) - mean**2)


def constant_statistics(slopes, y):
    yield 0
    return 0, 0


MUTANTS = (
    Mutant("02.1", "one sum for all", one_sum_for_all, "and yet it drifts"),
    Mutant("02.1", "the ring", ring, "and yet it drifts"),
    Mutant("02.1", "an own order on every rank", collectives.in_own_order, "and yet it drifts"),
    Mutant("02.1", "double precision", double_precision, "the right sum"),
    Mutant("02.1", "own contribution forgotten", own_forgotten, "the right sum"),
    Mutant("02.1", "noise", noise, "the right sum"),
    Mutant("02.2", "only what is copied", ("AB", 2), "the ways"),
    Mutant("02.2", "addition does not commute", ("ABF", 2), "the ways"),
    Mutant("02.2", "whatever is right", ("ABCDEF", 2), "the ways"),
    Mutant("02.2", "a tree on every rank", ("ABCDF", 2), "the ways"),
    Mutant("02.2", "all of them on their way", ("ABC", 2), "the ways"),
    Mutant("02.2", "every rank its own", ("ABCF", 4), "the sums of D"),
    Mutant("02.2", "all the same", ("ABCF", 1), "the sums of D"),
    Mutant("02.3", "plain mean", _average(lambda own: 1, lambda own: 1), "unequal tokens"),
    Mutant("02.3", "by sequences", _average(len, len), "unequal tokens"),
    Mutant("02.3", "own number of tokens", own_number_of_tokens, "unequal tokens"),
    Mutant("02.3", "after the sum", after_the_sum, "unequal tokens"),
    Mutant("02.3", "list of lengths used up", lengths_used_up, "unequal tokens"),
    Mutant("02.3", "NaN", empty_rank_is_nan, "a rank without tokens"),
    Mutant("02.3", "one rank stays away", empty_rank_stays_away, "a rank without tokens"),
    Mutant("02.3", "sequences without tokens", no_sequence_is_nan, "a rank without tokens"),
    Mutant("02.4", "every rank for itself", _batch_norm(own_moments, own_means), "forward"),
    Mutant("02.4", "mean of local variances", _batch_norm(mean_of_variances), "forward"),
    Mutant("02.4", "mean of local means", _batch_norm(mean_of_means), "forward"),
    Mutant("02.4", "own number of examples", _batch_norm(own_number), "forward"),
    Mutant("02.4", "normalised in place", normalised_in_place, "forward"),
    Mutant("02.4", "forward only", _batch_norm(means=own_means), "backward"),
    Mutant("02.4", "statistics taken as constants", _batch_norm(means=constant_statistics), "backward"),
)

WORTHLESS = (
    ("02.1", noise),
    ("02.1", noise_on_fractions),
    ("02.1", one_rank_in_double_precision),
    ("02.3", never_reduced),
    ("02.4", _batch_norm(own_moments, own_means)),
)
"""Answers that must not earn a single point."""
