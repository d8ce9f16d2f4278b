"""Checks of exercise 13: the ZeRO stage that fits, the size of a cluster, four walls, and the groups of a mesh."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise, product
from typing import Any

import numpy as np

from dpbook.classroom import Answer, Numbers, Wrong, call, describe, expect, expect_equal, expect_items, value
from dpbook.collectives import Link
from dpbook.planning import ACCELERATORS, STAGES, Cluster, Job, Mesh, Recipe, memory_per_rank, wall

Settings = dict[str, float]

# 13.1: which stage fits

USUAL_RECIPE = (2, 2, 12)
WORLDS = (1, 2, 5, 7, 16, 64)


def _models(rng: np.random.Generator) -> Iterator[tuple[int, int, int, tuple[int, ...], int]]:
    """Draw parameters, trained ones, world, recipe and bytes of activations; all shares are whole bytes."""
    for world in WORLDS:
        parameters = world * int(rng.integers(10**8, 10**10))
        yield parameters, parameters, world, USUAL_RECIPE, 0
        other = tuple(int(n) for n in rng.choice([2, 4, 8, 12], 3))
        yield parameters, parameters, world, other, int(rng.integers(10**8, 10**10))
        trained = world * max(1, parameters // world // 100)
        yield parameters, trained, world, USUAL_RECIPE, int(rng.integers(10**8, 10**10))


def fits(answer: Answer, rng: np.random.Generator) -> None:
    for parameters, trained, world, recipe, activations in _models(rng):
        bytes_of = partial(memory_per_rank, trainable=trained, activations=activations)
        totals = [bytes_of(parameters, world, stage, Recipe("of this case", *recipe)).total for stage in STAGES]
        exact = (0,) if world & (world - 1) == 0 else ()  # "at most": in such a world no share is rounded
        for capacity in sorted({round(total) + byte for total in totals for byte in (-1, 1, *exact)}):
            fitting = next((stage for stage in STAGES if totals[stage] <= capacity), None)
            where = (
                f"{parameters:,} parameters, {trained:,} of them trained, world {world}, {capacity:,} bytes, "
                f"recipe {recipe}, {activations:,} bytes of activations"
            )
            got = call(answer, parameters, trained, world, capacity, recipe, activations, where=where)
            _expect_one_of(STAGES, fitting, got, partial(_with_bytes, totals), where)


def _expect_one_of(
    choices: Sequence[int], expected: int | None, got: Any, describe_choice: Callable[[int | None], str], where: str
) -> None:
    """Check that ``got`` is the expected choice or None; if it is another choice, the error describes both."""
    try:
        expect_equal(expected, got, where)
    except Wrong:
        if got is not None and (type(got) is not int or got not in choices):
            raise
        raise Wrong(describe_choice(expected), "None" if got is None else describe_choice(got), where) from None


def _with_bytes(totals: Sequence[float], stage: int | None) -> str:
    """Describe a stage with the bytes of a rank, so that a report shows by how much it fits or does not."""
    if stage is None:
        return f"None; the least that a rank keeps is {min(totals):,.0f} bytes"
    return f"{stage}; there a rank keeps {totals[stage]:,.0f} bytes"


# 13.2: size a cluster

SEQUENCES = 480
SIZES = (2, 3, 5, 8, 16, 40, 96, 240)
"""All of them divide `SEQUENCES`."""


def _parts(run: Settings, gpu: Settings, world: int) -> tuple[float, float, float]:
    """Return the seconds of forward, of backward and of the ring."""
    operations = run["parameters"] * run["sequences"] * run["context"] / world / gpu["flops"]
    ring = 2 * (world - 1) / world * 2 * run["parameters"] / gpu["bandwidth"]
    return 2 * operations, 4 * operations, ring


def _days(run: Settings, gpu: Settings, world: int) -> float:
    forward, backward, ring = _parts(run, gpu, world)
    steps = run["tokens"] / (run["sequences"] * run["context"])
    return steps * (forward + max(backward, ring)) / 86400


def _efficiency(run: Settings, gpu: Settings, world: int) -> float:
    forward, backward, ring = _parts(run, gpu, world)
    return (forward + backward) / (forward + max(backward, ring))


def _kept(run: Settings, world: int) -> float:
    return memory_per_rank(int(run["parameters"]), world, stage=1).total


def _draw(rng: np.random.Generator, world: int, ring: float) -> tuple[Settings, Settings]:
    """Draw a run and a GPU without limits; at ``world`` GPUs the ring takes ``ring`` times as long as backward."""
    run = {"parameters": int(rng.integers(10**9, 10**11)), "tokens": float(rng.uniform(1e11, 1e12)), "efficiency": 0.0}
    run |= {"days": 1e9, "sequences": SEQUENCES, "context": int(rng.choice([2048, 4096, 8192]))}
    gpu = {"flops": float(rng.uniform(1e14, 1e15)), "memory": 1e15, "bandwidth": 1.0}
    _, backward, slow = _parts(run, gpu, world)
    return run, gpu | {"bandwidth": slow / (ring * backward)}


def _against(run: Settings, gpu: Settings, size: int) -> list[str]:
    """Return the conditions that a size does not meet, with its numbers."""
    days, needed, efficiency = _days(run, gpu, size), _kept(run, size), _efficiency(run, gpu, size)
    broken = {
        f"{days:.6g} days, at most {run['days']:.6g}": days > run["days"],
        f"{needed:.6g} bytes on a rank that has {gpu['memory']:.6g}": needed > gpu["memory"],
        f"an efficiency of {efficiency:.6g}, at least {run['efficiency']:.6g}": efficiency < run["efficiency"],
        f"{run['sequences']:.0f} sequences for {size} ranks": run["sequences"] % size != 0,
    }
    return [condition for condition, is_broken in broken.items() if is_broken]


def _with_conditions(run: Settings, gpu: Settings, size: int | None) -> str:
    """Describe a size with the conditions that it does not meet."""
    if size is None:
        return "None"
    against = _against(run, gpu, size)
    return f"{size}, which will {'not do: ' if against else 'do'}{'; '.join(against)}"


def _judge(answer: Answer, rng: np.random.Generator, run: Settings, gpu: Settings, case: str, extra: int = 2) -> None:
    _judge_sizes(answer, [int(size) for size in rng.permutation([*{*SIZES, extra}])], run, gpu, case)


def _judge_sizes(answer: Answer, sizes: list[int], run: Settings, gpu: Settings, case: str) -> None:
    shown = ", ".join(f"{name} {number:.6g}" for name, number in (run | gpu).items())
    where = f"{case}: {shown}; sizes {sizes}"
    got = call(answer, run, gpu, sizes, where=where)
    # All sizes are tried: one more rank may make a step longer.
    fewest = min((size for size in sizes if not _against(run, gpu, size)), default=None)
    _expect_one_of(sizes, fewest, got, partial(_with_conditions, run, gpu), where)


BATCH = 320 * 4096
RUN: Settings = {
    "parameters": 2**33, "tokens": 69_120.0 * BATCH, "days": 1e9, "sequences": 320, "context": 4096, "efficiency": 0.0
}  # fmt: skip
GPU: Settings = {"flops": 2.0**50, "memory": 1e15, "bandwidth": 2.0**33}
"""A run and a GPU in numbers that floats hold exactly.

On 16 GPUs forward takes 1.25 s, backward 2.5 and the ring 3.75: a step of 5 s, with an efficiency of 3/4. A rank keeps
4.75 bytes per parameter, and 69,120 steps take 4 days.
"""
JUST_MET: tuple[tuple[str, Settings, Settings], ...] = (
    ("16 GPUs take the days that there are", {"days": 4.0}, {}),
    ("16 GPUs have the memory that a rank needs", {}, {"memory": 4.75 * 2**33}),
    ("one and a half steps, not one and not two", {"tokens": 1.5 * BATCH, "days": 8.75 / 86400}, {}),
)
"""Changes of `RUN` and `GPU` with which a limit is just met on 16 GPUs."""


def timed(answer: Answer, rng: np.random.Generator) -> None:
    for smaller, world in pairwise(SIZES[-5:]):
        for ring in (0.5, 1.6):
            run, gpu = _draw(rng, world, ring)
            just = run | {"days": 1.001 * _days(run, gpu, world)}
            _judge(answer, rng, just, gpu, "the time is just enough for one of them")
            run, gpu = _draw(rng, smaller, ring)
            late = run | {"days": 0.999 * _days(run, gpu, smaller)}
            _judge(answer, rng, late, gpu, "the time is just too short for one of them")
        run, gpu = _draw(rng, world, 0.5)
        enough, small = ({"memory": 1.001 * _kept(run, world)}, {"memory": 0.999 * _kept(run, smaller)})
        _judge(answer, rng, run, gpu | enough, "the memory is just enough for one of them")
        _judge(answer, rng, run, gpu | small, "the memory is just too small for one")
    for case, of_run, of_gpu in JUST_MET:
        _judge_sizes(answer, [64, 8, 16, 32], RUN | of_run, GPU | of_gpu, case)
    run, gpu = _draw(rng, 8, 0.5)
    _judge(answer, rng, run | {"days": 0.5 * _days(run, gpu, max(SIZES))}, gpu, "no size is in time")
    _judge(answer, rng, run, gpu, "one GPU is enough", extra=1)


def constrained(answer: Answer, rng: np.random.Generator) -> None:
    for between in (7, 13, 50):
        run, gpu = _draw(rng, between, 0.5)
        limited = run | {"days": 1.001 * _days(run, gpu, between)}
        _judge(answer, rng, limited, gpu, f"{between} ranks would cut sequences", extra=between)
    for world in SIZES[-5:]:
        run, gpu = _draw(rng, world, float(rng.uniform(1.2, 3)))
        run |= {"days": 1.001 * _days(run, gpu, world)}
        for share, verdict in ((0.999, "enough"), (1.001, "too low")):
            strict = run | {"efficiency": share * _efficiency(run, gpu, world)}
            _judge(answer, rng, strict, gpu, f"the efficiency is just {verdict} where the time is enough")
    exact = RUN | {"days": 5.0, "efficiency": 0.75}
    _judge_sizes(answer, [64, 8, 16, 32], exact, GPU, "16 GPUs have the efficiency that is asked")


# 13.3: predict the wall

CONTEXT = 8192
WITHIN, GPUS = 0.01, 2
"""Relative and absolute tolerance. With the larger of both, (N − 1)/N may be taken as 1 in every drawn case."""


@cache
def predicted_walls(numbers: tuple[int, int, int]) -> dict[str, int]:
    """Return the four walls by their jobs, for a GPU's TFLOP/s, its port's GB/s, and sequences in a batch."""
    reached, rate, batch = numbers
    h100 = ACCELERATORS["H100 SXM"]
    base = Cluster(replace(h100, flops=reached * 1e12), 2, Link(0.0, rate * 1e9), per_node=1, utilisation=1)
    job = Job(30 * 10**9, context=CONTEXT)
    cases = {
        "fully sharded, four micro-batches": replace(job, stage=3, accumulation=4),
        "experts, fp32 gradients": replace(job, active=3 * 10**9, itemsize=4),
        "ZeRO-1, fp32 gradients": replace(job, stage=1, itemsize=4, window="all"),
        "copies on eight GPUs, two micro-batches": replace(job, cut=8, accumulation=2),
    }
    return {name: int(wall(case, base, batch, range(8, 2**20, case.cut)) or 0) for name, case in cases.items()}


def _walls_text(numbers: tuple[int, int, int]) -> list[str]:
    reached, rate, batch = numbers
    prose = [f"reach {reached} TFLOP/s send {rate} GB/s each", f"fixed, {batch} sequences"]
    return [*prose, f"Link.gigabytes({rate})", f"{reached // 100}e14", f"job, cluster, {batch}, range("]


WALLS = Numbers(
    "13.3",
    (400, 100, 512),
    lambda: [
        numbers
        for numbers in product((200, 300, 400, 500, 600), (50, 100, 200), (256, 512, 1024))
        if 40 <= numbers[2] * numbers[1] / numbers[0] <= 300  # walls from 16 to 10,000 GPUs, which grow with it
    ],
    _walls_text,
    lambda numbers: tuple(predicted_walls(numbers).values()),
)


def predicts(answer: Answer, rng: np.random.Generator) -> None:
    walls = predicted_walls(WALLS.now)
    got = expect_items(value(answer), len(walls), "four numbers of GPUs")
    for (name, exact), number in zip(walls.items(), got, strict=True):
        near = isinstance(number, int | float) and abs(number - exact) <= max(WITHIN * exact, GPUS)
        expected = "the GPUs from which on something no longer hides, within 1 % or two GPUs"
        expect(near, expected, describe(number), name)


# 13.4: the groups of a mesh

NAMES = ("dp", "pp", "cp", "ep", "tp")


def _meshes(rng: np.random.Generator) -> Iterator[dict[str, int]]:
    yield {"dp": 2, "tp": 3}
    yield {"tp": 3, "dp": 2}
    yield {"dp": 1}
    yield {"dp": 7}
    yield {"dp": 4, "pp": 1, "tp": 4}
    for count in (2, 3, 3, 4, 5):
        names = [str(name) for name in rng.permutation(NAMES)[:count]]
        yield {name: int(size) for name, size in zip(names, rng.permutation([2, 3, 4, 5, 2])[:count], strict=True)}


def grouped(answer: Answer, rng: np.random.Generator) -> None:
    for sizes in _meshes(rng):
        mesh = Mesh(sizes)
        for rank in {0, mesh.world - 1, *(int(r) for r in rng.integers(0, mesh.world, 3))}:
            for name in sizes:
                expect_equal(list(mesh.group(rank, name)), call(answer, sizes, rank, name))
