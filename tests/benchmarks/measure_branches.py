"""The critical batch size of AdamW, measured: branch a checkpoint, and train on with other batches and rates.

The model is the training program's GPT, small enough for a laptop. A run is branched when its loss on text that it does
not train on is below a first loss. Each branch begins with the checkpoint's weights and AdamW's moments, has a batch
and a learning rate of its own, and ends below a second loss. Batch and rate are the only differences. The idea is that
of Merrill and others (Critical Batch Size Revisited, 2025), who compare the losses after equally many tokens; here
the steps to equal losses are counted, as in Shallue et al. (2019).

`python -m tests.benchmarks.measure_branches` measures all of it in ten minutes on two cores, and writes `RECORDED`,
which chapter 04b shows.
"""

import copy
import json
import multiprocessing
import os
import platform
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeAlias

import numpy as np

from dpbook.book.ch04.batches import NoiseScale, noise_scale
from dpbook.book.ch04.sweep import RECORDED
from dpbook.core import write_atomically
from dpbook.replicas import Array

WIDTH, DEPTH, CONTEXT = 32, 2, 32
BASE_BATCH, BASE_RATE = 16, 2e-3  # of the run that is branched
SEGMENTS = ((3.0, 2.75), (2.5, 2.4))  # held-out losses at which a run is branched and a branch ends
BATCHES = (4, 16, 64, 256)  # sequences
RATES = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2)
TRIED = (((3, 4, 2), (4, 5, 3), (4, 5, 3), (5, 4, 6)), ((1, 0, 2), (2, 1, 3), (3, 2, 4), (4, 3, 5)))
"""Indices of the rates that each batch of a segment tries, a good one first, so that the others are given up early."""
SEEDS = 10
GIVEN_UP = 1.6  # a branch ends unfinished after so many times the steps of the best one with its batch and seed
LONGEST = 20_000  # most sequences of a branch
EVALUATION_SHARE = 0.02  # share of further steps between two evaluations; up to the 50th step each is evaluated
GROUPS, GROUP = 64, 16  # gradients of 16 held-out sequences each, from which the noise scale is estimated
State: TypeAlias = tuple[Any, Any]
"""A model and its optimizer."""


class Experiment:
    """The text in two parts, nine tenths to train on, and the operations of a branch."""

    def __init__(self) -> None:
        from dpbook.runs.trainer import Text

        self.text = Text(CONTEXT)
        self.training = int(0.9 * len(self.text))
        self.held_out = np.linspace(self.training + CONTEXT, len(self.text) - 1, GROUPS * GROUP).astype(int)

    def start(self, seed: int) -> State:
        import torch

        from dpbook.runs.trainer import GPT

        torch.manual_seed(seed)
        model = GPT(WIDTH, DEPTH, CONTEXT)
        return model, torch.optim.AdamW(model.parameters(), lr=BASE_RATE, betas=(0.9, 0.95), weight_decay=0.1)

    def train(
        self, state: State, goals: tuple[float, ...], batch: int, lr: float, rng: np.random.Generator, most: int
    ) -> Array:
        """Return the steps until the held-out loss is below each of the falling ``goals``; infinity after ``most``."""
        import torch

        model, optimizer = state
        held_out = self.text.examples(self.held_out[:: GROUPS * GROUP // 128])
        for group in optimizer.param_groups:
            group["lr"] = lr
        next_evaluation, needed = 1.0, np.full(len(goals), np.inf)
        for step in range(1, most + 1):
            optimizer.zero_grad()
            model(*self.text.examples(rng.integers(0, self.training, batch))).backward()
            optimizer.step()
            if step >= next_evaluation:
                next_evaluation = step * (1 + EVALUATION_SHARE)
                with torch.no_grad():
                    below = model(*held_out).item() < np.array(goals)
                needed = np.minimum(needed, np.where(below, step, np.inf))
                if below[-1]:
                    break
        return needed

    def noise(self, state: State) -> NoiseScale:
        """Estimate signal and noise of the gradient at these weights, on text that they do not know."""
        model, gradients = copy.deepcopy(state[0]), []
        for places in np.random.default_rng(0).permutation(self.held_out).reshape(GROUPS, GROUP):
            model.zero_grad()
            model(*self.text.examples(places)).backward()
            gradients.append(np.concatenate([p.grad.numpy().ravel() for p in model.parameters()]))
        return noise_scale(np.array(gradients), GROUP)


def branch_seed(seed: int) -> list[tuple[NoiseScale, Array]]:
    """Train one run, and from its two checkpoints all branches: of each segment noise and steps (batches, rates)."""
    import torch

    torch.set_num_threads(1)
    experiment, rng, segments = Experiment(), np.random.default_rng(seed), []
    state = experiment.start(seed)
    for (first_loss, last_loss), tried in zip(SEGMENTS, TRIED, strict=True):
        experiment.train(state, (first_loss,), BASE_BATCH, BASE_RATE, rng, LONGEST // BASE_BATCH)
        steps = np.full((len(BATCHES), len(RATES)), np.inf)
        for row, batch in enumerate(BATCHES):
            for column in tried[row]:
                most = int(min(LONGEST // batch, GIVEN_UP * steps[row].min()))
                order = np.random.default_rng([seed, batch])
                branch = copy.deepcopy(state)  # both at once, so that the optimizer's parameters are the copy's
                (steps[row, column],) = experiment.train(branch, (last_loss,), batch, RATES[column], order, most)
        segments.append((experiment.noise(state), steps))
    return segments


def main() -> None:
    import torch

    began, spawn = time.monotonic(), multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), spawn) as pool:
        by_seed = []
        for result in pool.map(branch_seed, range(SEEDS)):
            by_seed.append(result)
            print(f"{len(by_seed)} of {SEEDS} seeds after {(time.monotonic() - began) / 60:.0f} minutes", flush=True)
    segments = []
    for losses, results in zip(SEGMENTS, zip(*by_seed, strict=True), strict=True):
        steps = np.stack([steps for _, steps in results], axis=-1)
        numbers = [[[int(s) if np.isfinite(s) else None for s in seeds] for seeds in rates] for rates in steps.tolist()]
        noise = [[round(estimate.signal, 7), round(estimate.noise, 4)] for estimate, _ in results]
        segments.append({"losses": losses, "signal_and_noise": noise, "steps": numbers})
    data = {
        "what": "steps of AdamW from one held-out loss to another, by batch (sequences), rate and seed",
        "null": "the branch was given up, or not tried",
        "model": f"GPT of width {WIDTH}, depth {DEPTH}, {CONTEXT} bytes per sequence",
        "command": "python -m tests.benchmarks.measure_branches",
        "measured": {
            "date": time.strftime("%Y-%m-%d"),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "torch": torch.__version__,
            "minutes": round((time.monotonic() - began) / 60),
        },
        "batches": BATCHES,
        "rates": RATES,
        "segments": segments,
    }
    write_atomically(RECORDED, (json.dumps(data) + "\n").encode())


if __name__ == "__main__":
    main()
