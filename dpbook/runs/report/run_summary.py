"""Summary of a training run, computed from the files in its folder."""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import NoneType
from typing import Any

from dpbook.core import DpbookError
from dpbook.planning import ACCELERATORS, utilisation
from dpbook.runs.trainer import ALONE, metrics

NUMBER = (int, float)
ABOUT = {
    "options": dict, "world": int, "parameters": int, "trained": int, "payload_bytes": NUMBER, "tokens_per_step": int,
    "flops_per_token": (int, float, NoneType), "cores": int, "backend": str, "device": str, "torch": str, "python": str,
    "date": str,
}  # fmt: skip
PREDICTED = dict.fromkeys(("seconds", "exposed", "communication", "alpha", "beta", "calls"), NUMBER)
"""Fields, with their types, that a report needs from the description of a run and from its prediction."""
WARMUP_STEPS = 5
"""First steps, which do not count: they allocate memory and settle the buckets."""
MAY_DIFFER = {"name", "out", "all_reduce", "steps", "lr", "warmup", "clip", "seed", "save_every", "predict", "profile"}
"""Options that do not change the computation of a step; a single process sums nothing."""


@dataclass(frozen=True)
class Summary:
    """Contents of a run's files; figures are over the steps after the warm-up."""

    about: dict[str, Any]
    lines: list[dict[str, Any]]
    prediction: dict[str, Any] | None

    @property
    def world(self) -> int:
        return int(self.about["world"])

    @property
    def current(self) -> list[dict[str, Any]]:
        """Lines since the last resume, which may have had other ranks or other code; all lines if there are none."""
        resumed_at = self.about.get("resumed_at", 0)
        return [line for line in self.lines if line["step"] > resumed_at] or self.lines

    @property
    def _settled_lines(self) -> list[dict[str, Any]]:
        """Lines after the warm-up; [] if there are too few steps to leave out the first ones."""
        begun = _before(self.current[0])
        if self.current[-1]["step"] - begun <= 2 * WARMUP_STEPS:
            return []
        return [line for line in self.current if _before(line) >= begun + WARMUP_STEPS]

    @property
    def settled(self) -> bool:
        """Whether there are enough steps to leave out the first ones."""
        return bool(self._settled_lines)

    @property
    def counted(self) -> list[dict[str, Any]]:
        return self._settled_lines or self.current

    @property
    def step_seconds(self) -> list[float]:
        """Seconds of every step that counts; a line of several steps gives their mean."""
        return [float(line["seconds"]) for line in self.counted]

    @property
    def seconds(self) -> float:
        """Median step time."""
        return float(median(self.step_seconds))

    @property
    def unit(self) -> str:
        return "tokens" if self.about["flops_per_token"] else "images"

    @property
    def tokens_per_second(self) -> float:
        """Tokens, or images, per second over all ranks."""
        return float(self.about["tokens_per_step"]) / self.seconds

    def efficiency(self, alone: "Summary") -> float:
        """Return the throughput divided by that of as many processes as fast as the run ``alone``."""
        return self.tokens_per_second / (self.world * alone.tokens_per_second / alone.world)

    @property
    def model_flops_utilisation(self) -> float | None:
        """Model FLOPs utilisation (`dpbook.planning.utilisation`) relative to the bf16 peak of all devices.

        None if no peak is known, and for a run in fp32, which does not use the units with this peak.
        """
        peak = peak_flops(str(self.about["device"]))
        if peak is None or self.about["flops_per_token"] is None or self.about["options"]["precision"] != "bf16":
            return None
        return utilisation(self.tokens_per_second, float(self.about["flops_per_token"]), peak * self.world)


def _before(line: dict[str, Any]) -> int:
    """Return the step before the first one of a line; a line of an older run has one step."""
    return int(line["step"]) - int(line.get("steps", 1))


def peak_flops(device: str) -> float | None:
    """Return the bf16 peak of a device by its driver's name, in FLOP/s; None if it is not in ``bf16_peaks.toml``.

    An instance of a GPU that MIG has divided has a part of its peak, which its name does not tell.
    """
    if re.search(r"\bMIG\b", device):
        return None
    table = tomllib.loads(Path(__file__).with_name("bf16_peaks.toml").read_text(encoding="utf-8"))
    peak = next((peak for pattern, peak in table.items() if re.fullmatch(pattern, device)), None)
    return ACCELERATORS[peak].flops if isinstance(peak, str) else peak


def summarise(folder: Path) -> Summary:
    """Read a run's folder. Raises `DpbookError` if it has no run, a damaged file, or no step."""
    if not (folder / metrics.DESCRIPTION).is_file():
        raise DpbookError(f"{folder} is not the folder of a run: it has no {metrics.DESCRIPTION}")
    about = _object(folder / metrics.DESCRIPTION, ABOUT)
    if missing := ", ".join(sorted({"name", "model", "strategy", "precision"} - {*about["options"]})):
        raise DpbookError(f"{folder / metrics.DESCRIPTION} is not the description of a run: no options {missing}")
    lines = metrics.read(folder)
    if not lines:
        raise DpbookError(f"{folder} contains no finished step yet")
    if any(not isinstance(line.get(name), NUMBER) for line in lines for name in ("step", "loss", "seconds", "memory")):
        raise DpbookError(f"{folder / metrics.FILE} is damaged: a line has no metrics of a step")
    path = folder / metrics.PREDICTION
    return Summary(about, lines, _object(path, PREDICTED) if path.exists() else None)


def _object(path: Path, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Read a JSON object whose values have these ``kinds``. Raises `DpbookError`."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DpbookError(f"{path} cannot be read: {error}") from None
    values = content if isinstance(content, dict) else {}
    if wrong := ", ".join(name for name, kind in kinds.items() if not isinstance(values.get(name), kind)):
        raise DpbookError(f"{path} is not the file of a run: no {wrong}, or of another type")
    return values


def load_baseline(folder: Path, summary: Summary) -> Summary | None:
    """Return the run on one process that a launch measured; None if there is none, or its step did other work."""
    if not (folder / ALONE).exists():
        return None
    alone = summarise(folder / ALONE)
    here, there = summary.about["options"], alone.about["options"]
    return alone if all(here[name] == there.get(name) for name in here if name not in MAY_DIFFER) else None
