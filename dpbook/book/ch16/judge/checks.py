"""What the tasks of exercise 16 check: parts of a sum, seconds to a goal, sums again, and who needs the fewest."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from dpbook.book.ch16.judge.jobs import Job, drawn_jobs
from dpbook.book.ch16.judge.races import drawn_races, seconds_to_goal
from dpbook.book.ch16.sending import Drawn, Largest, Multiples
from dpbook.classroom import (
    Answer,
    Wrong,
    call,
    describe,
    expect,
    expect_at_most,
    expect_close,
    expect_equal,
    expect_items,
    expect_number,
)
from dpbook.core import plural
from dpbook.replicas import Array

WORLDS = (1, 2, 3, 5, 7)

# 16.1: what is sent, and what is kept

COMPRESSORS = {"Largest": Largest, "Multiples": Multiples, "Drawn": Drawn}
Settings: TypeAlias = tuple[int, ...]


def _send_once(send: Callable[..., Any], gradients: Array, kept: Array, name: str, settings: Settings) -> Any:
    """What the answer returns, and what is then in the arrays that it got."""
    return send(gradients, kept, COMPRESSORS[name](*settings)), gradients, kept


def _sent(answer: Answer, gradients: Array, kept: Array, name: str, settings: Settings, where: str) -> list[Array]:
    """The arrays (N, size) of the answer's (sent, kept), and of what it was given, as it left them."""
    by_hand = gradients, kept, COMPRESSORS[name](*settings)
    got, *given = call(answer, gradients, kept, name, settings, through=_send_once, where=where, by_hand=by_hand)
    expect(got is not None, "(sent, kept)", "None", where)
    sent, left = expect_items(got, 2, "(sent, kept)", where)
    shape = gradients.shape
    return [_rows(sent, shape, "sent", where), _rows(left, shape, "kept", where), *map(np.asarray, given)]


def _rows(got: Any, shape: tuple[int, ...], what: str, where: str) -> Array:
    """An array, or a list of its rows, as an array of floats."""
    rows = list(got) if isinstance(got, list | tuple | np.ndarray) else []
    if len(rows) != shape[0] or any(np.shape(row) != shape[1:] for row in rows):
        raise Wrong(f"{what}: an array of shape {shape}", describe(got), where, cause=f"{what}: no such array")
    return np.array(rows, np.float64)


def _whole(rng: np.random.Generator, world: int, size: int, most: int = 1000) -> Array:
    """Whole numbers as floats, whose sums have no rounding; within a row no two are of one magnitude."""
    rows = [rng.permutation(most)[:size] + 1 for _ in range(world)]
    whole: Array = np.array(rows, np.float64) * rng.choice([-1, 1], (world, size))
    return whole


def _compressed(rng: np.random.Generator, size: int) -> Iterator[tuple[str, Settings]]:
    yield "Largest", (int(rng.integers(1, size + 1)),)
    yield "Multiples", (int(rng.choice([64, 128, 512])),)


def sends(answer: Answer, rng: np.random.Generator) -> None:
    for world in WORLDS:
        size = int(rng.integers(3, 12))
        for name, settings in (*_compressed(rng, size), ("Largest", (1,))):
            owed, kept = _whole(rng, world, size), _whole(rng, world, size)
            compress = COMPRESSORS[name](*settings)
            where = f"{plural(world, 'rank')}, {compress}"
            expected = np.stack([compress(row) for row in owed])
            sent, *_ = _sent(answer, owed - kept, kept, name, settings, where)
            expect_equal(expected, sent, f"{where}, sent", axes=("rank", "element"))


STEPS = 4


def loses_nothing(answer: Answer, rng: np.random.Generator) -> str:
    """Of each rank, after each step: all that was sent and what is kept is the sum of its gradients."""
    for world in WORLDS:
        size = int(rng.integers(3, 12))
        k = int(rng.integers(1, size))
        for name in ("Largest", "Drawn", "Multiples"):
            kept, all_sent, all_gradients = np.zeros((3, world, size))
            for step in range(1, STEPS + 1):
                settings = {"Largest": (k,), "Drawn": (k, int(rng.integers(1000))), "Multiples": (256,)}[name]
                where = f"{plural(world, 'rank')}, {COMPRESSORS[name](*settings)}, step {step}"
                gradients = _whole(rng, world, size)
                sent, kept, *_ = _sent(answer, gradients, kept, name, settings, where)
                _expect_compressed(sent, name, settings, where)
                all_sent, all_gradients = all_sent + sent, all_gradients + gradients
                what = f"{where}: all that was sent so far, and what is kept, beside the sum of all gradients"
                expect_equal(all_gradients, all_sent + kept, what, axes=("rank", "element"))
    return f"{STEPS} steps add up, on up to {max(WORLDS)} ranks"


def _expect_compressed(sent: Array, name: str, settings: Settings, where: str) -> None:
    if name == "Multiples":
        right, asked = not np.any(sent % settings[0]), f"multiples of {settings[0]}"
    else:
        right = bool((np.count_nonzero(sent, axis=1) <= settings[0]).all())
        asked = f"at most {plural(settings[0], 'number')} of each rank"
    expect(right, f"sent: {asked}", describe(sent), where)


def leaves_inputs(answer: Answer, rng: np.random.Generator) -> None:
    for world in WORLDS:
        size = int(rng.integers(3, 12))
        gradients, kept, k = _whole(rng, world, size), _whole(rng, world, size), int(rng.integers(1, size))
        where = plural(world, "rank")
        sent, left, *given = _sent(answer, gradients, kept, "Largest", (k,), where)
        for what, before, after in zip(("gradients", "kept"), (gradients, kept), given, strict=True):
            expect_equal(before, after, f"{where}, the array that came as {what}", axes=("rank", "element"))
        if not np.array_equal(gradients + kept, sent + left):
            expected, cause = (
                "sent and kept together, what was owed",
                "It was left as it was, but the step is not right.",
            )
            raise Wrong(expected, describe(sent + left), where, why=cause)
        _expect_compressed(sent, "Largest", (k,), where)


# 16.2: a period for a link

MEASURED, NEAR = 1.05, 1.01
"""Pars: times the seconds of the best period that was measured, and of the best of all."""


def _judge_periods(answer: Answer, rng: np.random.Generator, par: Callable[[Job], float]) -> str:
    pars, found, jobs = 0.0, 0.0, list(drawn_jobs(rng))
    for job in jobs:
        given = job.measure(rng), job.ranks, job.compute, job.alpha, job.beta, job.nbytes
        where = f"{job.ranks} ranks, {job.nbytes:,} bytes, alpha {job.alpha:.3g} s, beta {job.beta:.3g} s per byte"
        period = expect_number(call(answer, *given, where=where), where)
        if period < 1 or period % 1:
            raise Wrong(asked := "a whole number of steps, at least 1", f"{period:g}", where, cause=f"not {asked}")
        seconds, bound = round(job.seconds(period), 3), round(par(job), 3)
        expect_at_most(bound, seconds, "s to the goal", f"{where}, period {period:g}")
        pars, found = pars + bound, found + seconds
    return expect_at_most(round(pars / 3600, 2), round(found / 3600, 2), f"hours for {len(jobs)} jobs")


near_the_measured = partial(_judge_periods, par=lambda job: MEASURED * job.best_measured)
near_the_best = partial(_judge_periods, par=lambda job: NEAR * job.best)

# 16.3: an exchange that loses mass


def _exchanged(wanted: Array, k: int) -> tuple[Array, Array]:
    """The average of what every rank's k largest numbers are in fp16, and what is left of each rank's ``wanted``."""
    rows = np.stack([Largest(k)(row) for row in wanted]).astype(np.float16).astype(float)
    return rows.mean(axis=0), wanted - rows


def _mended(answer: Answer, gradients: Array, kept: Array, k: int, where: str) -> list[Array]:
    """The answer's average (size,) and what is kept (N, size)."""
    got = call(answer, gradients, kept, k, unchanged=True, where=where)
    expect(got is not None, "(averaged, kept)", "None", where)
    averaged, left = expect_items(got, 2, "(averaged, kept)", where)
    (average,) = _rows([averaged], (1, gradients.shape[1]), "averaged", where)
    return [average, _rows(left, gradients.shape, "kept", where)]


def _judge_exchange(answer: Answer, gradients: Array, kept: Array, k: int, where: str) -> None:
    averaged, left = _exchanged(gradients + kept, k)
    got = _mended(answer, gradients, kept, k, where)
    expect_close(averaged, got[0], 1e-6, f"{where}, averaged")
    expect_equal(left, got[1], f"{where}, kept", axes=("rank", "element"))


def averages(answer: Answer, rng: np.random.Generator) -> None:
    """Numbers that fp16 has, nothing kept before, and places that several ranks choose."""
    for world in WORLDS:
        size = int(rng.integers(5, 12))
        gradients = _whole(rng, world, size)
        gradients[:, int(rng.integers(size))] = rng.integers(1100, 2000, world)
        where = f"{plural(world, 'rank')}, nothing kept before"
        _judge_exchange(answer, gradients, np.zeros_like(gradients), int(rng.integers(1, 4)), where)


def keeps_fractions(answer: Answer, rng: np.random.Generator) -> None:
    """One rank, nothing kept before, and numbers between those that fp16 has."""
    for size in (1, 4, 9):
        magnitudes = 4096 + 64.0 * abs(_whole(rng, 1, size, most=200)) + rng.choice([-3, -1, 1, 3], (1, size))
        gradients = magnitudes * rng.choice([-1, 1], (1, size))
        where = f"1 rank, nothing kept before, numbers up to {magnitudes.max():.0f}"
        _judge_exchange(answer, gradients, np.zeros_like(gradients), min(size, int(rng.integers(1, 4))), where)


def keeps_what_was_kept(answer: Answer, rng: np.random.Generator) -> None:
    """One rank, and numbers that fp16 has."""
    for size in (2, 5, 9):
        wanted, kept = _whole(rng, 1, size), _whole(rng, 1, size)
        _judge_exchange(answer, wanted - kept, kept, int(rng.integers(1, size)), "1 rank, something kept before")


def _run(rng: np.random.Generator, world: int, size: int, k: int) -> list[Array]:
    """Gradients of some steps, such that no rank ever has two numbers of one magnitude to choose between."""
    while True:
        gradients, kept = [_whole(rng, world, size, most=3000) for _ in range(STEPS)], np.zeros((world, size))
        distinct = True
        for each in gradients:
            distinct &= all(len({abs(number) for number in row}) == size for row in each + kept)
            kept = _exchanged(each + kept, k)[1]
        if distinct:
            return gradients


def keeps_all(answer: Answer, rng: np.random.Generator) -> str:
    for world in WORLDS:
        size, k = int(rng.integers(5, 12)), int(rng.integers(1, 4))
        expected, kept = np.zeros((2, world, size))
        applied, summed = np.zeros((2, size))
        for step, each in enumerate(_run(rng, world, size, k), 1):
            where = f"{plural(world, 'rank')}, step {step}"
            averaged, kept = _mended(answer, each, kept, k, where)
            expected = _exchanged(each + expected, k)[1]
            few = bool(np.count_nonzero(averaged) <= world * k)
            expect(few, f"averaged: at most {plural(k, 'number')} of each rank", describe(averaged), where)
            applied, summed = applied + world * averaged, summed + each.sum(axis=0)
            what = f"{where}: N times all averages, and what all ranks keep, beside the sum of all gradients"
            expect_close(summed, applied + kept.sum(axis=0), 1e-6, what)
            expect_equal(expected, kept, f"{where}, kept", axes=("rank", "element"))
    return f"{STEPS} steps add up, on up to {max(WORLDS)} ranks"


# 16.4: who is there first


def _judge_races(answer: Answer, rng: np.random.Generator, hides: bool) -> str:
    races = drawn_races(int(rng.integers(2**31)), hides)
    for methods, compute, alpha, beta, first in races:
        got = call(answer, methods, compute, alpha, beta)
        expect(got is not None, f"one of {describe(sorted(methods))}", "None")
        if not isinstance(got, str) or got not in methods:
            raise Wrong(f"one of {describe(sorted(methods))}", describe(got), cause="no method")
        shown = (
            f"{name}, after {seconds_to_goal(methods[name], compute, alpha, beta):,.0f} s" for name in (first, got)
        )
        expect(got == first, *shown)
    return f"{len(races)} races"


waited_for, hidden = partial(_judge_races, hides=False), partial(_judge_races, hides=True)
