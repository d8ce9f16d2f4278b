"""The traces that ship with the package."""

from __future__ import annotations

from pathlib import Path

from dpbook.core import DATA


def recorded_traces() -> tuple[Path, ...]:
    """Return the files of a real run, rank 0's first: for `read_profiles`, or to open in Perfetto.

    torch's DistributedDataParallel over gloo, two ranks on one machine, two steps; ``dpbook/data/traces/ddp_gloo.json``
    says with which model, machine and versions, and when.
    """
    return tuple(sorted((DATA / "traces").glob("ddp_gloo_rank*.json.gz")))
