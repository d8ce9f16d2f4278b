"""Tune and run the races of chapter 16 again, and store them as ``dpbook/data/race.json``.

It takes about an hour of one core: python -m tests.benchmarks.store_races
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from dpbook import replicas
from dpbook.book.ch16.racing import PERIODS, STORED, WORLDS, Data, Entry, Raced, entries, race, with_momentum
from dpbook.replicas import Array
from dpbook.replicas.inexact import Sign, TopK

STEPS, GLOBAL_BATCH = 96, 160
assert not any(STEPS % period for period in PERIODS)
MOMENTA = 0.0, 0.5, 0.7, 0.8, 0.9, 0.95
TUNING_SEEDS, SEEDS = 10, 20


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


if __name__ == "__main__":
    store_races()
