"""What the tasks of exercise 04 check."""

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dpbook.core import plural
from dpbook.grading import Answer, call, describe, expect, expect_close, expect_items, expect_number, value
from dpbook.replicas import SGD, Adam, Momentum, Optimizer, Sampler, accumulate, feed

Array = NDArray[np.float64]
WORLDS = (2, 5, 7, 16)
ACCUMULATIONS = (1, 2, 5, 7, 8, 16)

# 04.1: predict how many times too large

EXAMPLES, WORLD, ACCUMULATION = 945, 8, 8


def carried() -> float:
    """The first update of the second epoch, where each micro-batch's gradient is 1 and leftovers stay."""
    fed = feed([Sampler(EXAMPLES, WORLD, rank) for rank in range(WORLD)], EXAMPLES, batch=1)
    turns = list(accumulate(int(fed.steps[0, 0]), ACCUMULATION, leftover="carry"))
    done = [turn.index for turn in turns if turn.update]
    over = sum(Fraction(1, turn.divisor) for turn in turns if turn.index > done[-1])
    return float(over + sum(Fraction(1, turn.divisor) for turn in turns if turn.index <= done[0]))


def first_step(make: Callable[[float], Optimizer]) -> float:
    """How many times as far the first step goes with the sum of the ranks' gradients as with their mean."""
    start, mean = np.zeros(1), np.ones(1)
    return float(make(0.1).step(start, WORLD * mean)[0] / make(0.1).step(start, mean)[0])


FACTORS: dict[str, Callable[[], float]] = {
    "leftover": carried,
    "SGD": partial(first_step, SGD),
    "momentum": partial(first_step, Momentum),
    "Adam": partial(first_step, Adam),
}
"""In the order in which the answer holds them."""


def predicts(answer: Answer, rng: np.random.Generator, *, names: list[str]) -> None:
    got = dict(zip(FACTORS, expect_items(value(answer), 4, "four numbers"), strict=True))
    for name in names:
        near = isinstance(got[name], int | float) and abs(got[name] - FACTORS[name]()) < 1e-6
        expect(near, f"{name}: the factor that such a run has", describe(got[name]))


leftover = partial(predicts, names=["leftover"])
three_optimizers = partial(predicts, names=["SGD", "momentum", "Adam"])

# 04.2: the leftover


def _updates(answer: Answer, epochs: list[Array], accumulation: int, where: str) -> Array:
    """What the optimizer is given, as an array (updates, size)."""
    got, size = call(answer, epochs, accumulation, unchanged=True, where=where), epochs[0].shape[1]
    expect(isinstance(got, list | tuple | np.ndarray), "a list of arrays, one per update", describe(got), where)
    for update, row in enumerate(got):
        good = isinstance(row, np.ndarray) and row.shape == (size,)
        expect(good, f"an array of shape ({size},)", describe(row), f"{where}: update {update}")
    return np.array(got, float)


def _cases(rng: np.random.Generator) -> Iterator[tuple[list[int], int]]:
    """Micro-batches of each epoch, and the accumulation: with and without leftovers, and shorter than one update."""
    yield [7, 7], 4
    yield [119, 119], 8
    for accumulation in ACCUMULATIONS:
        longer = int(rng.integers(accumulation + 1, 3 * accumulation + 2))
        yield [2 * accumulation, longer, int(rng.integers(1, accumulation + 1)), longer], accumulation


def _shares(lengths: list[int], accumulation: int) -> Array:
    """The share of each micro-batch in each update, (updates, micro-batches)."""
    rows, begin = [], 0
    for length in lengths:
        for first in range(0, length, accumulation):
            size = min(accumulation, length - first)
            rows.append(np.zeros(sum(lengths)))
            rows[-1][begin + first : begin + first + size] = 1 / size
        begin += length
    return np.array(rows)


def whole(answer: Answer, rng: np.random.Generator) -> None:
    for lengths, accumulation in _cases(rng):
        where = f"epochs of {lengths} micro-batches, accumulation {accumulation}"
        units = np.eye(sum(lengths))  # micro-batch m has gradient 1 in element m alone: an update tells its parts
        got = _updates(answer, np.split(units, np.cumsum(lengths)[:-1]), accumulation, where)
        expected = _shares(lengths, accumulation)
        expect(len(got) == len(expected), f"{len(expected)} updates", f"{len(got)}", where)
        for update, rows in enumerate(zip(expected, got, strict=True)):
            asked, came = (f"update {update} from micro-batches {np.flatnonzero(row).tolist()}" for row in rows)
            expect(asked == came, asked, came, f"{where}, numbered through")


def means(answer: Answer, rng: np.random.Generator) -> None:
    for lengths, accumulation in _cases(rng):
        where = f"epochs of {lengths} micro-batches, accumulation {accumulation}"
        for kind, gradients in (("all 1", np.ones((sum(lengths), 1))), ("random", rng.normal(size=(sum(lengths), 3)))):
            epochs, told = np.split(gradients, np.cumsum(lengths)[:-1]), f"{where}, gradients {kind}"
            got = _updates(answer, epochs, accumulation, told)
            expect_close(_shares(lengths, accumulation) @ gradients, got, 1e-12, told, axes=("update", "parameter"))


# 04.3: the noise scale


def _noise_scale(steps: Array, local_batch: int) -> float:
    """tr Σ / |G|², by another way than the task's hint: from the ranks' sample covariance."""
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
        for drawn, what in ((steps, ""), (faint, ", the first with an estimate of |G|² below 0")):
            expected = _noise_scale(drawn, local_batch)
            where = f"{plural(count, 'step')}, {world} ranks of {local_batch} examples{what}"
            got = expect_number(call(answer, drawn, local_batch, unchanged=True, where=where), where)
            expect_close(expected, got, 1e-9 * abs(expected), where)  # rounding is about 1e-13 of it


one_step, many_steps = partial(estimates, count=1), partial(estimates, count=12)

# 04.4: the warm-up


def rises(answer: Answer, rng: np.random.Generator) -> None:
    for steps, over in ((6, 3), (20, 1), (100, 5), (int(rng.integers(30, 90)), int(rng.integers(6, 20))), (9, 9)):
        lr, k = int(rng.integers(1, 10)) / 100, int(rng.integers(2, 17))
        expected = np.full(steps, k * lr)
        expected[:over] = np.linspace(lr, k * lr, over + 1)[1:]
        where = f"{steps} steps, {over} of warm-up, lr {lr}, k {k}"
        got = call(answer, steps, over, lr, k, where=where)
        expect(isinstance(got, list | tuple | np.ndarray), "a list of rates, one per step", describe(got), where)
        expect_close(expected.tolist(), got, 1e-12, where)
