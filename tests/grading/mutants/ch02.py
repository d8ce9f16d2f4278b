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


def _statistics(parts):
    everything = np.concatenate(parts)
    return everything.mean(), everything.var()


def _batch_norm(statistics=_statistics, mean_over=lambda parts: np.concatenate(parts).mean(), each=False):
    """Batch normalisation with one thing wrong; with ``each`` the backward pass knows the own rank only."""

    def batch_norm(x, slopes):
        mean, variance = statistics(x)
        inverse = 1 / np.sqrt(variance + 1e-5)
        y = [(own - mean) * inverse for own in x]
        products = [g * own for g, own in zip(slopes, y, strict=True)]
        dx = []
        for g, own, product in zip(slopes, y, products, strict=True):
            by_mean, by_variance = mean_over([g] if each else slopes), mean_over([product] if each else products)
            dx.append(inverse * (g - by_mean - own * by_variance))
        return y, dx

    return batch_norm


def local_only(x, slopes):
    pairs = [_batch_norm()([own], [g]) for own, g in zip(x, slopes, strict=True)]
    return [y for (y,), _ in pairs], [dx for _, (dx,) in pairs]


def mean_of_variances(parts):
    return np.concatenate(parts).mean(), np.mean([part.var() for part in parts])


def mean_of_means(parts):
    mean = np.mean([part.mean() for part in parts])
    return mean, np.mean((np.concatenate(parts) - mean) ** 2)


def local_number(parts):
    """Sums over the ranks, divided by the number of examples of one of them."""
    everything, n = np.concatenate(parts), len(parts[0])
    mean = everything.sum() / n
    return mean, abs((everything**2).sum() / n - mean**2)


def no_gradient_of_the_statistics(x, slopes):
    y, _ = _batch_norm()(x, slopes)
    inverse = 1 / np.sqrt(np.concatenate(x).var() + 1e-5)
    return y, [g * inverse for g in slopes]


MUTANTS = (
    Mutant("02.1", "one sum for all", one_sum_for_all, "and yet it drifts"),
    Mutant("02.1", "the ring", ring, "and yet it drifts"),
    Mutant("02.1", "double precision", double_precision, "and yet it drifts"),
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
    Mutant("02.4", "every rank for itself", local_only, "forward"),
    Mutant("02.4", "mean of local variances", _batch_norm(mean_of_variances), "forward"),
    Mutant("02.4", "mean of local means", _batch_norm(mean_of_means), "forward"),
    Mutant("02.4", "local number of examples", _batch_norm(local_number), "forward"),
    Mutant("02.4", "forward only", _batch_norm(each=True), "backward"),
    Mutant("02.4", "statistics taken as constants", no_gradient_of_the_statistics, "backward"),
)
