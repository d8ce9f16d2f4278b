"""Checks of exercise 01: the average, the step, the two meters, and which meter shows a mistake."""

from collections.abc import Callable, Collection
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpbook.classroom import (
    Answer,
    NotAnswered,
    Numbers,
    call,
    describe,
    expect,
    expect_close,
    expect_equal,
    expect_items,
    known_mistake,
    value,
)
from dpbook.core import plural

Array = NDArray[np.float64]
WORLDS = (1, 2, 3, 5, 8)

# 01.1: predict the average


def _average(numbers: tuple[int, int], cut: int) -> float:
    """Return the average of the mean gradients over the first ``cut`` of six examples and over the others."""
    slope, first = numbers
    x = np.arange(first, first + 6.0)
    gradients = 2 * (0 - slope * x) * x  # derivative of (w·x − slope·x)² by w, at w = 0
    return float((gradients[:cut].mean() + gradients[cut:].mean()) / 2)


def _average_text(numbers: tuple[int, int]) -> list[str]:
    slope, first = numbers
    x = [str(first + place) for place in range(6)]
    equal, unequal = (f"{', '.join(x[:cut])} and the second {', '.join(x[cut:])}" for cut in (3, 2))
    return [f"x = {', '.join(x)} with y = {slope}x", f"has the examples {equal}", f"has {unequal}"]


AVERAGE = Numbers(
    "01.1",
    (3, 1),
    lambda: [
        numbers
        for numbers in product(range(2, 10), range(1, 7))
        if all(_average(numbers, cut).is_integer() for cut in (2, 3))
    ],
    _average_text,
    lambda numbers: (round(_average(numbers, 3)), round(_average(numbers, 2))),
)
"""The slope of y and the first x, with whole averages."""


def predicts(answer: Answer, rng: np.random.Generator, *, index: int, cut: int) -> None:
    got = expect_items(value(answer), 2, "two numbers: (equal, unequal)")
    expected = _average(AVERAGE.now, cut)
    mistakes = {
        "This is the sum of the two means. The average of two ranks is half of it.": 2 * expected,
        "The sign is wrong: at w = 0 the model predicts 0, which is less than y, so w has to grow.": -expected,
        "A factor of 2 is missing: the derivative of (wx − y)² by w is 2(wx − y)x.": expected / 2,
        "This is the mean over all six examples. The two ranks' means count the same, whatever they are a mean over.": (
            _average(AVERAGE.now, 3)
        ),
    }
    why = known_mistake(got[index], mistakes)
    what = f"the average of the means over {cut} and {6 - cut} examples"
    expect(got[index] == expected, what, describe(got[index]), why=why)


equal_shards, unequal_shards = partial(predicts, index=0, cut=3), partial(predicts, index=1, cut=2)

# 01.2: the step


def _gradient(params: Array, x: Array, y: Array) -> Array:
    """Return the gradient of the mean squared error of a linear model, (size,)."""
    return 2 * x.T @ (x @ params - y) / len(x)


def _drive(step: Callable[..., Any], params: Array, x: Array, y: Array, lr: float) -> dict[str, Any]:
    """Return the new replicas, and the arguments of the step's calls of the gradient."""
    calls: list[tuple[Array, Array]] = []

    def gradient(own_params: Array, x: Array, y: Array) -> Array:
        calls.append((np.array(own_params), np.array(x)))
        return _gradient(own_params, x, y)

    new = step(params, gradient, x, y, lr)
    return {"new": new, "params": [p for p, _ in calls], "shards": [s for _, s in calls]}


def _instance(rng: np.random.Generator, world: int) -> tuple[Array, Array, Array]:
    x = rng.normal(size=(4 * world, 3))
    return np.tile(rng.normal(size=3), (world, 1)), x, x @ rng.normal(size=3) + rng.normal(size=4 * world)


def _step(answer: Answer, world: int, params: Array, x: Array, y: Array) -> dict[str, Any]:
    """Make one step of the answer, check its parameters, and return the result of `_drive`."""
    where = plural(world, "rank")
    got = call(answer, params, x, y, 0.1, through=_drive, where=where)
    shards = zip(np.split(x, world), np.split(y, world), strict=True)
    local = [_gradient(replica, *shard) for replica, shard in zip(params, shards, strict=True)]
    mistakes = {
        "This is the step with the sum of the gradients: divide it by the number of ranks.": (
            params - 0.1 * np.sum(local, axis=0)
        ),
        "Every rank has stepped with its own gradient: average the gradients before the step.": (
            params - 0.1 * np.array(local)
        ),
        "The step goes uphill: subtract the gradient.": params + 0.1 * np.mean(local, axis=0),
    }
    right = params - 0.1 * np.mean(local, axis=0)
    expect_close(right, got["new"], 1e-12, where, axes=("rank", "parameter"), mistakes=mistakes)
    return dict(got)


def big_batch(answer: Answer, rng: np.random.Generator) -> None:
    for world in WORLDS:
        _step(answer, world, *_instance(rng, world))


def identical(answer: Answer, rng: np.random.Generator) -> None:
    for world in 3 * WORLDS:  # orders of summation may agree by chance, but not always
        new = _step(answer, world, *_instance(rng, world))["new"]
        expect_equal(np.tile(new[0], (world, 1)), new, plural(world, "rank"), axes=("rank", "parameter"))


def own_shard(answer: Answer, rng: np.random.Generator) -> None:
    for world in WORLDS:
        _, x, y = _instance(rng, world)
        params, where = rng.normal(size=(world, 3)), plural(world, "rank")  # differing: they show whose a rank uses
        calls = call(answer, params, x, y, 0.1, through=_drive, where=where)
        expect(len(calls["shards"]) == world, f"{world} local gradients", f"{len(calls['shards'])}", where)
        index_of = {row.tobytes(): index for index, row in enumerate(x)}
        read = [[index_of.get(row.tobytes(), -1) for row in shard] for shard in calls["shards"]]
        shards = np.arange(4 * world).reshape(world, 4).tolist()
        actual = f"the shards read are of rows {', '.join(map(str, read))}"
        once = sorted(row for rows in read for row in rows) == list(range(4 * world))
        expect(once, "each example on exactly one rank", actual, where)
        expect(sorted(read) == shards, f"4 consecutive examples on each rank: rows {shards[0]}, …", actual, where)
        for rows, used in zip(read, calls["params"], strict=True):
            rank = shards.index(rows)
            place = f"{where}, parameters with rows {rows}, rank {rank}'s"
            expect_equal(params[rank], used, place, axes=("parameter",))
        _step(answer, world, params, x, y)


# 01.3: two meters


def _measured(answer: Answer, index: int, replicas: Array, averaged: Array, whole: Array) -> float:
    got = expect_items(call(answer, replicas, averaged, whole, unchanged=True), 2, "two numbers: (drift, gap)")
    return float(got[index])


def no_drift(answer: Answer, rng: np.random.Generator) -> None:
    for world in WORLDS:
        replicas = np.tile(rng.normal(size=4), (world, 1))
        got = _measured(answer, 0, replicas, replicas, replicas[0])
        expect(got == 0, "drift 0", f"{got}", plural(world, "equal replica"))


def any_pair(answer: Answer, rng: np.random.Generator) -> None:
    for world in (3, 2, 5, 8):  # with two replicas some mistakes have the same result
        replicas = np.tile(rng.integers(-9, 10, 4).astype(float), (world, 1))
        others = np.arange(1, world, 2) if world > 3 else np.arange(world)[-2:]  # no neighbours where that is possible
        low, high = rng.permutation(others)[:2]
        replicas[[low, high], 1] += (-2, 3)
        replicas[[high, low], 2] += (-2, 2)  # a second parameter: the drift is of one, not of both together
        got = _measured(answer, 0, replicas, replicas, replicas[0])
        mistakes = {
            "This is the largest distance from the mean. The drift is that of any two replicas.": (
                np.abs(replicas - replicas.mean(axis=0)).max()
            ),
            "This is the largest distance from rank 0. Two other replicas may be further apart.": (
                np.abs(replicas - replicas[0]).max()
            ),
            "This is a standard deviation. The drift is the largest distance of two replicas in one parameter.": (
                replicas.std(axis=0).max()
            ),
        }
        where = f"{plural(world, 'rank')}, of which {low} and {high} are 5 apart"
        expect(got == 5, "drift 5", f"{got}", where, why=known_mistake(got, mistakes, 1e-12))


def largest_gap(answer: Answer, rng: np.random.Generator) -> None:
    for world in WORLDS:
        whole = rng.integers(-9, 10, 4).astype(float)
        averaged = np.tile(whole, (world, 1))
        rank = int(rng.integers(world))
        averaged[rank, :2] += (3, -4)
        others = np.arange(world) != rank
        averaged[others, :2] += (-3, 2)  # must neither compensate the largest error nor add to it
        got = _measured(answer, 1, averaged, averaged, whole)
        where = f"{plural(world, 'rank')}, rank {rank} is off by 3 and -4, any other by -3 and 2"
        expect(got == 4, "gap 4", f"{got}", where)


# 01.4: which meter shows it?

WORLD, STEPS = 4, 3


def _sum(gradients: Array) -> Array:
    """Return every rank's result of an all-reduce, the sum."""
    return np.tile(gradients.sum(axis=0), (len(gradients), 1))


def _meters_of(exchange: Callable[[Array], Array], *, same_shard: bool = False, offset: float = 0.0) -> str:
    """Run a few steps with one mistake and say which meter moved by more than rounding."""
    rng = np.random.default_rng(0)
    params, x, y = _instance(rng, WORLD)
    params[-1] += offset
    drift = gap = 0.0
    for _ in range(STEPS):
        shards = list(zip(np.split(x, WORLD), np.split(y, WORLD), strict=True))
        shards = [shards[0]] * WORLD if same_shard else shards
        local = np.stack([_gradient(replica, *shard) for replica, shard in zip(params, shards, strict=True)])
        averaged = exchange(local) / WORLD
        gap = max(gap, float(np.abs(averaged - _gradient(params[0], x, y)).max()))
        params = params - 0.1 * averaged
        drift = max(drift, float(np.ptp(params, axis=0).max()))
    moved = [name for name, value_ in (("drift", drift), ("gap", gap)) if value_ > 1e-9]
    return {0: "neither", 1: "".join(moved), 2: "both"}[len(moved)]


MISTAKES: dict[str, Callable[[], str]] = {
    "no mistake": lambda: _meters_of(_sum),
    "the division by the world size is missing": lambda: _meters_of(lambda g: WORLD * _sum(g)),
    "one rank ignores the average": lambda: _meters_of(lambda g: np.vstack([_sum(g)[:-1], WORLD * g[-1:]])),
    "every rank reads the first shard": lambda: _meters_of(_sum, same_shard=True),
    "one rank starts from other parameters": lambda: _meters_of(_sum, offset=0.5),
}
METERS = ("drift", "gap", "both", "neither")


def shown_by(answer: Answer, rng: np.random.Generator, *, names: Collection[str]) -> None:
    got = value(answer)
    expect(isinstance(got, dict) and set(got) == set(MISTAKES), "one entry for each of the five", describe(got))
    if not any(got.values()):
        raise NotAnswered
    for name in names:
        expect(got[name] in METERS, " or ".join(METERS), describe(got[name]), name)
    moved, answers = [MISTAKES[name]() for name in names], [got[name] for name in names]
    # The report does not say which answer is wrong: there are only four possible ones for each run.
    expect(answers == moved, f"the meters that move in these {len(names)} runs", ", ".join(answers), "; ".join(names))


first_runs, last_runs = partial(shown_by, names=[*MISTAKES][:3]), partial(shown_by, names=[*MISTAKES][3:])
