"""Checks of exercise 04: four factors, the count of all tokens, and the noise scale."""

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from itertools import product, starmap
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpbook.classroom import Answer, Numbers, call, describe, expect, expect_close, expect_items, expect_number, value
from dpbook.core import plural
from dpbook.replicas import SGD, Adam, Optimizer, Sampler, accumulate, feed

Array = NDArray[np.float64]
WORLDS = (2, 5, 7, 16)
ACCUMULATIONS = (1, 2, 5, 7, 8, 16)

# 04.1: predict how many times too large

CLIP = 1.0


class Accumulated(NamedTuple):
    """Numbers of the task; ``length`` is that of the mean gradient."""

    examples: int = 1000
    world: int = 6
    batch: int = 3
    accumulation: int = 5
    length: float = 0.5


def carried(task: Accumulated) -> float:
    """Return the first update of the second epoch, if each micro-batch's gradient is 1 and leftovers stay."""
    fed = feed([Sampler(task.examples, task.world, rank) for rank in range(task.world)], task.examples, task.batch)
    turns = list(accumulate(int(fed.steps[0, 0]), task.accumulation, leftover="carry"))
    updates = [turn.index for turn in turns if turn.update]
    over = sum(Fraction(1, turn.divisor) for turn in turns if turn.index > updates[-1])
    return float(over + sum(Fraction(1, turn.divisor) for turn in turns if turn.index <= updates[0]))


def first_step(task: Accumulated, make: Callable[[float], Optimizer], clip: float = np.inf) -> float:
    """Return the first step with the sum of the ranks' gradients, as a multiple of that with their mean."""
    gradients = (np.full(1, min(length, clip)) for length in (task.world * task.length, task.length))
    summed, mean = (make(0.1).step(np.zeros(1), gradient)[0] for gradient in gradients)
    return float(summed / mean)


FACTORS: dict[str, Callable[[Accumulated], float]] = {
    "leftover": carried,
    "SGD": partial(first_step, make=SGD),
    "SGD with clipping": partial(first_step, make=SGD, clip=CLIP),
    "Adam": partial(first_step, make=Adam),
}
"""The factors, in the order of the answer."""


NTH = {4: "fourth", 5: "fifth", 8: "eighth", 10: "tenth"}


def _factors_text(task: Accumulated) -> list[str]:
    summed = f"{task.world * task.length:g}"
    return [
        f"{task.examples:,} examples on {task.world} ranks",
        f"micro-batches of {task.batch},",
        f"accumulation {task.accumulation}.",
        f"divides each gradient by {task.accumulation} and updates after every {NTH[task.accumulation]} micro-batch",
        f"the division by the {task.world} ranks",
        f"The mean gradient has length {task.length}.",
        f"a gradient of {task.length} and with one of {summed}:",
        f"for g in ({task.length}, {float(summed)})",
    ]


def _distinct(task: Accumulated) -> bool:
    """Return True if micro-batches are left over at an epoch's end, and the four factors differ."""
    factors = [round(factor(task), 6) for factor in FACTORS.values()]
    return factors[0] > 1 and len(set(factors)) == 4


MEASURED = Numbers(
    "04.1",
    Accumulated(),
    lambda: [
        task
        for task in starmap(Accumulated, product((1000,), (6, 8, 12), (2, 3, 4), NTH, (0.25, 0.5)))
        if _distinct(task)
    ],
    _factors_text,
    lambda task: tuple(round(factor(task), 6) for factor in FACTORS.values()),
)


def predicts(answer: Answer, rng: np.random.Generator, *, names: list[str]) -> None:
    got = dict(zip(FACTORS, expect_items(value(answer), 4, "four numbers"), strict=True))
    for name in names:
        near = isinstance(got[name], int | float) and abs(got[name] - FACTORS[name](MEASURED.now)) < 1e-6
        expect(near, f"{name}: the factor that such a run has", describe(got[name]))


leftover = partial(predicts, names=["leftover"])
three_optimizers = partial(predicts, names=["SGD", "SGD with clipping", "Adam"])

# 04.2: the count of all tokens


def counted(answer: Answer, rng: np.random.Generator, *, worlds: tuple[int, ...]) -> None:
    """Check that every token of an update has the same weight, for unequal micro-batches and ranks."""
    cases = []
    for world in worlds:
        for accumulation in ACCUMULATIONS:
            cases.append((world, accumulation, int(rng.choice([accumulation, 2 * accumulation, 7]))))
            cases.append((world, accumulation, 3 * accumulation - 1))  # leaves some over
    for world, accumulation, micro_batches in cases:
        tokens = rng.integers(1, 60, (world, micro_batches))
        where = f"{plural(world, 'rank')}, micro-batches {micro_batches}, accumulation {accumulation}"
        got = call(answer, tokens, accumulation, unchanged=True, where=where)
        good = isinstance(got, np.ndarray) and got.shape == tokens.shape and got.dtype.kind in "fiu"
        expect(good, f"an array of numbers of shape {tokens.shape}", describe(got), where)
        firsts = np.arange(0, micro_batches, accumulation)
        sums = np.add.reduceat(tokens.sum(axis=0), firsts)[np.arange(micro_batches) // accumulation]
        due = got / (world * tokens) * sums  # the exchange divides by the world
        quantity = f"{where}: what a token weighs in its update with these factors, as a multiple of its due"
        every_update = np.minimum(firsts + accumulation, micro_batches) - firsts
        mistakes = {
            "Each micro-batch counts the same, however many tokens it has.": 1 / (accumulation * world * tokens) * sums,
            "The exchange divides by the number of ranks: multiply by it.": np.full(tokens.shape, 1 / world),
            "An update that has fewer micro-batches than the others is divided as if it were full.": (
                np.tile(every_update[np.arange(micro_batches) // accumulation] / accumulation, (world, 1))
            ),
        }
        shown = due.round(12)
        expect_close(np.ones(tokens.shape), shown, 1e-9, quantity, axes=("rank", "micro-batch"), mistakes=mistakes)


one_rank, several_ranks = partial(counted, worlds=(1,)), partial(counted, worlds=WORLDS)

# 04.3: the noise scale


def _noise_scale(steps: Array, local_batch: int) -> float:
    """Return tr Σ / |G|² from the ranks' sample covariance, which is not the way of the task's hint."""
    world = steps.shape[1]
    noise = local_batch * steps.var(axis=1, ddof=1).sum(axis=1)
    signal = (steps.mean(axis=1) ** 2).sum(axis=1) - noise / (local_batch * world)
    return float(noise.sum() / signal.sum())


def estimates(answer: Answer, rng: np.random.Generator, *, count: int) -> None:
    for world in WORLDS:
        local_batch = int(rng.integers(2, 40))
        signs = rng.choice([-1.0, 1.0], size=6)
        lengths = np.linspace(2, 4, count)[:, None, None]  # a signal well above 0, which changes with the steps
        steps = signs * lengths + rng.normal(size=(count, world, 6)) * rng.uniform(0.2, 0.5)
        faint = steps.copy()
        faint[0] -= 0.99 * faint[0].mean(axis=0)  # the mean is less than its noise: this step's |G|² is negative
        for drawn, note in ((steps, ""), (faint, ", the first with an estimate of |G|² below 0")):
            expected = _noise_scale(drawn, local_batch)
            where = f"{plural(count, 'step')}, {world} ranks of {local_batch} examples{note}"
            got = expect_number(call(answer, drawn, local_batch, unchanged=True, where=where), where)
            expect_close(expected, got, 1e-9 * abs(expected), where)  # rounding is about 1e-13 of it


one_step, many_steps = partial(estimates, count=1), partial(estimates, count=12)
