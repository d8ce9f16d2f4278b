"""What the tasks of exercise 14 check: bytes as they are counted, hooks by values and order, cuts, and a norm."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import combinations, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpbook.book.ch14 import cuts
from dpbook.book.ch14.judge.unit_hooks import in_time, processes, reduced, whole
from dpbook.classroom import (
    Answer,
    Wrong,
    call,
    expect,
    expect_at_most,
    expect_close,
    expect_equal,
    expect_number,
    of_all_checks,
)
from dpbook.collectives import Comm, run
from dpbook.core import InvalidArgument, plural
from dpbook.overlap import Sharding, Sizes, Unit, Wires, simulate_sharded

Array = NDArray[Any]

__all__ = [
    "clips_above", "clips_below", "counted", "fits", "in_time", "near_the_best", "processes", "reduced", "whole"
]  # fmt: skip
"""What tasks.toml names."""

# 14.1: bytes of the stages


def free(nbytes: float) -> float:
    """What a collective costs where only its bytes are counted."""
    return 0.0


def counted(answer: Answer, rng: np.random.Generator) -> None:
    """The judge adds up what every collective of a simulated step sends."""
    for ranks in (1, 2, 3, 8, 64):
        parameters = [ranks * int(n) for n in rng.integers(1, 10**6, 4)]
        units = [Unit(str(k), 0.0, 0.0, count) for k, count in enumerate(parameters)]
        for stage, micro_batches in ((s, a) for s in range(4) for a in (1, int(rng.integers(2, 9)))):
            weight, gradient = (int(n) for n in rng.choice([2, 4], 2))
            for keep in (False, True) if stage == 3 else (False,):
                how = Sharding(stage, shards=ranks, reshard=not keep)
                step = simulate_sharded(
                    units, how, Wires(free, free, free), sizes=Sizes(weight, gradient, 8), accumulation=micro_batches
                )
                given = stage, sum(parameters), ranks, micro_batches, weight, gradient, keep
                got = expect_number(call(answer, *given), f"stage {stage}")
                expect_close(sum(step.sent.values()), got, 0.5, "bytes that a rank sends")


# 14.3: units under a memory limit

LAYERS, MODELS = 8, 2
EACH, NEAR, POSSIBLE = 0.9, 1.05, 0.8
"""Shares: of the exposed time of a unit per layer that a cut may have, and of that of the best cut; and how far below a
unit per layer the best cut of a model that is drawn has to be."""


def _all_cuts(count: int) -> Iterator[list[list[int]]]:
    for number in range(count):
        for ends in combinations(range(1, count), number):
            bounds = [0, *ends, count]
            yield [list(range(a, b)) for a, b in pairwise(bounds)]


def _milliseconds(layers: Sequence[cuts.Part], groups: cuts.Groups) -> tuple[float, int]:
    """Exposed, without the last bits; and bytes at the peak."""
    step = cuts.cut_step(layers, groups)
    return round(1e3 * step.timeline.exposed(), 6), step.memory.peak


@lru_cache(maxsize=64)
def _limited(seed: int) -> tuple[int, float, float] | None:
    """Limit in bytes, exposed milliseconds of a unit per layer, and of the best cut within the limit.

    None where the best of all cuts needs no more memory than others, or a unit per layer is hardly worse, or one needs
    no more than as few units as fit, or equal numbers of layers: then a model says little.
    """
    layers, every = cuts.sample_layers(LAYERS, seed), list(_all_cuts(LAYERS))
    tried = [_milliseconds(layers, groups) for groups in every]
    each, (_, most), least = tried[-1][0], min(tried), min(peak for _, peak in tried)
    limit = (most + least) // 2
    fitting = [(exposed, groups) for (exposed, peak), groups in zip(tried, every, strict=True) if peak <= limit]
    best, fewest = min(fitting)[0], min(len(groups) for _, groups in fitting)
    simple = min(exposed for exposed, groups in fitting if len(groups) == fewest or _regular(groups))
    telling = most > 1.03 * least and best <= POSSIBLE * each and simple > NEAR * best
    return (limit, each, best) if telling else None


def _regular(groups: cuts.Groups) -> bool:
    """Whether all units but the last have the same number of layers, and the last no more."""
    sizes = [len(group) for group in groups]
    return len(set(sizes[:-1])) <= 1 and sizes[-1] <= sizes[0]


def _models(rng: np.random.Generator) -> Iterator[tuple[int, int, float, float]]:
    """Seeds of models, the same for all checks, each with what `_limited` says."""
    drawing, left = of_all_checks(rng), MODELS
    while left:
        seed = int(drawing.integers(10**6))
        if found := _limited(seed):
            left -= 1
            yield seed, *found


def _exposed(answer: Answer, seed: int, limit: int) -> float:
    """Milliseconds exposed by the answer's cut, which must be one, and fit."""
    layers, where = cuts.sample_layers(LAYERS, seed), f"sample_layers({LAYERS}, seed={seed}), limit {limit:,}"
    by_hand = f"cut(ch14.sample_layers({LAYERS}, seed={seed}), {limit})"
    got = call(answer, layers, limit, seconds=10.0, where=where, by_hand=by_hand, once=True)
    expected = "lists of neighbouring layers, in order, each layer once"
    expect(got is not None, expected, "None", where)
    try:
        exposed, peak = _milliseconds(layers, got)
    except (InvalidArgument, TypeError, IndexError) as error:
        raise Wrong(expected, str(error), where, cause="no cut") from None
    expect(peak <= limit, f"a peak of at most {limit:,} bytes", f"{peak:,}", where)
    return exposed


def fits(answer: Answer, rng: np.random.Generator) -> None:
    for seed, limit, each, _ in _models(rng):
        where = f"sample_layers({LAYERS}, seed={seed}), limit {limit:,}"
        expect_at_most(round(EACH * each, 6), _exposed(answer, seed, limit), "ms exposed", where)


def near_the_best(answer: Answer, rng: np.random.Generator) -> str:
    pars, found = 0.0, 0.0
    for seed, limit, _, best in _models(rng):
        where, exposed = f"sample_layers({LAYERS}, seed={seed}), limit {limit:,}", _exposed(answer, seed, limit)
        expect_at_most(round(NEAR * best, 6), exposed, "ms exposed", where)
        pars, found = pars + NEAR * best, found + exposed
    return expect_at_most(round(pars, 3), round(found, 3), f"ms exposed in {MODELS} models")


# 14.4: the norm of sharded gradients


def _clip_on(answer: Callable[..., Any], pieces: list[list[Array]], copies: list[int], limit: float) -> list[Any]:
    """For each rank the norm that it returned, its pieces then, and how often it called ``all_reduce``.

    The list that the answer gets is its own: an array that it puts there changes nothing of the rank's.
    """
    made: list[Any] = [None] * len(pieces)

    def program(comm: Comm, x: Array) -> None:
        calls = []

        def all_reduce(number: float) -> float:
            calls.append(number)
            total, theirs = np.array([float(number)]), np.empty(1)
            for shift in range(1, comm.world_size):
                to, source = (comm.rank + shift) % comm.world_size, (comm.rank - shift) % comm.world_size
                comm.sendrecv(np.array([float(number)]), to, theirs, source)
                total += theirs
            return float(total[0])

        own = pieces[comm.rank]
        made[comm.rank] = answer(list(own), copies, limit, all_reduce), own, len(calls)

    run(program, [np.empty(0)] * len(pieces))
    return made


def _gradients(rng: np.random.Generator, world: int) -> tuple[list[list[Array]], list[int], list[Array]]:
    """For each rank its pieces; on how many ranks each lies; and the whole gradients. Some pieces are empty."""
    dividing = [n for n in range(1, world + 1) if world % n == 0]
    copies = [1, world, *(int(n) for n in rng.choice(dividing, 3))]
    sizes = [int(n) for n in rng.integers(1, 2 * world + 4, len(copies))]
    kinds = rng.permutation(["float16", "float32", "float32", "float16", "float32"])
    wholes = [(rng.normal(size=size) * 3).astype(kind) for size, kind in zip(sizes, kinds, strict=True)]
    split = [np.array_split(each, world // n) for each, n in zip(wholes, copies, strict=True)]
    return [[parts[rank % len(parts)].copy() for parts in split] for rank in range(world)], copies, wholes


def clips(answer: Answer, rng: np.random.Generator, *, above: bool) -> None:
    """With limits above the norm, or below it; values of half precision have squares that it cannot hold."""
    for world in (1, 2, 3, 5, 6, 8):
        pieces, copies, wholes = _gradients(rng, world)
        for large in (1, 200):
            given = [[(large * each).astype(each.dtype) for each in rank] for rank in pieces]
            norm = math.sqrt(
                sum(float(np.square((large * each).astype(each.dtype), dtype=float).sum()) for each in wholes)
            )
            limit = norm * (1.5 if above else float(rng.uniform(0.2, 0.8)))
            where = f"{plural(world, 'rank')}, copies {copies}, values around {3 * large}"
            ranks = call(answer, given, copies, limit, through=_clip_on, where=where)
            _judge_clipped(ranks, given, norm, min(1.0, limit / norm), where)


def _judge_clipped(ranks: Any, given: list[list[Array]], norm: float, factor: float, where: str) -> None:
    for rank, (got, pieces, calls) in enumerate(ranks):
        place = f"{where}, rank {rank}"
        expect(calls <= 1, "at most one all_reduce", str(calls), place)
        expect_close(norm, expect_number(got, f"{place}, the norm"), 1e-4 * norm, f"{place}, the norm")
        for k, (before, after) in enumerate(zip(given[rank], pieces, strict=True)):
            exact = factor * before.astype(float)
            bound = 0.0 if factor == 1 else 1e-3 * abs(exact) + 1e-6
            expect_equal(str(before.dtype), str(after.dtype), f"{place}, dtype of piece {k}")
            expect_close(exact, after.astype(float), bound, f"{place}, piece {k}")


clips_below, clips_above = partial(clips, above=False), partial(clips, above=True)
