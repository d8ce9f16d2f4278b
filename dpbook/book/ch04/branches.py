"""Branches of a GPT's checkpoints, as `tests/benchmarks/measure_branches.py` recorded them."""

import json
from dataclasses import dataclass

import numpy as np

from dpbook.book.ch04.batches import NoiseScale
from dpbook.book.ch04.sweep import Race
from dpbook.core import DATA

RECORDED = DATA / "measurements" / "critical_batch.json"


@dataclass(frozen=True)
class Branches:
    """All branches of one segment.

    Attributes:
        losses: held-out losses, in nats per byte, at which a branch begins and ends.
        races: for each batch the steps of each learning rate and seed; the accuracies are NaN.
        noise: signal and noise of the gradient on held-out text where the branches begin, averaged over the seeds.
    """

    losses: tuple[float, float]
    races: list[Race]
    noise: NoiseScale


def recorded() -> list[Branches]:
    """Return the branches that ship with the package, early segment first."""
    data, segments = json.loads(RECORDED.read_text(encoding="utf-8")), []
    for segment in data["segments"]:
        steps = np.array(segment["steps"], float)  # null in the file, and NaN here: given up, or not tried
        steps[np.isnan(steps)] = np.inf
        rates, unknown = np.array(data["rates"]), np.full(steps.shape[1:], np.nan)
        races = [Race(batch, rates, own, unknown) for batch, own in zip(data["batches"], steps, strict=True)]
        noise = NoiseScale(*np.mean(segment["signal_and_noise"], axis=0).tolist())
        segments.append(Branches(tuple(segment["losses"]), races, noise))
    return segments
