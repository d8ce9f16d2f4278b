"""The collectives of this process, from torch's Flight Recorder, written to a file for the launcher.

torch records every collective when it is called, over gloo as over NCCL, and those of DDP's C++ code too. An all-reduce
of one process with itself takes 8.1 µs without and 9.5 µs with it (CPU time, torch 2.13, two cores, November 2026).
Between two processes it takes 100 µs and more, so the recorder is always on. If torch has no recorder, nothing is
recorded and nothing fails. This module does not load torch: the program may not have loaded it yet.
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
"""Environment of a rank: the number of calls that torch keeps. 512 are written in 6 ms; 0 switches the recorder off."""


def progress() -> tuple[int, int] | None:
    """Return how many collectives this process has called and how many have completed; None if that is unknown."""
    groups = [group for state in _states() for group in state["pg_status"].values()]
    try:
        called = sum(int(group["last_enqueued_collective"]) for group in groups)
        return called, sum(int(group["last_completed_collective"]) for group in groups)
    except KeyError:  # another version of torch uses other names
        return None


def _states() -> list[dict[str, Any]]:
    try:
        return [json.loads(dump(includeCollectives=False)) for dump in _dump_functions("_json")]
    except Exception:  # another version of torch
        return []


def joined() -> bool:
    """Return True if this process is or was in a process group, which it may have destroyed since."""
    distributed = sys.modules.get("torch.distributed")
    initialized = getattr(distributed, "is_initialized", None)
    return bool(initialized and initialized()) or any(state.get("pg_config") for state in _states())


def write_calls(folder: Path, rank: int) -> None:
    """Write the last calls, oldest first, with the ranks of their groups."""
    try:
        with _without_inductor():
            calls = [call_record(entry) for entry in _entries() if not entry["is_p2p"]]
        world = sys.modules["torch.distributed.distributed_c10d"]._world
        groups = {name: sorted(world.pg_group_ranks[group]) for group, name in list(world.pg_names.items())}
        report = json.dumps({"groups": groups, "calls": calls}).encode()
        write_atomically(folder / failure_files.CALLS_FILE.format(rank), report)
    except Exception:  # another version of torch; and missing evidence makes no failure worse
        return


@contextmanager
def _without_inductor() -> Iterator[None]:
    """Keep torch from loading its compiler: the dump asks it for lines of compiled code, and loading takes seconds."""
    torch, stub = sys.modules["torch"], SimpleNamespace()
    vars(torch).setdefault("_inductor", stub)
    try:
        yield
    finally:
        if vars(torch).get("_inductor") is stub:
            del vars(torch)["_inductor"]


def time_limit() -> float | None:
    """Return torch's timeout, in seconds, of the oldest call that is not completed; None if there is none."""
    try:
        pending = (entry for entry in _entries(includeStackTraces=False) if not entry["retired"])
        return next(float(entry["timeout_ms"]) / 1000 for entry in pending)
    except Exception:
        return None


def _entries(**parts: bool) -> list[dict[str, Any]]:
    """Return the entries of all recorders, oldest first: a program may call gloo and NCCL in turn."""
    entries = [entry for dump in _dump_functions() for entry in pickle.loads(dump(**parts))["entries"]]
    return sorted(entries, key=lambda entry: entry["time_created_ns"])


def _dump_functions(suffix: str = "") -> list[Callable[..., bytes]]:
    """Return torch's functions that dump a recorder, as pickles or with "_json" as JSON; NCCL has one of its own."""
    module = sys.modules.get("torch._C._distributed_c10d")
    functions = (getattr(module, f"_dump_{recorder}_trace{suffix}", None) for recorder in ("fr", "nccl"))
    return [function for function in functions if function is not None]


def call_record(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of the recorder in the form that `call_records` reads; a dump in JSON has no frames."""
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
        "call_site": (stacks.waiting_call(stack) or "") if stack else "",
        "frames": stacks.program_frames(stack),
        "completed": entry["retired"] or entry["state"] == "completed",
    }
