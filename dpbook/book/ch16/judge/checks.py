"""What the tasks of exercise 16 check: parts of a sum, seconds to a goal, sums again, and who needs the fewest."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, product
from typing import Any, TypeAlias

import numpy as np

from dpbook.book.ch16.compressors import Drawn, Largest, Multiples
from dpbook.core import plural
from dpbook.grading import (
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
from dpbook.grading.text import describe_kind
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
        raise Wrong(f"{what}: an array of shape {shape}", describe_kind(got), where, cause=f"{what}: no such array")
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
        what = f"{where}, sent and kept together, beside what was owed"
        expect_equal(gradients + kept, sent + left, what, axes=("rank", "element"))
        _expect_compressed(sent, "Largest", (k,), where)


# 16.2: a period for a link

PERIODS, SEEDS, NOISE = (1, 4, 16, 64), 3, 0.03
MOST = 2000
MEASURED, NEAR, TELLING = 1.05, 1.01, 1.04
"""Times the best: of the periods that were measured, of all; and how far above the best of all the best measured one of
a case that is drawn has to be."""


@dataclass(frozen=True)
class Job:
    """The steps to the goal are ``start`` + ``slope`` · period; a meeting is a ring."""

    start: float
    slope: float
    ranks: int
    compute: float
    alpha: float
    beta: float
    nbytes: int

    @property
    def meeting(self) -> float:
        return 2 * (self.ranks - 1) * (self.alpha + self.beta * self.nbytes / self.ranks)

    def seconds(self, period: float) -> float:
        """To the goal."""
        return (self.start + self.slope * period) * (self.compute + self.meeting / period)

    @property
    def best(self) -> float:
        return min(map(self.seconds, range(1, MOST + 1)))

    @property
    def best_measured(self) -> float:
        return min(map(self.seconds, PERIODS))

    @classmethod
    def draw(cls, rng: np.random.Generator, aim: float, ranks: int, latency: float) -> "Job":
        """``aim``: the best period in units of start / slope; ``latency``: its share of a meeting."""
        ratio = float(rng.uniform(20, 120))
        compute, nbytes = float(f"{rng.uniform(0.02, 0.5):.3g}"), int(rng.integers(1, 1000)) * 10**6
        slope = float(rng.uniform(10, 50))
        meeting = compute * aim**2 * ratio
        alpha = latency * meeting / (2 * (ranks - 1))
        beta = (1 - latency) * meeting / (2 * (ranks - 1) / ranks * nbytes)
        return cls(slope * ratio, slope, ranks, compute, float(f"{alpha:.3g}"), float(f"{beta:.3g}"), nbytes)

    def measure(self, rng: np.random.Generator) -> list[tuple[int, int]]:
        """(period, steps), some per cent off."""
        periods = np.repeat(PERIODS, SEEDS)
        steps = (self.start + self.slope * periods) * (1 + NOISE * rng.standard_normal(len(periods)))
        return [(int(period), round(count)) for period, count in zip(periods, steps, strict=True)]


def _jobs(rng: np.random.Generator) -> Iterator[Job]:
    """Some with the best period between the measured ones, some beyond, and one on a link that is nearly free."""
    yield replace(Job.draw(rng, 0.5, 8, 0.5), alpha=1e-9, beta=1e-15)
    for ranks, latency in product((2, 4, 8, 64), (0.9, 0.5, 0.1)):
        drawn = (Job.draw(rng, float(rng.uniform(0.35, 2.5)), ranks, latency) for _ in count())
        yield next(job for job in drawn if job.best_measured >= TELLING * job.best)


def _judge_periods(answer: Answer, rng: np.random.Generator, par: Callable[[Job], float]) -> str:
    pars, found, jobs = 0.0, 0.0, list(_jobs(rng))
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

Method: TypeAlias = dict[str, float | bool]
MARGIN, EACH = 1.04, 3


def _seconds(method: Mapping[str, Any], compute: float, alpha: float, beta: float) -> float:
    """Until the goal."""
    work = method["every"] * compute + method["extra"]
    meeting = method["rounds"] * alpha + method["bytes"] * beta
    period = max(work, meeting) if method["hidden"] else work + meeting
    return float(method["steps"] / method["every"] * period)


def _methods(rng: np.random.Generator, compute: float, hides: bool) -> dict[str, Method]:
    """In any order. Bytes are those of a ring, or of an all-gather of a few numbers with their places."""
    ranks, steps = int(rng.choice([4, 8, 16, 64])), int(rng.integers(4000, 9000))
    parameters = 10**6 * int(rng.integers(5, 500))
    rounds, ring = 2 * (ranks - 1), 8 * (ranks - 1) * parameters // ranks
    few = int(8 * parameters * rng.uniform(0.002, 0.01)) * (ranks - 1)

    def made(slower: float, nbytes: int, every: int = 1, extra: float = 0.0, **other: float | bool) -> Method:
        more = float(rng.uniform(1, slower))
        counted = {"rounds": rounds, "bytes": nbytes, "extra": float(f"{extra * compute * rng.uniform(0.5, 1):.3g}")}
        return {"steps": int(more * steps), "every": every, **counted, "hidden": False, **other}

    found = {
        "exact": made(1.0, ring),
        "bf16": made(1.1, ring // 2, extra=0.2),
        "top-k": made(1.8, few, extra=0.6) | {"rounds": ranks - 1},
        "local SGD": made(2.5, ring, every=int(rng.choice([4, 8, 16, 32]))),
        "DiLoCo": made(3.0, ring, every=int(rng.choice([50, 100])), extra=0.6),
    }
    if hides:
        found["stale"] = made(1.8, ring, hidden=True)
        found["stale and local"] = made(3.5, ring, every=int(rng.choice([2, 4])), extra=0.6, hidden=True)
    return {name: found[name] for name in rng.permutation(list(found)).tolist()}


def _shortcuts(methods: Mapping[str, Method], compute: float, alpha: float, beta: float, hides: bool) -> dict[str, str]:
    """Who would be first if something were left out or counted elsewhere, by what."""

    def first(seconds: Callable[[Method], float]) -> str:
        return min(methods, key=lambda name: seconds(methods[name]))

    def with_all(method: Method, **changed: float) -> float:
        return _seconds({**method, **changed}, compute, alpha, beta)

    found = {
        "latency": first(lambda method: _seconds(method, compute, 0.0, beta)),
        "bandwidth": first(lambda method: _seconds(method, compute, alpha, 0.0)),
        "compression": first(lambda method: with_all(method, extra=0.0)),
        "periods": first(lambda method: with_all(method, every=1)),
        "steps": first(lambda method: with_all(method, steps=1)),
    }
    if hides:
        found["hidden"] = first(lambda method: with_all(method, hidden=False))
        found["a step hides"] = first(
            lambda m: with_all(m, every=1) / m["every"] + (1 - 1 / m["every"]) * m["steps"] * compute
        )
        found["compression hides"] = first(lambda m: with_all(m, extra=0.0) + m["steps"] / m["every"] * m["extra"])
        found["compression is hidden"] = first(lambda m: with_all(m, extra=0.0, bytes=m["bytes"] + m["extra"] / beta))
    return found


def _races(rng: np.random.Generator, hides: bool) -> Iterator[tuple[dict[str, Method], float, float, float, str]]:
    """Methods, seconds of computing, alpha, beta, and who is first, by a margin.

    Each method is first some times, and each shortcut is wrong some times.
    """
    left: dict[str, int] = {}
    while not left or any(left.values()):
        compute = float(f"{rng.uniform(0.02, 0.5):.3g}")
        methods = _methods(rng, compute, hides)
        alpha = float(f"{compute * 10 ** rng.uniform(-5, 0):.3g}")
        beta = float(f"{compute / methods['exact']['bytes'] * 10 ** rng.uniform(-2, 2):.3g}")
        times = {name: _seconds(method, compute, alpha, beta) for name, method in methods.items()}
        first, second = sorted(times, key=lambda name: times[name])[:2]
        wrong = _shortcuts(methods, compute, alpha, beta, hides)
        left = left or dict.fromkeys([*methods, *wrong], EACH)
        tells = [first, *(what for what, who in wrong.items() if who != first)]
        if times[second] >= MARGIN * times[first] and any(left[what] for what in tells):
            left |= {what: max(0, left[what] - 1) for what in tells}
            yield methods, compute, alpha, beta, first


def _judge_races(answer: Answer, rng: np.random.Generator, hides: bool) -> str:
    races = list(_races(rng, hides))
    for place in rng.permutation(len(races)):
        methods, compute, alpha, beta, first = races[place]
        got = call(answer, methods, compute, alpha, beta)
        expect(got is not None, f"one of {describe(sorted(methods))}", "None")
        if not isinstance(got, str) or got not in methods:
            raise Wrong(f"one of {describe(sorted(methods))}", describe(got), cause="no method")
        shown = (f"{name}, after {_seconds(methods[name], compute, alpha, beta):,.0f} s" for name in (first, got))
        expect(got == first, *shown)
    return f"{len(races)} races"


waited_for, hidden = partial(_judge_races, hides=False), partial(_judge_races, hides=True)
