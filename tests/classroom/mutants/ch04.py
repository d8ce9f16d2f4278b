"""Wrong answers to exercise 04, each with the mistake that people make."""

import numpy as np

from dpbook.classroom.tasks.judging import Mutant

RIGHT = (1.2, 6, 2, 1)


def _factors(tokens, accumulation, *, weight=lambda tokens: tokens, world=len, total=lambda group: group.sum()):
    """World × tokens / the tokens of all of an update, with another word for each of the three."""
    first = range(0, tokens.shape[1], accumulation)
    groups = [tokens[:, m : m + accumulation] for m in first]
    return np.hstack([world(group) * weight(group) / total(group) * np.ones(group.shape) for group in groups])


def _counting(**words):
    return lambda tokens, accumulation: _factors(tokens, accumulation, **words)


def mean_of_means(tokens, accumulation):
    return np.full(tokens.shape, 1 / accumulation)


def epochs_tokens(tokens, accumulation):
    return len(tokens) * tokens / tokens.sum()


def leftover_as_if_full(tokens, accumulation):
    factors = _factors(tokens, accumulation)
    left = tokens.shape[1] % accumulation
    factors[:, tokens.shape[1] - left :] *= left / accumulation
    return factors


def _estimate(step, b):
    """Signal and noise of one step, as it should be."""
    total = b * len(step)
    small, large = (step**2).sum(axis=1).mean(), (step.mean(axis=0) ** 2).sum()
    return (total * large - b * small) / (total - b), (small - large) / (1 / b - 1 / total)


def mean_of_ratios(steps, b):
    return float(np.mean([noise / signal for signal, noise in (_estimate(step, b) for step in steps)]))


def swapped(steps, b):
    world = steps.shape[1]
    return _sums(
        steps, lambda s, a: (b * a - world * b * s) / (b - world * b), lambda s, a: (s - a) / (1 / b - 1 / b / world)
    )


def uncorrected(steps, b):
    world = steps.shape[1]
    return _sums(steps, lambda s, a: a, lambda s, a: (s - a) / (1 / b - 1 / b / world))


def clamped(steps, b):
    """An estimate of a square may be negative; made positive it is no longer right on average."""
    signals, noises = zip(*(_estimate(step, b) for step in steps), strict=True)
    return float(sum(noises) / sum(max(signal, 1e-12) for signal in signals))


def local_batch_forgotten(steps, b):
    return mean_of_sums(steps, 1)


def mean_of_sums(steps, b):
    signals, noises = zip(*(_estimate(step, b) for step in steps), strict=True)
    return float(sum(noises) / sum(signals))


def last_step_only(steps, b):
    return mean_of_sums(steps[-1:], b)


def _sums(steps, signal, noise):
    pairs = [((step**2).sum(axis=1).mean(), (step.mean(axis=0) ** 2).sum()) for step in steps]
    return float(sum(noise(*pair) for pair in pairs) / sum(signal(*pair) for pair in pairs))


def _warm_up(steps, start=lambda lr: lr, factor=lambda k: k):
    """``done(step, over)`` is the share of the way from the start to the peak."""

    def warm_up(steps, over, lr, k):
        return [start(lr) + (factor(k) * lr - start(lr)) * steps(step, over) for step in range(steps)]

    return warm_up


MUTANTS = (
    Mutant("04.1", "what remained, alone", (0.2, *RIGHT[1:]), "the leftover"),
    Mutant("04.1", "as if 6 were averaged", (1, *RIGHT[1:]), "the leftover"),
    Mutant("04.1", "examples in place of micro-batches", (1.4, *RIGHT[1:]), "the leftover"),
    Mutant("04.1", "N for Adam", (1.2, 6, 2, 6), "three optimizers"),
    Mutant("04.1", "clipping changes nothing", (1.2, 6, 6, 1), "three optimizers"),
    Mutant("04.1", "clipping hides it", (1.2, 6, 1, 1), "three optimizers"),
    Mutant("04.2", "mean of micro-batch means", mean_of_means, "one rank"),
    Mutant("04.2", "for a loss that is a sum", _counting(weight=lambda group: 1), "one rank"),
    Mutant("04.2", "all tokens of the epoch", epochs_tokens, "one rank"),
    Mutant("04.2", "leftover as if it were full", leftover_as_if_full, "one rank"),
    Mutant("04.2", "own tokens", _counting(total=lambda g: g.sum(axis=1)[:, None] * len(g)), "several ranks"),
    Mutant("04.2", "N left out", _counting(world=lambda group: 1), "several ranks"),
    Mutant("04.3", "b and B swapped", swapped, "one step"),
    Mutant("04.3", "signal not corrected for noise", uncorrected, "one step"),
    Mutant("04.3", "signal not below 0", clamped, "one step"),
    Mutant("04.3", "local batch forgotten", local_batch_forgotten, "one step"),
    Mutant("04.3", "mean of ratios", mean_of_ratios, "many steps"),
    Mutant("04.3", "last step only", last_step_only, "many steps"),
    Mutant("04.4", "starts at 0", _warm_up(lambda step, over: min(1, step / over), lambda s: 0), "the whole schedule"),
    Mutant("04.4", "off by one", _warm_up(lambda step, over: min(1, step / over)), "the whole schedule"),
    Mutant("04.4", "rises from 0", _warm_up(lambda s, over: min(1, (s + 1) / over), lambda s: 0), "the whole schedule"),
    Mutant("04.4", "never the peak", _warm_up(lambda s, over: min(s + 1, over) / (over + 1)), "the whole schedule"),
    Mutant(
        "04.4",
        "square root of k",
        _warm_up(lambda step, over: min(1, (step + 1) / over), factor=lambda k: k**0.5),
        "the whole schedule",
    ),
    Mutant("04.4", "rises for ever", _warm_up(lambda step, over: (step + 1) / over), "the whole schedule"),
)
