"""Checks of exercise 02: drift without a bug, orders of addition, token weights, batch normalisation over all ranks."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np

from dpbook import collectives
from dpbook.classroom import Answer, Wrong, call, describe, expect, expect_close, expect_equal, expect_items, value
from dpbook.collectives import Agreement, Round, Schedule, agreement, in_own_order
from dpbook.replicas import Array, drift, rounding_bound

WORLDS = (1, 2, 5, 7, 16)
PROCESS_WORLDS = (1, 2, 5, 7, 8)  # worlds of tasks in which each rank may be a process of its own

# 02.1: drift without a bug


def _positive(rng: np.random.Generator, world: int, size: int) -> Array:
    """Draw positive terms, which do not cancel: `allclose`, with a relative tolerance, then passes for every order."""
    return rng.uniform(1, 2, (world, size)).astype(np.float32)


def _only_added(answer: Answer, rng: np.random.Generator) -> None:
    """Check that sums are float32 sums of the terms in some order; noise or a higher precision gives others."""
    for world, size in ((3, 1000), (4, 1000), (5, 500), (7, 100)):
        terms = _positive(rng, world, size) * 2 ** rng.integers(0, 10, (world, size)).astype(np.float32)
        where = f"world {world}, numbers from 1 to 1,024"
        got = call(answer, terms, where=where)
        exact, bound = terms.sum(axis=0) + np.zeros_like(terms), rounding_bound(terms, n_ops=world)
        expect_close(exact, got, bound, where, axes=("rank", "element"))
        possible = _possible_sums(terms)
        wrong = np.argwhere(~np.array([(row == possible).any(axis=0) for row in got]))
        if len(wrong):
            rank, element = wrong[0]
            sums = ", ".join(f"{total:.9g}" for total in np.unique(possible[:, element]))
            place = f"{where}: rank {rank}, element {element}"
            expect(False, f"a float32 sum of the {world} terms: {sums}", f"{got[rank, element]:.9g}", place)


def _possible_sums(terms: Array) -> Array:
    """Return all float32 sums (orders, size) of terms (world, size): 3, 15, 105 orders for 3, 4, 5 ranks."""
    # By the ranks that are added, each a bit.
    sums: dict[int, Array] = {1 << rank: term[None] for rank, term in enumerate(terms)}
    for ranks in range(1, 2 ** len(terms)):
        if ranks not in sums:
            first = ranks & -ranks  # its part comes first: the other way round is the same sum
            parts = [part for part in range(first, ranks) if part & ranks == part and part & first]
            found = [sums[part][:, None] + sums[ranks - part][None] for part in parts]
            sums[ranks] = np.concatenate([pairs.reshape(-1, terms.shape[1]) for pairs in found])
    return sums[2 ** len(terms) - 1]


def right_sum(answer: Answer, rng: np.random.Generator) -> None:
    for world in WORLDS:
        whole = rng.integers(-99, 100, (world, 9)).astype(np.float32)
        exact = np.tile(whole.sum(axis=0), (world, 1))  # sums of such small whole numbers are exact in any order
        where = f"world {world}, whole numbers"
        expect_equal(exact, call(answer, whole, unchanged=True, where=where), where, axes=("rank", "element"))
        terms = _positive(rng, world, 50)
        exact = np.tile(terms.sum(axis=0, dtype=np.float64).astype(np.float32), (world, 1))
        where = f"world {world}, numbers from 1 to 2"
        got = call(answer, terms, where=where)
        expect_close(exact, got, rounding_bound(terms, n_ops=world), where, axes=("rank", "element"))
    _only_added(answer, rng)


def drifts(answer: Answer, rng: np.random.Generator) -> None:
    for world in (3, 4, *WORLDS[2:]):
        where = f"world {world}, float32"
        returned = call(answer, _positive(rng, world, 1000), where=where)
        got = np.asarray(returned)
        expect(got.ndim == 2, "an array (world, size)", describe(returned), where)
        same = "1,000 sums with the same bits on every rank"
        equal = np.array_equal(got[0], got[1])
        expect(equal, "the same bits on ranks 0 and 1", "sums that differ on these two", where)
        expect(not drift(got).identical, "two ranks that differ in their last bits", same, where)
        expect(np.allclose(got, got[0]), "sums that pass allclose", "sums that do not", where)
    _only_added(answer, rng)


# 02.2: which orders agree?


def _in_pairs(world: int) -> Schedule:
    ranks = np.arange(world)
    return Schedule(world, 1, [Round.of(ranks, ranks ^ 2**s, 0, True) for s in range(world.bit_length() - 1)])


def _round_the_circle(world: int) -> Schedule:
    ranks = np.arange(world)
    return Schedule(world, 1, [Round.of((ranks + 2**s) % world, ranks, 0, True) for s in range(world.bit_length() - 1)])


def _in_rank_order(buffers: Array) -> Array:
    total = buffers[0]
    for buffer in buffers[1:]:
        total = total + buffer
    return np.array([total] * len(buffers), dtype=buffers.dtype)


WAYS: dict[str, Callable[[int], Agreement]] = {
    "A": lambda world: agreement(collectives.parameter_server(world)),
    "B": lambda world: agreement(collectives.ring(world)),
    "C": lambda world: agreement(_in_pairs(world)),
    "D": lambda world: agreement(_round_the_circle(world)),
    "E": lambda world: agreement(in_own_order, world),
    "F": lambda world: agreement(_in_rank_order, world),
}


def _predicted(answer: Answer, index: int) -> Any:
    return expect_items(value(answer), 2, "a pair: (letters, sums)")[index]


def the_ways(answer: Answer, rng: np.random.Generator) -> None:
    got = _predicted(answer, 0)
    expect(isinstance(got, str), "a string of letters from A to F", repr(got))
    chosen = set(got.upper()) - set(" ,")
    expect(chosen <= set(WAYS), "letters from A to F", got)
    right = {way for way, sums_of in WAYS.items() if sums_of(4).agrees}
    # The report does not say which letter is wrong: six checks would then give the answer.
    expect(chosen == right, "every way that leaves equal bits on all four ranks, and no other", got)


def sums_of_d(answer: Answer, rng: np.random.Generator) -> None:
    got = _predicted(answer, 1)
    different = len(set(WAYS["D"](4).sums[:, 0]))
    expect(got == different, "how many different sums the four ranks can have in way D, a whole number", repr(got))


# 02.3 and 02.4: one run per rank, sums by `yield`


def _in_step(function: Callable[..., Any], *arguments: list[Any]) -> list[Any]:
    """Run one generator per rank, each with its own arguments, and send all of them the sums of their values."""
    ranks = [function(*of_rank) for of_rank in zip(*arguments, strict=True)]
    expect(all(isinstance(rank, Generator) for rank in ranks), "`totals = yield values` in it", "no `yield`")
    totals: Any = None
    while True:
        values, results = [], []
        for rank in ranks:
            try:
                yielded = rank.send(copy(totals))  # a rank may write to its copy
            except StopIteration as stop:
                results.append(stop.value)
                continue
            try:
                values.append(np.asarray(yielded))
            except ValueError:  # such as a number beside an array
                raise Wrong("a number, a tuple of numbers or an array from `yield`", describe(yielded)) from None
        if len(results) == len(ranks):
            return results
        expect(not results, "as many all-reduces on every rank", "a rank that returns while others wait for a sum")
        if any(v.shape != values[0].shape or v.dtype.kind not in "biuf" for v in values):
            raise Wrong("numbers of one shape from every rank", ", ".join(f"{v.dtype} {v.shape}" for v in values))
        totals = np.sum(values, axis=0)


def _close_on_every_rank(
    expected: Sequence[Array],
    got: Sequence[Any],
    bound: float,
    where: str,
    axis: str,
    mistakes: Mapping[str, Sequence[Array]],
) -> None:
    """Compare each rank's result; ``mistakes`` maps each explanation to the results of all ranks under that mistake."""
    for rank, (right, result) in enumerate(zip(expected, got, strict=True)):
        known = {why: results[rank] for why, results in mistakes.items()}
        expect_close(right, result, bound, f"{where}, on rank {rank}", axes=(axis,), mistakes=known)


# 02.3: weigh by tokens


def _tokens(answer: Answer, lengths: list[list[int]], rng: np.random.Generator, where: str, size: int = 6) -> None:
    """Draw gradients per token, so that the mean over all tokens is known, and compare with it."""
    per_token = [rng.integers(-9, 10, (sum(of_rank), size)).astype(float) for of_rank in lengths]
    means = [g.mean(axis=0) if len(g) else np.full(size, np.nan) for g in per_token]
    expected = [np.concatenate(per_token).mean(axis=0)] * len(lengths)
    got = call(answer, means, lengths, through=_in_step, unchanged=True, where=where)
    mistakes = {
        "This is the mean of the ranks' means: a rank with few tokens counts as much as one with many.": (
            [np.mean(means, axis=0)] * len(means)
        ),
    }
    _close_on_every_rank(expected, got, 1e-12, where, "parameter", mistakes)


def _draw_lengths(rng: np.random.Generator, world: int) -> list[list[int]]:
    """Draw one long sequence for rank 0, and up to three short ones for each other: all have different weights."""
    rest = [rng.integers(1, 8, rng.integers(1, 4)).tolist() for _ in range(world - 1)]
    return [[int(rng.integers(20, 40))], *rest]


def unequal_tokens(answer: Answer, rng: np.random.Generator) -> None:
    for world in PROCESS_WORLDS:
        _tokens(answer, _draw_lengths(rng, world), rng, f"world {world}")
        _tokens(answer, _draw_lengths(rng, world), rng, f"world {world}, one parameter", size=1)


def empty_rank(answer: Answer, rng: np.random.Generator) -> None:
    for world in PROCESS_WORLDS[1:]:
        lengths = _draw_lengths(rng, world)
        empty = int(rng.integers(world))
        if world == 2:
            lengths[1 - empty] = [3, 4]
        for none in ([], [0, 0]):
            lengths[empty] = none
            _tokens(answer, lengths, rng, f"world {world}, rank {empty} without a token, lengths {none}")


# 02.4: batch normalisation over all ranks

EPSILON = 1e-5


def _batch_norm(x: Array, slopes: Array) -> tuple[Array, Array]:
    """Return (x − mean) / √(variance + ε) of the whole batch, and the derivative of the loss by x."""
    inverse = 1 / np.sqrt(x.var() + EPSILON)
    y = (x - x.mean()) * inverse
    return y, inverse * (slopes - slopes.mean() - y * (slopes * y).mean())


def _normalised(answer: Answer, rng: np.random.Generator) -> Iterator[tuple[str, list[list[Array]], Any]]:
    for world in PROCESS_WORLDS:
        ends = np.cumsum(rng.integers(1, 9, world))
        x, slopes = rng.normal(rng.normal(), 2, ends[-1]), rng.normal(size=ends[-1])
        whole = _batch_norm(x, slopes)
        where = f"world {world} with {', '.join(map(str, np.diff([0, *ends])))} examples"
        parts = [np.split(values, ends[:-1]) for values in (x, slopes, *whole)]
        got = call(answer, parts[0], parts[1], through=_in_step, unchanged=True, where=where)
        for rank, pair in enumerate(got):
            expect_items(pair, 2, "two arrays: (y, dx)", f"{where}, rank {rank}")
        yield where, parts, list(zip(*got, strict=True))


def forward(answer: Answer, rng: np.random.Generator) -> None:
    for where, (x, slopes, y, _), got in _normalised(answer, rng):
        own = [_batch_norm(*part)[0] for part in zip(x, slopes, strict=True)]
        mistakes = {"Each rank has normalised by the mean and variance of its own examples.": own}
        _close_on_every_rank(y, got[0], 1e-9, f"{where}, y", "example", mistakes)


def backward(answer: Answer, rng: np.random.Generator) -> None:
    for where, (x, slopes, y, dx), got in _normalised(answer, rng):
        inverse = 1 / np.sqrt(np.concatenate(x).var() + EPSILON)
        mistakes = {
            "The mean and the variance depend on x too, and so does the loss through them. Here they are constants.": (
                [inverse * slope for slope in slopes]
            ),
            "The two means in backward are over a rank's own examples: they are over those of all ranks.": [
                inverse * (slope - slope.mean() - part * (slope * part).mean())
                for slope, part in zip(slopes, y, strict=True)
            ],
        }
        _close_on_every_rank(dx, got[1], 1e-9, f"{where}, dx", "example", mistakes)
