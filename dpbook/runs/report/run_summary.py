"""Summary of a training run, computed from the files in its folder."""

import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

from dpbook.core import DpbookError
from dpbook.planning import ACCELERATORS, utilisation
from dpbook.runs.trainer import ALONE, metrics

ABOUT = (
    "options", "world", "parameters", "trained", "payload_bytes", "tokens_per_step", "flops_per_token", "cores",
    "backend", "device", "torch", "python", "date",
)  # fmt: skip
OPTIONS = ("name", "model", "strategy", "precision")
PREDICTED = ("seconds", "exposed", "communication", "alpha", "beta", "calls")
LINE = ("step", "loss", "seconds", "memory")
"""Fields that a report needs: of the description, of its options, of the prediction, and of a line of metrics."""
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
    path = folder / metrics.DESCRIPTION
    if not path.is_file():
        raise DpbookError(f"{folder} is not the folder of a run: it has no {metrics.DESCRIPTION}")
    prediction = None
    try:
        about = _with_fields(json.loads(path.read_text(encoding="utf-8")), ABOUT)
        _with_fields(about["options"], OPTIONS)
        path = folder / metrics.FILE
        lines = [_with_fields(line, LINE) for line in metrics.read(folder)]
        path = folder / metrics.PREDICTION
        if path.exists():
            prediction = _with_fields(json.loads(path.read_text(encoding="utf-8")), PREDICTED)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise DpbookError(f"{path} is damaged, or not from a run of our training program: {reason}") from None
    if not lines:
        raise DpbookError(f"{folder} contains no finished step yet")
    return Summary(about, lines, prediction)


def _with_fields(values: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return ``values``. Raises `KeyError` if a field is missing, `TypeError` for anything but a JSON object."""
    itemgetter(*names)(values)
    return values


def load_baseline(folder: Path, summary: Summary) -> Summary | None:
    """Return the run on one process that a launch measured; None if there is none, or its step did other work."""
    if not (folder / ALONE).exists():
        return None
    alone = summarise(folder / ALONE)
    here, there = summary.about["options"], alone.about["options"]
    return alone if all(here[name] == there.get(name) for name in here if name not in MAY_DIFFER) else None
