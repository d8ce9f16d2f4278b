"""Checks of exercise 03: a rank's part, an epoch's order, two wrong seeds in numbers, and the rank that waits."""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpbook.classroom import Answer, Numbers, call, call_each, describe, expect, expect_equal, expect_items, value

WORLDS = (1, 2, 5, 7, 16)

# 03.1: the part of a rank


def _parts(part: Callable[..., Any], order: NDArray[np.int64], world: int) -> list[Any]:
    """Return the part of each rank."""
    return [part(order, world, rank) for rank in range(world)]


def dealt(answer: Answer, rng: np.random.Generator, *, sizes: Callable[[int], list[int]]) -> None:
    """Check all ranks' parts on each world, with the sizes of ``sizes(world)``."""
    # Numbers of examples need not start at 0; -1 marks no padding, and a float does not hold an odd number above 2**53.
    begins = itertools.cycle([int(rng.integers(100)), -1, 2**53 + 1])
    for world in WORLDS:
        for size in sizes(world):
            order = rng.permutation(size) + next(begins)
            share = -(-size // world)
            cards = order[np.arange(share * world) % size]
            where = f"world {world}, size {size}, order {order.tolist()}"
            for rank, got in enumerate(call(answer, order, world, through=_parts, where=where)):
                mistakes = {
                    "This is a block of neighbours. Cards are dealt one by one: to every rank the next one in turn.": (
                        cards[rank * share : (rank + 1) * share].tolist()
                    ),
                    "This rank has an example less: pad the order by its first ones, more than once if need be.": (
                        order[: size // world * world][rank::world].tolist()
                    ),
                }
                expect_equal(cards[rank::world].tolist(), got, f"{where}, rank {rank}", mistakes=mistakes)


def uneven(world: int) -> list[int]:
    """Return sizes below and above the world that it does not divide."""
    return [size for size in (1, max(1, world // 2 - 1), world + 1, 3 * world - 1, 4 * world + 1) if size % world]


sizes_that_divide = partial(dealt, sizes=lambda world: [world, 6 * world])
padding = partial(dealt, sizes=uneven)

# 03.2: the order of an epoch


def _orders(answer: Answer, calls: Sequence[tuple[int, int, int]], other_interpreter: bool = False) -> list[list[Any]]:
    """Return the answer's orders for calls with (n, seed, epoch)."""
    returned = call_each(answer, calls, other_interpreter=other_interpreter)
    return [_order(n, got) for (n, _, _), got in zip(calls, returned, strict=True)]


def _order(n: int, got: Any) -> list[Any]:
    """Return an order as a list, after a check that it has every number once."""
    items = got.ravel().tolist() if isinstance(got, np.ndarray) else got
    numbers = isinstance(items, list | tuple) and all(isinstance(item, int | float) for item in items)
    if not numbers or sorted(items) != list(range(n)):  # a description takes time, and orders are thousands
        expect(numbers, "a 1-D array or list of numbers", describe(got))
        expect(len(items) == n, f"{n} numbers", f"{len(items)}: {describe(got)}")
        distinct = len(set(items) & set(range(n)))
        expect(False, f"every number from 0 to {n - 1} once", f"{distinct} of them: {describe(got)}")
    return list(items)


def orders_twice(answer: Answer, rng: np.random.Generator) -> None:
    drawn = [rng.integers((20, 0, 0), (90, 1000, 50)).tolist() for _ in WORLDS]
    calls = [(n, seed, epoch) for n, seed, epoch in drawn]
    twice = _orders(answer, [each for each in calls for _ in range(2)])
    for (n, _, _), first, second in zip(calls, twice[::2], twice[1::2], strict=True):
        expect(first != list(range(n)), "a shuffled order", "the numbers in their own order")
        expect(first == second, "the same order at every call", "another one at the second call")
    elsewhere = _orders(answer, calls, other_interpreter=True)
    for given, first, other in zip(calls, twice[::2], elsewhere, strict=True):
        where = f"(n, seed, epoch) = {given}, two Python processes, as two ranks are"
        expect(first == other, f"the same order in both: {first[:8]} …", f"{other[:8]} … in the second", where)
    _judge_shuffled(answer, rng)


SHUFFLED = 1000  # examples of an order that is judged as a shuffle


def _judge_shuffled(answer: Answer, rng: np.random.Generator) -> None:
    """Check how far examples move, and that the distance from one to the next is not often the same."""
    # A random order of 1,000 moves an example by 333 places on average, give or take 7; it has one distance of
    # neighbours, modulo 1,000, more than 15 times in fewer than one of a billion draws.
    for seed, epoch in rng.integers((0, 0), (1000, 50), (3, 2)).tolist():
        (order,) = _orders(answer, [(SHUFFLED, seed, epoch)])
        where = f"{SHUFFLED:,} examples, seed {seed}, epoch {epoch}"
        moved = np.abs(np.array(order) - np.arange(SHUFFLED)).mean()
        far = "examples that are moved by about 333 places on average, as a shuffle does"
        expect(280 <= moved <= 386, far, f"{moved:.0f} places", where)
        steps = np.diff(order) % SHUFFLED
        distance, times = Counter(steps.tolist()).most_common(1)[0]
        expect(times <= 15, "neighbours at all distances", f"the distance {distance:g} {times} times", where)


FACTORS = [20, 31, 37, 39, 40, 41, 64, 97, 101, 128, 256, 997, 1009, 1024, 1234, 7919, 9973, 10_007, 2**16, 100_000]
LARGE_FACTORS = [100_003, 104_729, 2**20, 1_000_003, 10**7, 10**9, 1_000_000_007, 2**31 - 1]
"""Factors of seed · factor + epoch, with which the pairs (1, 0) and (0, factor) are one; 20 is n.

The large ones are tried for the seed alone: an answer may draw all epochs before the one that is asked for.
"""


def orders_apart(answer: Answer, rng: np.random.Generator) -> None:
    start = int(rng.integers(100))
    small = product(range(64), range(64))
    near = [start + offset for offset in (0, 1, 2, 3, 5, 10, 100, 1000)]
    far = [0, 1, 2, 11, 111, 10_000]  # 1 and 11 look like 11 and 1 if their digits are joined
    mixed = {pair for factor in FACTORS for pair in ((0, factor), (factor, 0))}  # beside (1, 0) and (0, 1)
    mixed |= {(factor, 0) for factor in LARGE_FACTORS} | {(0, 104_729)}
    pairs = sorted({*small, *product(near, near), *product(far, far), *mixed})
    pair_of: dict[tuple[Any, ...], tuple[int, int]] = {}
    for pair, order in zip(pairs, _orders(answer, [(20, *pair) for pair in pairs]), strict=True):
        other = pair_of.setdefault(tuple(order), pair)
        expect(other == pair, "two different orders", "the same one", f"(seed, epoch) = {other} and {pair}")


# 03.3: predict two mistakes

PARTS = {3: ("three", "third"), 4: ("four", "quarter"), 5: ("five", "fifth"), 6: ("six", "sixth"), 10: ("ten", "tenth")}


def _two_mistakes(numbers: tuple[int, int, int]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return different examples in a step and percent of the data in an epoch: all rank 0, and own seeds."""
    examples, world, batch = numbers
    own_step = examples * (1 - (1 - batch / examples) ** world)
    return (batch, 100 / world), (own_step, 100 * (1 - (1 - 1 / world) ** world))


def _mistakes_text(numbers: tuple[int, int, int]) -> list[str]:
    examples, world, batch = numbers
    ranks, part = PARTS[world]
    return [
        f"{examples:,} examples, {ranks} ranks, local batches of {batch}. Each rank reads a {part} of",
        f"is rank 0 of {world}",
        f"takes its {part}",
        f"of a step's {world * batch} examples",
        f"Sampler({examples:_}, {world}, ",
        f"range({world})",
        f"feed(samplers, {examples:_}, batch={batch},",
    ]


MISTAKES = Numbers(
    "03.3",
    (60_000, 4, 32),
    lambda: [
        numbers
        for numbers in product((30_000, 60_000, 90_000, 120_000), PARTS, (16, 32, 64))
        if all(abs(number % 1 - 0.5) > 0.01 for pair in _two_mistakes(numbers) for number in pair)  # none near a half
    ],
    _mistakes_text,
    lambda numbers: tuple((round(step), round(percent)) for step, percent in _two_mistakes(numbers)),
)
"""Examples, which all worlds divide, ranks, and the local batch."""


def predicted(answer: Answer, rng: np.random.Generator) -> None:
    got = expect_items(value(answer), 2, "two pairs: ((examples, percent), (examples, percent))")
    expected = dict(zip(("all rank 0", "own seeds"), _two_mistakes(MISTAKES.now), strict=True))
    for (mistake, (step, percent)), pair in zip(expected.items(), got, strict=True):
        expect_items(pair, 2, "a pair: (examples, percent)", mistake)
        expect(pair[0] == round(step), "different examples in a step, a whole number", repr(pair[0]), mistake)
        expect(pair[1] == round(percent), "percent of the data in an epoch, a whole number", repr(pair[1]), mistake)


# 03.4: the rank that waits


def nobody(answer: Answer, rng: np.random.Generator) -> None:
    for world in WORLDS:
        batch, full = (int(number) for number in rng.integers((3, 0), (20, 9)))
        lengths = [full * batch + int(extra) for extra in rng.integers(1, batch + 1, world)]
        lengths[0], lengths[-1] = full * batch + batch, full * batch + (1 if world > 1 else batch)
        for given in (lengths, lengths[::-1], [lengths[0]] * world):
            got = call(answer, given, batch)
            expect(got is None, f"None: every rank has {full + 1} batches", f"{got!r}")
        if world > 1:  # an answer that always says None has found nothing
            late = [*lengths[1:], lengths[0] + batch]
            expect(call(answer, late, batch) is not None, "a rank that waits", "None")


UNEVEN = (([10, 9, 20], 8), ([20, 10, 9], 8), ([9, 17, 25, 1, 2], 8))
"""Lengths and batch, for which neither examples nor the most batches tell which rank ended or waits."""


def somebody(answer: Answer, rng: np.random.Generator) -> None:
    cases = list(UNEVEN)
    for world in WORLDS[1:]:
        for batch in (1, 8):
            base = int(rng.integers(0, 6)) * batch + batch  # the fewest batches are full, so one more example counts
            lengths = [base + int(extra) for extra in rng.integers(0, 3 * batch, world)]
            few, many = (int(rank) for rank in rng.permutation(world)[:2])
            lengths[few], lengths[many] = base, base + int(rng.integers(1, 3 * batch + 1))
            cases.append((lengths, batch))
    for lengths, batch in cases:
        got = call(answer, lengths, batch)
        steps = [len(range(0, length, batch)) for length in lengths]
        fewest = min(steps)
        step, ended = fewest + 1, steps.index(fewest)
        waiting = next(rank for rank, count in enumerate(steps) if count > fewest)
        mistakes = {
            "Your step is one too small: steps count from 1, incomplete batches too.": (waiting, step - 1, ended),
            "The two ranks are swapped: the first number is the rank that waits.": (ended, step, waiting),
        }
        what = "(rank that waits, step from 1, rank that has ended)"
        expect_equal((waiting, step, ended), got, what, mistakes=mistakes)
