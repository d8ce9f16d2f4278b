"""Checks of tasks 11.4 and 11.5: an update that all ranks skip or none, and a run that resumes to the same bits."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpbook.classroom import Answer, call, expect, expect_close, expect_equal, expect_items, expect_number
from dpbook.collectives import Comm
from dpbook.collectives.programs import call_on_ranks, exchange
from dpbook.core import plural

Array = NDArray[Any]

# 11.4: all skip, or none


def _update_on(
    answer: Callable[..., Any], weights: list[Array], gradients: list[Array], scale: float, rate: float
) -> list[Any]:
    """Return, for each rank, the scale that it returned, and its weights, its gradient and its all-reduces then."""

    def on_rank(comm: Comm) -> tuple[Any, Array, Array, int]:
        calls = []

        def all_reduce(number: float) -> float:
            calls.append(number)
            return float(np.sum(exchange(comm, np.array([float(number)]))))

        mine, gradient = weights[comm.rank], gradients[comm.rank]
        return answer(mine, gradient, scale, rate, all_reduce), mine, gradient, len(calls)

    return call_on_ranks(on_rank, len(weights))


FINITE = ("ordinary", "large", "empty shards")
BROKEN = {
    **{kind: [[float(kind)]] for kind in ("inf", "-inf", "nan")},
    "both": [[np.inf, -np.inf]],
    "two ranks": [[np.inf], [-np.inf]],
}
"""Kinds of gradients; a broken one has these values on a random rank and on the ranks after it."""


def updates(answer: Answer, rng: np.random.Generator, *, kinds: Sequence[str]) -> None:
    """Try updates whose gradients are finite or hold an inf or a NaN, in worlds of 1 to 5 ranks."""
    for world in (1, 2, 3, 5):
        for kind in kinds:
            sizes = [int(size) for size in rng.integers(3, 9, world)]
            if kind == "empty shards" and world > 1:
                sizes[int(rng.integers(world))] = 0
            scale = float(rng.choice([2.0 ** int(rng.integers(3, 17)), float(rng.integers(3, 99)), rng.uniform(1, 2)]))
            rate = float(rng.uniform(0.01, 0.5))
            weights = [rng.normal(size=size) for size in sizes]
            gradients = [(rng.normal(size=size) * scale).astype(np.float32) for size in sizes]
            if kind == "large":
                gradients = [np.full(size, 3e38, np.float32) for size in sizes]  # finite; sums and multiples are not
                rate, scale = 2.0, max(scale, 8.0)
            if kind in BROKEN:
                for rank, values in enumerate(BROKEN[kind], start=int(rng.integers(world))):
                    gradient = gradients[rank % world]
                    gradient[rng.choice(gradient.size, len(values), replace=False)] = values
            where = f"{plural(world, 'rank')}, {kind}, scale {scale:.6g}"
            ranks = call(answer, weights, gradients, scale, rate, through=_update_on, where=where)
            _judge_update(ranks, weights, gradients, scale, rate, kind in FINITE, where)


def _judge_update(
    ranks: Any, weights: list[Array], gradients: list[Array], scale: float, rate: float, finite: bool, where: str
) -> None:
    for rank, (got, after, gradient, calls) in enumerate(ranks):
        place = f"{where}, rank {rank}"
        expect(calls == 1, "one all_reduce on every rank", str(calls), place)
        if finite:
            right = weights[rank] - rate * (gradients[rank].astype(float) / scale)
            expect_close(right, after, 1e-5 * (1 + np.abs(right)), f"{place}, weights", axes=("element",))
        else:
            expect_equal(weights[rank], after, f"{place}, weights of a skipped update", axes=("element",))
        expect_equal(gradients[rank], gradient, f"{place}, the gradient, which stays", axes=("element",))
        expected = scale if finite else scale / 2
        expect_equal(expected, expect_number(got, place), f"{place}, the next scale")


# 11.5: resume to the same bits


@dataclass(frozen=True)
class Settings:
    """The settings of a run, as the answer gets them."""

    size: int
    examples: int
    batch: int
    accumulation: int
    rate: float
    momentum: float
    seed: int


def _gradient(weights: Array, examples: Array, mask: Array) -> Array:
    """Return a gradient that depends on every argument, in an order of additions of its own."""
    wanted = np.sin(np.outer(examples + 1.0, np.arange(1.0, len(weights) + 1))).mean(axis=0)
    gradient: Array = (np.asarray(weights) - wanted) * mask
    return gradient


def _train_on(answer: Callable[..., Any], micro_batches: int, saved: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Train by the answer, and return what it returned and the examples of its calls of the gradient."""
    calls: list[list[int]] = []

    def gradient(weights: Array, examples: Array, mask: Array) -> Array:
        calls.append(np.asarray(examples).tolist())
        return _gradient(weights, np.asarray(examples), np.asarray(mask))

    return {"got": answer(micro_batches, saved, gradient, given), "read": calls}


def _uninterrupted(micro_batches: int, s: Settings) -> tuple[Array, list[list[int]]]:
    """Return the weights of the published loop after so many micro-batches, and the examples that it read."""
    rng = np.random.default_rng(s.seed)
    weights, velocity, total = np.zeros(s.size), np.zeros(s.size), np.zeros(s.size)
    read: list[list[int]] = []
    while True:
        order = rng.permutation(s.examples)
        for first in range(0, s.examples, s.batch):
            if len(read) == micro_batches:
                return weights, read
            batch, mask = order[first : first + s.batch], rng.random(s.size) < 0.9
            total += _gradient(weights, batch, mask) / s.accumulation
            read.append(batch.tolist())
            if len(read) % s.accumulation == 0:
                velocity = s.momentum * velocity + total
                weights = weights - s.rate * velocity
                total = np.zeros(s.size)


NEW_PROCESSES = 2
"""Runs whose parts are in processes of their own, in which nothing is left but what was saved."""


def _expect_plain(value: Any, where: str) -> None:
    if isinstance(value, list | tuple | dict):
        for each in [*value, *value.values()] if isinstance(value, dict) else value:
            _expect_plain(each, where)
    expect(not isinstance(value, bytes), "plain values in what is saved", "bytes", where)


def trains_on(answer: Answer, rng: np.random.Generator, *, stops: int) -> None:
    """Compare a run that stops ``stops`` times, at any micro-batch, with one that never does."""
    for number in range(3 if stops == 0 else 6):
        settings = Settings(
            size=4,
            examples=int(rng.integers(7, 12)),
            batch=int(rng.integers(2, 4)),
            accumulation=2 + number % 3,
            rate=0.1,
            momentum=0.9,
            seed=int(rng.integers(99)),
        )
        epoch = -(-settings.examples // settings.batch)
        last = 2 * epoch + int(rng.integers(2, epoch))
        inside = [k for k in range(1, last) if k % epoch and k % settings.accumulation]  # of an epoch and of an update
        at = {epoch} if stops == 1 and number == 0 else {int(rng.choice(inside))} if stops else set()
        if stops > 1:
            at |= set(rng.choice([k for k in range(1, last) if k not in at], stops - 1, replace=False).tolist())
        saved, done, read = None, 0, []
        for end in (*sorted(at), last):
            where = f"{settings}, micro-batches {done} to {end}"
            if done and number < NEW_PROCESSES:
                answer.renew()
            result = call(answer, end - done, saved, asdict(settings), through=_train_on, where=where)
            weights, saved = expect_items(result["got"], 2, "(weights, saved)", where)
            _expect_plain(saved, where)
            read += result["read"]
            expected, examples = _uninterrupted(end, settings)
            expect(read == examples, "the examples of a run that never stopped", f"{result['read']}", where)
            expect_equal(expected, weights, f"{where}, weights", axes=("weight",))
            done = end
