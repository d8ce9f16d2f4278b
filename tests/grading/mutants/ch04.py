"""Wrong answers to exercise 04, each with the mistake that people make."""

import numpy as np

from dpbook.grading.mutants import Mutant

RIGHT = (1.875, 8, 8, 1)


def _updates(divisor=lambda index, n, k: k if index < n - n % k else n % k, at_end=True, due=-1, clear=True):
    """The loop, with what to divide by, whether an epoch's end updates, at which turn of k, and whether to clear."""

    def updates(epochs, accumulation):
        given, buffer = [], 0
        for gradients in epochs:
            n = len(gradients)
            for index, gradient in enumerate(gradients):
                buffer = buffer + gradient / divisor(index, n, accumulation)
                if index % accumulation == due % accumulation or (at_end and index + 1 == n):
                    given.append(buffer)
                    buffer = 0 if clear else buffer
        return given

    return updates


def dropped(epochs, accumulation):
    whole = [gradients[: len(gradients) // accumulation * accumulation] for gradients in epochs]
    return _updates()(whole, accumulation)


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


def _warm_up(done, start=lambda lr: lr, factor=lambda k: k):
    """``done(step, over)`` is the share of the way from the start to the peak."""

    def warm_up(steps, over, lr, k):
        return [start(lr) + (factor(k) * lr - start(lr)) * done(step, over) for step in range(steps)]

    return warm_up


MUTANTS = (
    Mutant("04.1", "what remained, alone", (0.875, *RIGHT[1:]), "the leftover"),
    Mutant("04.1", "as if 15 were averaged", (1, *RIGHT[1:]), "the leftover"),
    Mutant("04.1", "no padding: 118 remain 6", (1.75, *RIGHT[1:]), "the leftover"),
    Mutant("04.1", "K for Adam", (1.875, 8, 8, 8), "three optimizers"),
    Mutant("04.1", "root of K for Adam", (1.875, 8, 8, 8**0.5), "three optimizers"),
    Mutant("04.1", "Adam shows it, SGD hides it", (1.875, 1, 1, 8), "three optimizers"),
    Mutant("04.2", "as most people write it", _updates(lambda i, n, k: k, at_end=False), "each micro-batch once"),
    Mutant("04.2", "leftover dropped", dropped, "each micro-batch once"),
    Mutant("04.2", "buffer not cleared", _updates(clear=False), "each micro-batch once"),
    Mutant("04.2", "update at the first of each group", _updates(due=0), "each micro-batch once"),
    Mutant("04.2", "leftover divided by all", _updates(lambda i, n, k: k), "every update is a mean"),
    Mutant("04.2", "sum in place of mean", _updates(lambda i, n, k: 1), "every update is a mean"),
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
