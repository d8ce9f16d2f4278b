"""What the files of a training run say, in numbers."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from types import NoneType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpbook.core import DpbookError
from dpbook.planning import ACCELERATORS, utilisation
from dpbook.runs.trainer import ALONE, metrics

Kinds = Mapping[str, type | tuple[type, ...]]
NUMBER = (int, float)
ABOUT: Kinds = {
    "options": dict, "world": int, "parameters": int, "trained": int, "payload_bytes": NUMBER, "tokens_per_step": int,
    "flops_per_token": (int, float, NoneType), "cores": int, "backend": str, "device": str, "torch": str, "python": str,
    "date": str,
}  # fmt: skip
PREDICTED: Kinds = dict.fromkeys(("seconds", "exposed", "communication", "alpha", "beta", "calls"), NUMBER)
"""What a report needs of the description of a run, and of its prediction."""
WARM = 5
"""Steps at the beginning that do not count: the first ones allocate and settle the buckets."""
LITTLE = 0.05
"""Shares of a step below this are no finding."""
STEADY = 2 / 3
"""Share of the steps from which on it is no chance that the same rank is the longest."""
MAY_DIFFER = {"name", "out", "all_reduce", "steps", "lr", "warmup", "clip", "seed", "save_every", "predict", "profile"}
"""Options that leave the work of a step as it is; a process alone sums nothing."""


@dataclass(frozen=True)
class Parts:
    """Median seconds of a step, and the mean of its parts on each rank over the middle half of the steps.

    Not medians of the parts: where now one rank waits and now another, each of them would be next to nothing.

    ``transfer`` is communication that nothing hides, the same for all. It is what the rank needs for the sum that
    waits for nobody, in each step the shortest; what the others need above it they wait. The ``rest`` of a step is
    the exchange of the loss.
    """

    step: float
    computing: NDArray[np.float64]
    waiting: NDArray[np.float64]
    transfer: NDArray[np.float64]
    updating: NDArray[np.float64]
    rest: NDArray[np.float64]
    longest: NDArray[np.float64]
    """Share of the steps in which a rank computes longest."""

    @property
    def wait(self) -> float:
        """Share of a step that goes to waiting, the mean over ranks."""
        return float(self.waiting.mean()) / self.step

    @property
    def slow(self) -> int | None:
        """The rank that computes longer than any other by a tenth and makes them wait; None where there is none.

        They wait for it if it waits less than half as long as they do; and it is so in most steps, not in a few.
        """
        if self.wait < LITTLE:
            return None
        *others, last = np.argsort(self.computing)
        longer = self.computing[last] > 1.1 * self.computing[others].max()
        steady = self.longest[last] >= STEADY
        return int(last) if longer and steady and self.waiting[last] < self.waiting[others].mean() / 2 else None


@dataclass(frozen=True)
class Summary:
    """What the files of a run say; figures are over the steps after the first few."""

    about: dict[str, Any]
    lines: list[dict[str, Any]]
    prediction: dict[str, Any] | None

    @property
    def world(self) -> int:
        """Ranks of the run."""
        return int(self.about["world"])

    @property
    def own(self) -> list[dict[str, Any]]:
        """The lines since the run was last resumed, maybe by other ranks, other code; all where none was left to do."""
        resumed_at = self.about.get("resumed_at", 0)
        return [line for line in self.lines if line["step"] > resumed_at] or self.lines

    @property
    def settled(self) -> bool:
        """Whether there are steps enough that the first ones need not count."""
        return self.own[-1]["step"] - _before(self.own[0]) > 2 * WARM and bool(self._warm)

    @property
    def counted(self) -> list[dict[str, Any]]:
        """The lines that count."""
        return self._warm if self.settled else self.own

    @property
    def _warm(self) -> list[dict[str, Any]]:
        """The lines of steps that are none of the first."""
        first = _before(self.own[0]) + WARM
        return [line for line in self.own if _before(line) >= first]

    @property
    def step_seconds(self) -> list[float]:
        """Of every step that counts, or the mean of those of a line."""
        return [float(line["seconds"]) for line in self.counted]

    @property
    def seconds(self) -> float:
        """Median step time."""
        return float(median(self.step_seconds))

    @cached_property
    def parts(self) -> Parts | None:
        """The parts of a step; None for a run that did not measure them on all its ranks."""
        if any(len(line.get(name, ())) != self.world for line in self.counted for name in metrics.PARTS):
            return None
        computing, summing, updating = (np.array([line[name] for line in self.counted]) for name in metrics.PARTS)
        transfer = np.broadcast_to(summing.min(axis=1, keepdims=True), summing.shape)
        step = np.array(self.step_seconds)[:, None]
        rest = np.maximum(0.0, step - computing - summing - updating)  # a rank may begin before rank 0, which is timed
        parts = (computing, summing - transfer, transfer, updating, rest)
        least, most = np.percentile(step, [25, 75])
        middle = ((least <= step) & (step <= most))[:, 0]
        middle = middle if middle.any() else np.ones_like(middle)  # of two steps none lies between
        longest = computing == computing.max(axis=1, keepdims=True)
        means = [part[middle].mean(axis=0) for part in parts]
        return Parts(self.seconds, *means, *[longest.mean(axis=0)])

    @property
    def unit(self) -> str:
        """What the model reads."""
        return "tokens" if self.about["flops_per_token"] else "images"

    @property
    def tokens_per_second(self) -> float:
        """Tokens, or images, per second over all ranks."""
        return float(self.about["tokens_per_step"]) / self.seconds

    def efficiency(self, alone: "Summary") -> float:
        """Throughput, divided by that of as many processes as fast as the one ``alone``."""
        return self.tokens_per_second / (self.world * alone.tokens_per_second / alone.world)

    @property
    def model_flops_utilisation(self) -> float | None:
        """MFU (`dpbook.planning.utilisation`) beside the bf16 peak of all devices.

        None where no peak is known, and for a run in fp32, which does not use the units that have this peak.
        """
        peak = peak_flops(str(self.about["device"]))
        if peak is None or self.about["flops_per_token"] is None or self.about["options"]["precision"] != "bf16":
            return None
        return utilisation(self.tokens_per_second, float(self.about["flops_per_token"]), peak * self.world)


def _before(line: dict[str, Any]) -> int:
    """The step after which the steps of a line begin; those of older runs have one each."""
    return int(line["step"]) - int(line.get("steps", 1))


DRIVER_NAMES = {
    "NVIDIA GeForce RTX 4090": "RTX 4090",
    "(NVIDIA )?A100.*": "A100 80 GB",  # of either memory, on SXM or PCIe
    "NVIDIA H100 80GB HBM3": "H100 SXM",  # not "NVIDIA H100 PCIe" or "NVL", which are slower
    "NVIDIA H200": "H200 SXM",
    "NVIDIA B200": "B200",
}
"""What drivers call the accelerators of our table, as patterns."""


def peak_flops(device: str) -> float | None:
    """The bf16 peak of a device by the name that its driver gives it; None for one that is not in our table."""
    names = [name for pattern, name in DRIVER_NAMES.items() if re.fullmatch(pattern, device)]
    return ACCELERATORS[names[0]].flops if names else None


def summarise(folder: Path) -> Summary:
    """Read a run's folder. Raises `DpbookError` where there is no run, a file of it is damaged, or it has no step."""
    if not (folder / metrics.DESCRIPTION).is_file():
        raise DpbookError(f"{folder} is not the folder of a run: it has no {metrics.DESCRIPTION}")
    about = _object(folder / metrics.DESCRIPTION, ABOUT)
    if missing := {"name", "model", "strategy", "precision"} - {*about["options"]}:
        raise DpbookError(
            f"{folder / metrics.DESCRIPTION} is not that of a run: no options {', '.join(sorted(missing))}"
        )
    lines = metrics.read(folder)
    if not lines:
        raise DpbookError(f"{folder} holds no step yet")
    if any(not isinstance(line.get(name), NUMBER) for line in lines for name in ("step", "loss", "seconds", "memory")):
        raise DpbookError(f"{folder / metrics.FILE} is damaged: a line is not that of a step")
    path = folder / metrics.PREDICTION
    return Summary(about, lines, _object(path, PREDICTED) if path.exists() else None)


def _object(path: Path, kinds: Kinds) -> dict[str, Any]:
    """A JSON object with values of these ``kinds``."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DpbookError(f"{path} cannot be read: {error}") from None
    wrong = [
        name for name, kind in kinds.items() if not isinstance(found, dict) or not isinstance(found.get(name), kind)
    ]
    if wrong:
        raise DpbookError(f"{path} is not that of a run: no {', '.join(wrong)}, or of another kind")
    return dict(found)


def kept_baseline(folder: Path, summary: Summary) -> Summary | None:
    """What a launch has kept of one process; None if it kept nothing, or of a step that did other work."""
    if not (folder / ALONE).exists():
        return None
    alone = summarise(folder / ALONE)
    here, there = summary.about["options"], alone.about["options"]
    return alone if all(here[name] == there.get(name) for name in here if name not in MAY_DIFFER) else None
