"""Wrong answers to exercise 02, each with the mistake that people make."""

import numpy as np

from dpbook import collectives
from dpbook.grading.mutants import Mutant


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


def half_precision(buffers):
    return _own_order(buffers, np.float16)


def double_precision(buffers):
    return _own_order(buffers, np.float64)


def _average(weight):
    """An average whose weights are ``weight(tokens, sequences, world)`` before the sum."""

    def average(gradients, lengths, all_reduce):
        tokens, sequences = np.array([sum(own) for own in lengths]), np.array([len(own) for own in lengths])
        weighted = np.nan_to_num(gradients) * weight(tokens, sequences, len(lengths))[:, None]
        return all_reduce(weighted) / len(lengths)

    return average


def after_the_sum(gradients, lengths, all_reduce):
    tokens = np.array([sum(own) for own in lengths])
    return all_reduce(np.nan_to_num(gradients)) * (tokens / tokens.sum())[:, None]


def empty_rank_is_nan(gradients, lengths, all_reduce):
    tokens = np.array([sum(own) for own in lengths])
    return all_reduce(gradients * tokens[:, None]) / tokens.sum()


def empty_rank_is_left_out_of_the_exchange(gradients, lengths, all_reduce):
    tokens = np.array([sum(own) for own in lengths])
    held = tokens > 0
    return all_reduce(gradients[held] * tokens[held, None]) / tokens.sum()


def never_reduced(gradients, lengths, all_reduce):
    tokens = np.array([sum(own) for own in lengths])
    mean = (np.nan_to_num(gradients) * tokens[:, None]).sum(axis=0) / tokens.sum()
    return np.tile(mean, (len(lengths), 1))


def reduced_for_show(gradients, lengths, all_reduce):
    all_reduce(np.nan_to_num(gradients))
    return never_reduced(gradients, lengths, all_reduce)


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
    Mutant("02.1", "double precision", double_precision, "the right sum"),
    Mutant("02.1", "own contribution forgotten", own_forgotten, "the right sum"),
    Mutant("02.1", "noise", noise, "the right sum"),
    Mutant("02.1", "half precision", half_precision, "the right sum"),
    Mutant("02.2", "only what is copied", ("AB", 3), "the ways"),
    Mutant("02.2", "addition does not commute", ("ABF", 3), "the ways"),
    Mutant("02.2", "whatever is right", ("ABCDEF", 3), "the ways"),
    Mutant("02.2", "a tree on every rank", ("ABCDF", 3), "the ways"),
    Mutant("02.2", "two ranks are enough", ("ABCF", 2), "the smallest world"),
    Mutant("02.2", "only four in pairs", ("ABCF", 4), "the smallest world"),
    Mutant("02.3", "plain mean", _average(lambda t, s, world: np.ones(world)), "unequal tokens"),
    Mutant("02.3", "by sequences", _average(lambda t, s, world: world * s / s.sum()), "unequal tokens"),
    Mutant("02.3", "divided twice", _average(lambda t, s, world: t / t.sum()), "unequal tokens"),
    Mutant("02.3", "after the sum", after_the_sum, "unequal tokens"),
    Mutant("02.3", "NaN", empty_rank_is_nan, "a rank without tokens"),
    Mutant("02.3", "one rank stays away", empty_rank_is_left_out_of_the_exchange, "a rank without tokens"),
    Mutant("02.4", "every rank for itself", _batch_norm(own_moments, own_means), "forward"),
    Mutant("02.4", "mean of local variances", _batch_norm(mean_of_variances), "forward"),
    Mutant("02.4", "mean of local means", _batch_norm(mean_of_means), "forward"),
    Mutant("02.4", "own number of examples", _batch_norm(own_number), "forward"),
    Mutant("02.4", "forward only", _batch_norm(means=own_means), "backward"),
    Mutant("02.4", "statistics taken as constants", _batch_norm(means=constant_statistics), "backward"),
)

WORTHLESS = (
    ("02.1", noise),
    ("02.1", noise_on_fractions),
    ("02.1", one_rank_in_double_precision),
    ("02.3", never_reduced),
    ("02.3", reduced_for_show),
    ("02.4", _batch_norm(own_moments, own_means)),
)
"""Answers that must not earn a single point."""
