"""The collectives that this process has called, from torch's Flight Recorder, written down for who started it.

torch records every collective when it is called, over gloo as over NCCL, and those of DDP's C++ code too. An all-reduce
of one process with itself takes 8.1 us without and 9.5 us with it (CPU time, torch 2.13, two cores, November 2026),
one of two processes 100 us and more; so it is always on. Where torch has no recorder nothing is known, and nothing
fails. Nothing here loads torch: the program may not have done so yet.
"""

import json
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dpbook.core import write_atomically
from dpbook.ranks import failure_files, stacks

VARIABLES = {"TORCH_FR_BUFFER_SIZE": "512"}
"""What torch is told: how many calls are kept, which are written down in 6 ms; 0 switches the recorder off."""


def progress() -> tuple[int, int] | None:
    """How many collectives this process has called, and how many have come to their end; None where that is unknown."""
    groups = [group for state in _states() for group in state["pg_status"].values()]
    try:
        called = sum(int(group["last_enqueued_collective"]) for group in groups)
        return called, sum(int(group["last_completed_collective"]) for group in groups)
    except KeyError:  # another torch names things otherwise
        return None


def _states() -> list[dict[str, Any]]:
    try:
        return [json.loads(dump(includeCollectives=False)) for dump in _dumps("_json")]
    except Exception:  # another torch
        return []


def joined() -> bool:
    """Whether this process has been in a process group, which it may have destroyed since."""
    distributed = sys.modules.get("torch.distributed")
    initialized = getattr(distributed, "is_initialized", None)
    return bool(initialized and initialized()) or any(state.get("pg_config") for state in _states())


def write_calls(folder: Path, rank: int) -> None:
    """Write down the last calls, oldest first, with the ranks of their groups."""
    try:
        with _without_inductor():
            entries = [entry for dump in _dumps() for entry in pickle.loads(dump())["entries"]]
        written = {"groups": _groups(), "calls": [told(entry) for entry in entries if not entry["is_p2p"]]}
        write_atomically(folder / failure_files.CALLS.format(rank), json.dumps(written).encode())
    except Exception:  # as above; evidence that is missing makes no failure worse
        return


@contextmanager
def _without_inductor() -> Iterator[None]:
    """torch asks its compiler for the lines of compiled code, and would load it for that, which takes seconds."""
    torch, nothing = sys.modules["torch"], SimpleNamespace()
    vars(torch).setdefault("_inductor", nothing)
    try:
        yield
    finally:
        if vars(torch).get("_inductor") is nothing:
            del vars(torch)["_inductor"]


def time_limit() -> float | None:
    """Seconds for which torch lets the oldest call that has not come to its end wait; None where there is none."""
    try:
        dumps = [pickle.loads(dump(includeStackTraces=False)) for dump in _dumps()]
        entries = [entry for dump in dumps for entry in dump["entries"]]
        return next(float(entry["timeout_ms"]) / 1000 for entry in entries if not entry["retired"])
    except Exception:
        return None


def _dumps(form: str = "") -> list[Callable[..., bytes]]:
    """torch's functions that write down what was recorded: NCCL has a recorder of its own."""
    module = sys.modules.get("torch._C._distributed_c10d")
    functions = (getattr(module, f"_dump_{which}_trace{form}", None) for which in ("fr", "nccl"))
    return [function for function in functions if function is not None]


def _groups() -> dict[str, list[int]]:
    world = sys.modules["torch.distributed.distributed_c10d"]._world
    return {name: sorted(world.pg_group_ranks[group]) for group, name in list(world.pg_names.items())}


def told(entry: Mapping[str, Any]) -> dict[str, Any]:
    """One of the recorder's entries as `calls.records` reads it; one written as JSON has no frames."""
    frames = entry.get("frames", ())
    stack = "\n".join(f'  File "{f["filename"]}", line {f["line"]} in {f["name"]}' for f in frames)
    backend, _, op = entry["profiling_name"].rpartition(":")
    return {
        "backend": backend,
        "group": entry["process_group"][0],
        "number": entry["collective_seq_id"],
        "op": op,
        "sizes": entry["input_sizes"],
        "dtypes": entry["input_dtypes"],
        "where": (stacks.call(stack) or "") if stack else "",
        "path": stacks.own_frames(stack),
        "ended": entry["retired"] or entry["state"] == "completed",
    }
