"""The stored races of chapter 16, with everything tuned, for several numbers of ranks.

Every method has its own learning rate and momentum, chosen on validation images with ten seeds; twenty other seeds
then run. Local SGD and DiLoCo run with several periods, so that a link can be given the period that it asks for. The
results are stored as ``dpbook/data/race.json``. Regenerate them (about an hour of one core) with

    python -c "from dpbook.book.ch16 import store_races; store_races()"
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

import numpy as np

from dpbook import planning, replicas
from dpbook.book.ch16.racing import Data, Entry, Raced, race
from dpbook.replicas import Array, Exact
from dpbook.replicas.inexact import Backup, DiLoCo, LocalSGD, LowPrecision, LowRank, Sign, Stale, TopK

WORLDS = 4, 8, 16
STEPS, GLOBAL_BATCH = 96, 160
PERIODS = 2, 8, 24, 48
"""Steps between two meetings that were run; all divide `STEPS`, and leave at least two meetings."""
MOMENTA = 0.0, 0.5, 0.7, 0.8, 0.9, 0.95
TUNING_SEEDS, SEEDS = 10, 20
STORED = files("dpbook") / "data" / "race.json"
COMPUTE = planning.Exponential(0.36, 0.04)
"""Seconds of computation in a step: 8,192 tokens of Qwen3 4B on an H100 at half of its peak take 0.4."""


def entries(world: int) -> dict[str, Entry]:
    """Return the methods that take part, before tuning: the middle one of their rates is where the search begins."""
    everyone = planning.slowest(COMPUTE, world)
    wide, compressing, low = (0.6, 1.2, 2.4), (0.5, 1, 2), (0.18, 0.36, 0.72)
    made = {
        "exact": Entry(Exact(), wide, everyone),
        "bf16": Entry(LowPrecision("bf16"), wide, everyone),
        "int8": Entry(LowPrecision("int8"), wide, everyone),
        "top-k": Entry(TopK(0.01), compressing, everyone),
        "sign": Entry(Sign(), compressing, everyone),
        "sign, two-phase": Entry(Sign(two_phase=True), compressing, everyone),
        "low rank": Entry(LowRank(2), wide, everyone),
        "stale": Entry(Stale(1), low, everyone, momentum=0, late=True),
        "backup": Entry(Backup(1), wide, COMPUTE.arrival(world - 1, world)),
    }
    for period in PERIODS:
        alone = planning.local_steps(COMPUTE, world, period)
        made[f"local SGD, H = {period}"] = Entry(LocalSGD(period), wide, alone)
        made[f"DiLoCo, H = {period}"] = Entry(DiLoCo(period, outer_momentum=0.5), wide, alone)
        made[f"DiLoCo 0.9, H = {period}"] = Entry(DiLoCo(period), wide, alone)
    return made


@dataclass(frozen=True)
class Task:
    """The digits' network, and its images: for training, for validation and for the test."""

    model: replicas.MLP
    training: Data
    validation: Data
    test: Data

    @staticmethod
    @cache
    def digits() -> "Task":
        """Return the task of chapter 16."""
        (x, y), test = replicas.split(*replicas.digits(np.float32))
        model = replicas.MLP(64, 32, 10, loss=replicas.cross_entropy)
        return Task(model, (x[:1120], y[:1120]), (x[1120:], y[1120:]), test)

    def run(self, world: int, entries: Mapping[str, Entry], seeds: int, first_seed: int = 0) -> dict[str, Raced]:
        """Run ``entries`` on ``world`` ranks."""
        return race(
            self.model, self.training, self.validation, self.test, entries,
            world=world, steps=STEPS, seeds=seeds, global_batch=GLOBAL_BATCH, first_seed=first_seed,
        )  # fmt: skip


def with_momentum(entry: Entry, momentum: float) -> Entry:
    """Return ``entry`` with this momentum: of top-k and sign the ranks' own, of the others the optimizer's."""
    if isinstance(entry.method, TopK | Sign):
        return replace(entry, method=replace(entry.method, momentum=momentum), momentum=0)
    return replace(entry, momentum=momentum)


def tune(task: Task, world: int, entry: Entry, factor: float = 2, first_seed: int = 0) -> tuple[Entry, Array]:
    """Return ``entry`` at its best rate and momentum, and the validation losses (3, seeds) of its neighbours and it.

    From the middle rate, with no, the entry's and the largest momentum, the search goes to the best neighbour, a
    ``factor`` in the rate or a step in `MOMENTA`, until no neighbour is better. The best of the three ends counts. From
    one start alone, compressors stopped at a rate and a momentum that were both far from their best.
    """
    tried: dict[tuple[float, int], Array] = {}

    def loss(place: tuple[float, int]) -> float:
        rate, index = place
        if place not in tried:
            here = replace(with_momentum(entry, MOMENTA[index]), rates=(rate,))
            tried[place] = task.run(world, {"": here}, TUNING_SEEDS, first_seed)[""].validation[0]
        mean = float(tried[place].mean())
        return mean if np.isfinite(mean) else np.inf

    def climb(best: tuple[float, int]) -> tuple[float, int]:
        while True:
            rate, index = best
            around = [(rate / factor, index), (rate * factor, index), (rate, index - 1), (rate, index + 1)]
            better = min([best, *(place for place in around if 0 <= place[1] < len(MOMENTA))], key=loss)
            if better == best:
                return best
            best = better

    starts = {0, MOMENTA.index(entry.momentum), len(MOMENTA) - 1}
    rate, index = min((climb((entry.rates[1], start)) for start in sorted(starts)), key=loss)
    rates = rate / factor, rate, rate * factor
    return replace(with_momentum(entry, MOMENTA[index]), rates=rates), np.array([tried[at, index] for at in rates])


def computed(world: int, name: str) -> dict[str, object]:
    """Tune and run one entry; return what is stored of it."""
    task = Task.digits()
    tuned, validation = tune(task, world, entries(world)[name])
    final = task.run(world, {name: replace(tuned, rates=tuned.rates[1:2])}, SEEDS, first_seed=100)[name]
    method, momentum = tuned.method, tuned.momentum
    return {
        "rate": tuned.rates[1],
        "momentum": method.momentum if isinstance(method, TopK | Sign) else momentum,
        "validation": validation.round(4).tolist(),
        "test": final.test.round(4).tolist(),
        "sent": final.sent.astype(int).tolist(),
        "rounds": final.rounds.astype(int).tolist(),
    }


@cache
def stored_races() -> dict[int, dict[str, Raced]]:
    """Return the stored runs by the number of ranks and the name of the entry."""
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    races: dict[int, dict[str, Raced]] = {}
    for world in WORLDS:
        known, races[world] = entries(world), {}
        for name, run in stored[str(world)].items():
            rates = run["rate"] / 2, run["rate"], run["rate"] * 2
            tuned = replace(with_momentum(known[name], run["momentum"]), rates=rates)
            arrays = (np.array(run[key]) for key in ("validation", "test", "sent", "rounds"))
            races[world][name] = Raced(tuned, *arrays)
    return races


def store_races() -> None:
    """Tune and run everything again, and store it; a line for each entry tells the rate and momentum that won."""
    results: dict[str, dict[str, object]] = {}
    for world in WORLDS:
        results[str(world)] = {}
        for name in entries(world):
            results[str(world)][name] = run = computed(world, name)
            print(world, name, run["rate"], run["momentum"], flush=True)
    with open(str(STORED), "w", encoding="utf-8") as file:
        json.dump(results, file, separators=(",", ":"))
