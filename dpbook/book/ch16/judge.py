"""Checks of exercise 16: error feedback, a period for a link, an exchange that loses mass, and the fastest method."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, product
from typing import Any, TypeAlias

import numpy as np

from dpbook.book.ch16.first_there import drawn_races, seconds_to_goal
from dpbook.book.ch16.sending import Drawn, Largest, Multiples
from dpbook.classroom import (
    Answer,
    ParResult,
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

PERIODS, SEEDS, NOISE = (1, 4, 16, 64), 3, 0.03
ALL_PERIODS = range(1, 2001)
MIN_GAIN = 1.04
"""Least ratio, in a random job, of the seconds of the best measured period to those of the best of all."""


@dataclass(frozen=True)
class LocalStepsJob:
    """Training job of local steps, which needs ``start`` + ``slope`` · period steps to the goal.

    Its averages are rings of ``nbytes`` bytes over ``ranks`` ranks. ``compute`` is the seconds of a step; ``alpha`` and
    ``beta`` are seconds per message and per byte.
    """

    start: float
    slope: float
    ranks: int
    compute: float
    alpha: float
    beta: float
    nbytes: int

    @property
    def average_seconds(self) -> float:
        """Seconds of one average over all ranks."""
        return 2 * (self.ranks - 1) * (self.alpha + self.beta * self.nbytes / self.ranks)

    def seconds(self, period: float) -> float:
        """Return the seconds to the goal."""
        return (self.start + self.slope * period) * (self.compute + self.average_seconds / period)

    def best(self, periods: Iterable[int] = ALL_PERIODS) -> float:
        """Return the least seconds to the goal with one of these periods."""
        return min(map(self.seconds, periods))

    @classmethod
    def draw(cls, rng: np.random.Generator, aim: float, ranks: int, latency: float) -> "LocalStepsJob":
        """Draw a job: ``aim`` is the best period in units of start / slope, ``latency`` its share of an average."""
        ratio, slope = float(rng.uniform(20, 120)), float(rng.uniform(10, 50))
        alpha, bandwidth = _short(rng.uniform(0.02, 0.1)), 10 ** float(rng.uniform(7, 9))
        average_seconds = 2 * (ranks - 1) * alpha / latency
        nbytes = 256 * round((1 - latency) / latency * alpha * ranks * bandwidth / 256)
        compute = _short(average_seconds / (aim**2 * ratio))
        return cls(slope * ratio, slope, ranks, compute, alpha, _short(1 / bandwidth), nbytes)

    def measure(self, rng: np.random.Generator) -> list[tuple[int, int]]:
        """Return measurements (period, steps), each some per cent off."""
        periods = np.repeat(PERIODS, SEEDS)
        steps = (self.start + self.slope * periods) * (1 + NOISE * rng.standard_normal(len(periods)))
        return [(int(period), round(count)) for period, count in zip(periods, steps, strict=True)]


def _short(number: float) -> float:
    """Round to three digits, which are easy to read."""
    return float(f"{number:.3g}")


def drawn_jobs(rng: np.random.Generator) -> Iterator[LocalStepsJob]:
    """Yield jobs whose best period is between the measured ones or beyond, and one inside a machine, where it is 1."""
    yield replace(LocalStepsJob.draw(rng, 0.5, 8, 0.5), compute=1.0, alpha=2e-6, beta=2.5e-12)
    for ranks, latency in product((2, 4, 8, 64), (0.9, 0.5, 0.1)):
        drawn = (LocalStepsJob.draw(rng, float(rng.uniform(0.35, 2.5)), ranks, latency) for _ in count())
        yield next(job for job in drawn if job.best(PERIODS) >= MIN_GAIN * job.best())


WORLDS, STEPS = (1, 2, 3, 5, 7), 4

# 16.1: error feedback

COMPRESSORS = {"Largest": Largest, "Multiples": Multiples, "Drawn": Drawn}
Settings: TypeAlias = tuple[int, ...]


def _send_once(send: Callable[..., Any], gradients: Array, residual: Array, name: str, settings: Settings) -> Any:
    """Return the answer's result, and its two arguments as it left them."""
    return send(gradients, residual, COMPRESSORS[name](*settings)), gradients, residual


def _sent(answer: Answer, gradients: Array, residual: Array, name: str, settings: Settings, where: str) -> list[Array]:
    """Return the answer's arrays (sent, kept), (N, size) each, and its two arguments as it left them."""
    by_hand = gradients, residual, COMPRESSORS[name](*settings)
    got, *given = call(answer, gradients, residual, name, settings, through=_send_once, where=where, by_hand=by_hand)
    expect(got is not None, "(sent, kept)", "None", where)
    sent, new_residual = expect_items(got, 2, "(sent, kept)", where)
    shape = gradients.shape
    return [_rows(sent, shape, "sent", where), _rows(new_residual, shape, "kept", where), *map(np.asarray, given)]


def _rows(got: Any, shape: tuple[int, ...], name: str, where: str) -> Array:
    """Return an array, or a list of its rows, as an array of floats."""
    rows = list(got) if isinstance(got, list | tuple | np.ndarray) else []
    if len(rows) != shape[0] or any(np.shape(row) != shape[1:] for row in rows):
        raise Wrong(f"{name}: an array of shape {shape}", describe(got), where, cause=f"{name}: no such array")
    return np.array(rows, np.float64)


def _whole(rng: np.random.Generator, world: int, size: int, most: int = 1000) -> Array:
    """Draw whole numbers as floats, whose sums need no rounding; within a row no two have the same magnitude."""
    rows = [rng.permutation(most)[:size] + 1 for _ in range(world)]
    whole: Array = np.array(rows, np.float64) * rng.choice([-1, 1], (world, size))
    return whole


def sends(answer: Answer, rng: np.random.Generator) -> None:
    for world in WORLDS:
        size = int(rng.integers(3, 12))
        k, unit = int(rng.integers(1, size + 1)), int(rng.choice([64, 128, 512]))
        for name, settings in (("Largest", (k,)), ("Multiples", (unit,)), ("Largest", (1,))):
            owed, residual = _whole(rng, world, size), _whole(rng, world, size)
            compress = COMPRESSORS[name](*settings)
            where = f"{plural(world, 'rank')}, {compress}"
            expected = np.stack([compress(row) for row in owed])
            sent, *_ = _sent(answer, owed - residual, residual, name, settings, where)
            expect_equal(expected, sent, f"{where}, sent", axes=("rank", "element"))


def loses_nothing(answer: Answer, rng: np.random.Generator) -> str:
    """Check, for each rank after each step, that all it sent plus what it keeps is the sum of its gradients."""
    for world in WORLDS:
        size = int(rng.integers(3, 12))
        k = int(rng.integers(1, size))
        for name in ("Largest", "Drawn", "Multiples"):
            residual, all_sent, all_gradients = np.zeros((3, world, size))
            for step in range(1, STEPS + 1):
                settings = {"Largest": (k,), "Drawn": (k, int(rng.integers(1000))), "Multiples": (256,)}[name]
                where = f"{plural(world, 'rank')}, {COMPRESSORS[name](*settings)}, step {step}"
                # exact in float64; no whole numbers, and in the largest world not exact in float32
                gradients = _whole(rng, world, size) / 8 + (2.0**26 if world == max(WORLDS) else 0.0)
                sent, residual, *_ = _sent(answer, gradients, residual, name, settings, where)
                _expect_compressed(sent, name, settings, where)
                all_sent, all_gradients = all_sent + sent, all_gradients + gradients
                place = f"{where}: all that was sent so far, and what is kept, beside the sum of all gradients"
                expect_equal(all_gradients, all_sent + residual, place, axes=("rank", "element"))
    return f"{STEPS} steps add up, on up to {max(WORLDS)} ranks"


def _expect_compressed(sent: Array, name: str, settings: Settings, where: str) -> None:
    if name == "Multiples":
        right, expected = not np.any(sent % settings[0]), f"multiples of {settings[0]}"
    else:
        right = bool((np.count_nonzero(sent, axis=1) <= settings[0]).all())
        expected = f"at most {plural(settings[0], 'number')} of each rank"
    expect(right, f"sent: {expected}", describe(sent), where)


def leaves_inputs(answer: Answer, rng: np.random.Generator) -> None:
    for world in WORLDS:
        size = int(rng.integers(3, 12))
        gradients, residual, k = _whole(rng, world, size), _whole(rng, world, size), int(rng.integers(1, size))
        where = plural(world, "rank")
        sent, new_residual, *given = _sent(answer, gradients, residual, "Largest", (k,), where)
        for name, before, after in zip(("gradients", "kept"), (gradients, residual), given, strict=True):
            expect_equal(before, after, f"{where}, the argument {name} afterwards", axes=("rank", "element"))
        if not np.array_equal(gradients + residual, sent + new_residual):
            expected = "sent and kept together, what was owed"
            why = "The arguments did not change, but the step is not right."
            raise Wrong(expected, describe(sent + new_residual), where, why=why)
        _expect_compressed(sent, "Largest", (k,), where)


# 16.2: a period for a link

MEASURED, NEAR = 1.05, 1.01
"""Pars, relative to the seconds of the best measured period, and of the best of all periods."""


def _judge_periods(answer: Answer, rng: np.random.Generator, par: Callable[[LocalStepsJob], float]) -> ParResult:
    pars, reached, jobs = 0.0, 0.0, list(drawn_jobs(rng))
    for job in jobs:
        given = job.measure(rng), job.ranks, job.compute, job.alpha, job.beta, job.nbytes
        where = f"{job.ranks} ranks, {job.nbytes:,} bytes, alpha {job.alpha:.3g} s, beta {job.beta:.3g} s per byte"
        period = expect_number(call(answer, *given, where=where), where)
        if period < 1 or period % 1:
            raise Wrong(form := "a whole number of steps, at least 1", f"{period:g}", where, cause=f"not {form}")
        seconds, bound = round(job.seconds(period), 3), round(par(job), 3)
        expect_at_most(bound, seconds, "s to the goal", f"{where}, period {period:g}")
        pars, reached = pars + bound, reached + seconds
    return expect_at_most(round(pars / 3600, 2), round(reached / 3600, 2), f"hours for {len(jobs)} jobs")


near_the_measured = partial(_judge_periods, par=lambda job: MEASURED * job.best(PERIODS))
near_the_best = partial(_judge_periods, par=lambda job: NEAR * job.best())

# 16.3: an exchange that loses mass


def _exchanged(owed: Array, k: int) -> tuple[Array, Array]:
    """Return the average of all ranks' k largest numbers in fp16, and the rest of each rank's ``owed``."""
    rows = np.stack([Largest(k)(row) for row in owed]).astype(np.float16).astype(float)
    return rows.mean(axis=0), owed - rows


def _mended(answer: Answer, gradients: Array, residual: Array, k: int, where: str) -> list[Array]:
    """Return the answer's average (size,) and what it keeps (N, size)."""
    got = call(answer, gradients, residual, k, unchanged=True, where=where)
    expect(got is not None, "(averaged, kept)", "None", where)
    averaged, new_residual = expect_items(got, 2, "(averaged, kept)", where)
    (average,) = _rows([averaged], (1, gradients.shape[1]), "averaged", where)
    return [average, _rows(new_residual, gradients.shape, "kept", where)]


def _judge_exchange(answer: Answer, gradients: Array, residual: Array, k: int, where: str) -> None:
    averaged, new_residual = _exchanged(gradients + residual, k)
    got = _mended(answer, gradients, residual, k, where)
    expect_close(averaged, got[0], 1e-6, f"{where}, averaged")
    expect_equal(new_residual, got[1], f"{where}, kept", axes=("rank", "element"))


def averages(answer: Answer, rng: np.random.Generator) -> None:
    """Try numbers that fp16 holds exactly, no residual, and places that several ranks choose."""
    for world in WORLDS:
        size = int(rng.integers(5, 12))
        gradients = _whole(rng, world, size)
        gradients[:, int(rng.integers(size))] = rng.integers(1100, 2000, world)
        where = f"{plural(world, 'rank')}, nothing kept before"
        _judge_exchange(answer, gradients, np.zeros_like(gradients), int(rng.integers(1, 4)), where)


def keeps_fractions(answer: Answer, rng: np.random.Generator) -> None:
    """Try one rank, no residual, and numbers that fp16 must round, some of them to the same; fp32 must round all."""
    for first in (1.0, 2.0):
        pair = 8192 + np.array([[first, 3.0 - first, -4000.0]])
        _judge_exchange(answer, pair, np.zeros_like(pair), 1, f"1 rank, nothing kept before, {pair[0].tolist()}")
    for size in (1, 4, 9):
        magnitudes = 4096 + 64.0 * abs(_whole(rng, 1, size, most=200)) + rng.choice([-3, -1, 1, 3], (1, size))
        magnitudes += 2.0**-20
        gradients = magnitudes * rng.choice([-1, 1], (1, size))
        where = f"1 rank, nothing kept before, numbers up to {magnitudes.max():.0f}"
        _judge_exchange(answer, gradients, np.zeros_like(gradients), min(size, int(rng.integers(1, 4))), where)


def keeps_what_was_kept(answer: Answer, rng: np.random.Generator) -> None:
    """Try one rank, and numbers that fp16 holds exactly."""
    for size in (2, 5, 9):
        owed, residual = _whole(rng, 1, size), _whole(rng, 1, size)
        _judge_exchange(answer, owed - residual, residual, int(rng.integers(1, size)), "1 rank, something kept before")


def _run(rng: np.random.Generator, world: int, size: int, k: int) -> list[Array]:
    """Draw the gradients of some steps; no rank ever has to choose between two numbers of one magnitude."""
    while True:
        gradients, residual = [_whole(rng, world, size, most=3000) for _ in range(STEPS)], np.zeros((world, size))
        distinct = True
        for gradient in gradients:
            distinct &= all(len({abs(number) for number in row}) == size for row in gradient + residual)
            residual = _exchanged(gradient + residual, k)[1]
        if distinct:
            return gradients


def keeps_all(answer: Answer, rng: np.random.Generator) -> str:
    for world in WORLDS:
        size, k = int(rng.integers(5, 12)), int(rng.integers(1, 4))
        expected, residual = np.zeros((2, world, size))
        applied, summed = np.zeros((2, size))
        for step, gradient in enumerate(_run(rng, world, size, k), 1):
            where = f"{plural(world, 'rank')}, step {step}"
            averaged, residual = _mended(answer, gradient, residual, k, where)
            expected = _exchanged(gradient + expected, k)[1]
            few = bool(np.count_nonzero(averaged) <= world * k)
            expect(few, f"averaged: at most {plural(k, 'number')} of each rank", describe(averaged), where)
            applied, summed = applied + world * averaged, summed + gradient.sum(axis=0)
            place = f"{where}: N times all averages, and what all ranks keep, beside the sum of all gradients"
            expect_close(summed, applied + residual.sum(axis=0), 1e-6, place)
            expect_equal(expected, residual, f"{where}, kept", axes=("rank", "element"))
    return f"{STEPS} steps add up, on up to {max(WORLDS)} ranks"


# 16.4: the method that wins


def _judge_races(answer: Answer, rng: np.random.Generator, hides: bool) -> str:
    races = drawn_races(int(rng.integers(2**31)), hides)
    for methods, compute, alpha, beta, first in races:
        got = call(answer, methods, compute, alpha, beta)
        expect(got is not None, f"one of {describe(sorted(methods))}", "None")
        if not isinstance(got, str) or got not in methods:
            raise Wrong(f"one of {describe(sorted(methods))}", describe(got), cause="no method")
        seconds = {name: seconds_to_goal(method, compute, alpha, beta) for name, method in methods.items()}
        expect(got == first, *(f"{name}, after {seconds[name]:,.0f} s" for name in (first, got)))
    return f"{len(races)} races"


waited_for, hidden = partial(_judge_races, hides=False), partial(_judge_races, hides=True)
