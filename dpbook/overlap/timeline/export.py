"""Timelines as Chrome traces; traces and step times of real machines in the package.

https://ui.perfetto.dev opens Chrome's format, Google's "Trace Event Format": a process for each rank, a thread for each
lane, microseconds.
"""

import gzip
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from dpbook.core import DATA, check_type, write_atomically
from dpbook.overlap.timeline.spans import Timeline

TRACE_FORMAT, TRACE_VERSION = "dpbook.trace", 1


def chrome_trace(timeline: Timeline) -> dict[str, Any]:
    """Return the timeline as a Chrome trace, as data for `json.dumps`.

    Each event also has its exact times in seconds, since microseconds as floats would lose bits.
    """
    check_type("timeline", timeline, Timeline, "a Timeline")
    events: list[dict[str, Any]] = []
    threads: dict[tuple[int, str], int] = {}
    for rank in timeline.ranks:
        events.append({"ph": "M", "name": "process_name", "pid": int(rank), "tid": 0, "args": {"name": f"rank {rank}"}})
        for tid, lane in enumerate(timeline.lanes(rank)):
            threads[rank, lane] = tid
            events.append({"ph": "M", "name": "thread_name", "pid": int(rank), "tid": tid, "args": {"name": lane}})
    events += (
        {
            "ph": "X",
            "name": span.name,
            "cat": span.kind,
            "pid": int(span.rank),
            "tid": threads[span.rank, span.lane],
            "ts": float(span.start) * 1e6,
            "dur": float(span.duration) * 1e6,
            "args": {"start_s": float(span.start), "end_s": float(span.end), "lane": span.lane}
            | ({} if span.ready is None else {"ready_s": float(span.ready)}),
        }
        for span in timeline.spans
    )
    about = {"format": TRACE_FORMAT, "version": TRACE_VERSION, "window_s": [timeline.start, timeline.end]}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def write_trace(timeline: Timeline, path: str | os.PathLike[str]) -> Path:
    """Write the Chrome trace to ``path``, compressed if the name ends in ".gz", and return the path."""
    target = Path(path)
    content = json.dumps(chrome_trace(timeline)).encode()
    write_atomically(target, gzip.compress(content, mtime=0) if target.suffix == ".gz" else content)
    return target


@dataclass(frozen=True)
class StepRecord:
    """Step times over a slow link in milliseconds, several of each, and the predictions of the simulator.

    ``emulated`` and ``real`` are by wrapper, over an emulated link and a real one of the same speed; ``predicted`` and
    ``measured`` by bucket cap in MiB. ``about`` has the machine, versions, date, link and model.
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


def recorded_steps() -> StepRecord:
    """Read the record of ``tests/benchmarks/real_link.py`` that ships with the package."""
    record = json.loads((DATA / "measurements" / "slow_link.json").read_text(encoding="utf-8"))
    emulated, real = ({name: tuple(times) for name, times in record.pop(link).items()} for link in ("emulated", "real"))
    caps = record.pop("caps_mib")
    predicted, measured = (
        dict(zip(caps, map(tuple, record.pop(kind)), strict=True)) for kind in ("predicted", "measured")
    )
    return StepRecord(emulated, real, predicted, measured, record)


def recorded_traces() -> tuple[Path, ...]:
    """Return the trace files of a real run, rank 0's first, for `read_profiles` or Perfetto.

    The run is torch's DistributedDataParallel over gloo: two ranks on one machine, two steps.
    ``dpbook/data/traces/ddp_gloo.json`` names the model, the machine, the versions and the date.
    """
    return tuple(sorted((DATA / "traces").glob("ddp_gloo_rank*.json.gz")))
