"""What was recorded on real machines and ships with the package: traces, and step times over a slow link."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from dpbook.core import DATA, DpbookError

RECORD = "slow_link.json"


@dataclass(frozen=True)
class StepRecord:
    """Step times over a slow link in milliseconds, several of each, beside those that the simulator predicts.

    Attributes:
        emulated, real: by wrapper, over an emulated link and over a real one of the same speed.
        predicted, measured: by bucket cap in MiB, what the simulator said and what the clock did.
        about: the record's other entries: machine, versions, date, link and model.
    """

    emulated: Mapping[str, tuple[float, ...]]
    real: Mapping[str, tuple[float, ...]]
    predicted: Mapping[float, tuple[float, ...]]
    measured: Mapping[float, tuple[float, ...]]
    about: Mapping[str, Any]

    def error(self, cap: float) -> float:
        """By how much the median prediction at this cap is too long: 0.1 is ten per cent."""
        return median(self.predicted[cap]) / median(self.measured[cap]) - 1

    def __repr__(self) -> str:
        worst = max((self.error(cap) for cap in self.predicted), key=abs)
        return (
            f"{len(self.emulated)} wrappers, {len(self.predicted)} caps, predictions off by {worst:+.1%} at worst\n"
            f"{self.about['machine']}, torch {self.about['torch']}, {self.about['date']}"
        )


def recorded_steps(path: str | Path | None = None) -> StepRecord:
    """Read a record of ``tests/benchmarks/real_link.py``; by default the one that ships with the package.

    Raises `DpbookError` for a file that is none.
    """
    file = DATA / "measurements" / RECORD if path is None else Path(path)
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
        emulated, real = (
            {name: tuple(times) for name, times in held.pop(link).items()} for link in ("emulated", "real")
        )
        caps = held.pop("caps_mib")
        predicted, measured = (
            dict(zip(caps, map(tuple, held.pop(kind)), strict=True)) for kind in ("predicted", "measured")
        )
        record = StepRecord(emulated, real, predicted, measured, held)
        repr(record)  # has all that it must say
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DpbookError(f"{file} is no record of steps over a slow link ({type(error).__name__}: {error})") from None
    return record


def recorded_traces() -> tuple[Path, ...]:
    """Return the files of a real run, rank 0's first: for `read_profiles`, or to open in Perfetto.

    torch's DistributedDataParallel over gloo, two ranks on one machine, two steps; ``dpbook/data/traces/ddp_gloo.json``
    says with which model, machine and versions, and when.
    """
    return tuple(sorted((DATA / "traces").glob("ddp_gloo_rank*.json.gz")))
