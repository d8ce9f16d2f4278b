"""Recordings on real machines that ship with the package: traces, and step times over a slow link."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from dpbook.core import DATA, DpbookError

SLOW_LINK_FILE = "slow_link.json"


@dataclass(frozen=True)
class StepRecord:
    """Step times over a slow link in milliseconds, several of each, and the predictions of the simulator.

    Attributes:
        emulated, real: step times by wrapper, over an emulated link and over a real link of the same speed.
        predicted, measured: simulated and measured step times, by bucket cap in MiB.
        about: other entries of the record: machine, versions, date, link and model.
    """

    emulated: Mapping[str, tuple[float, ...]]
    real: Mapping[str, tuple[float, ...]]
    predicted: Mapping[float, tuple[float, ...]]
    measured: Mapping[float, tuple[float, ...]]
    about: Mapping[str, Any]

    def error(self, cap: float) -> float:
        """Return the relative error of the median prediction at this cap: 0.1 is ten per cent too long."""
        return median(self.predicted[cap]) / median(self.measured[cap]) - 1

    def __repr__(self) -> str:
        worst = max((self.error(cap) for cap in self.predicted), key=abs)
        return (
            f"{len(self.emulated)} wrappers, {len(self.predicted)} caps, predictions off by {worst:+.1%} at worst\n"
            f"{self.about['machine']}, torch {self.about['torch']}, {self.about['date']}"
        )


def recorded_steps(path: str | Path | None = None) -> StepRecord:
    """Read a record of ``tests/benchmarks/real_link.py``; by default the one that ships with the package.

    Raises `DpbookError` if the file is no such record.
    """
    file = DATA / "measurements" / SLOW_LINK_FILE if path is None else Path(path)
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        emulated, real = (
            {name: tuple(times) for name, times in record.pop(link).items()} for link in ("emulated", "real")
        )
        caps = record.pop("caps_mib")
        predicted, measured = (
            dict(zip(caps, map(tuple, record.pop(kind)), strict=True)) for kind in ("predicted", "measured")
        )
        steps = StepRecord(emulated, real, predicted, measured, record)
        repr(steps)  # raises if an entry that it shows is missing
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DpbookError(f"{file} is no record of steps over a slow link ({type(error).__name__}: {error})") from None
    return steps


def recorded_traces() -> tuple[Path, ...]:
    """Return the trace files of a real run, rank 0's first, for `read_profiles` or Perfetto.

    The run is torch's DistributedDataParallel over gloo: two ranks on one machine, two steps.
    ``dpbook/data/traces/ddp_gloo.json`` names the model, the machine, the versions and the date.
    """
    return tuple(sorted((DATA / "traces").glob("ddp_gloo_rank*.json.gz")))
