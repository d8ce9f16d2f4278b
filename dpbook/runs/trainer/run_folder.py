"""Folder of a run: checkpoints by step, a lock that admits one launch at a time, and whether other options can resume.

Loads no torch.
"""

import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from dpbook.core import DpbookError, aligned, try_lock
from dpbook.runs.trainer.metrics import DESCRIPTION
from dpbook.runs.trainer.options import Options

KEEP = 2
"""Number of checkpoints that are kept: the newest, and the previous one in case the newest is damaged."""
_COMPLETE = re.compile(r"checkpoint-(\d{8})\.pt")


def checkpoint(folder: Path, step: int) -> Path:
    return folder / f"checkpoint-{step:08}.pt"


def steps(folder: Path) -> list[int]:
    """Return the steps of the complete checkpoints, from the oldest to the newest."""
    matches = (_COMPLETE.fullmatch(path.name) for path in folder.glob("checkpoint-*.pt"))
    return sorted(int(match[1]) for match in matches if match)


LOCK_FILE = ".lock"
SETTLING_SECONDS = 2.0
"""Seconds in which the launchers of several nodes agree on a lock; another launch is refused as much later."""


@contextmanager
def locked(folder: Path, meeting: str | None, report: Callable[[str], None]) -> Iterator[None]:
    """Lock the ``folder`` of a run against other launches; create it if it does not exist.

    The launchers of one launch on several nodes pass the same ``meeting`` and share the lock. The lock ends with the
    process, even if it is killed or its host fails. Raises `DpbookError` if another launch has the lock. On a file
    system without locks, ``report`` receives a warning and no launch is excluded.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            _take(folder, descriptor, meeting)
        except OSError as error:
            report(f"warning: {folder} cannot be locked ({error.strerror}): take care that no other launch uses it")
        yield
    finally:
        os.close(descriptor)


def _take(folder: Path, descriptor: int, meeting: str | None) -> None:
    # The launcher of another node may have the lock for itself, until it has written which launch it belongs to.
    end = time.monotonic() + (0.0 if meeting is None else SETTLING_SECONDS)
    while not _try_to_take(descriptor, meeting):
        if time.monotonic() >= end:
            holder = _holder(descriptor)
            pid, host, since = (holder.get(name, "?") for name in ("pid", "host", "since"))
            raise DpbookError(
                f"refused: {folder} is locked by pid {pid} on host {host}, since {since}; "
                "wait for its end, or take another --name"
            )
        time.sleep(0.02)


def _try_to_take(descriptor: int, meeting: str | None) -> bool:
    if try_lock(descriptor):
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%F %T"), "meeting": meeting}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)
    elif meeting is None or _holder(descriptor).get("meeting") != meeting:
        return False
    return meeting is None or try_lock(descriptor, shared=True)


def _holder(descriptor: int) -> dict[str, Any]:
    try:
        content = json.loads(os.pread(descriptor, 4096, 0))
    except ValueError:  # another process is writing it
        return {}
    return content if isinstance(content, dict) else {}


CONTINUE_FLAG = "--continue-changed"
HARMLESS = {"name", "out", "steps", "save_every", "predict", "profile"}
"""Options that do not change the training."""
SHAPES = ("model", "width", "depth", "context", "lora")
"""Options that determine the shapes of the weights."""
BATCH_SETTINGS = {"batch", "accumulation", "ranks"}
"""Settings that determine the size of a global batch."""


class Change(NamedTuple):
    """Values of an option, or of the number of ranks, before and after a change."""

    before: Any
    now: Any


def changes(before: Mapping[str, Any], ranks_before: int, options: Options, ranks: int) -> dict[str, Change]:
    """Return the differences between a run with the options ``before`` and one with ``options`` that affect training.

    An option that did not exist before had its default value.
    """
    settings = {
        spec.name: Change(before.get(spec.name, spec.default), getattr(options, spec.name))
        for spec in fields(Options)
        if spec.name not in HARMLESS
    }
    settings["ranks"] = Change(ranks_before, ranks)
    return {name: change for name, change in settings.items() if change.before != change.now}


def table(differences: Mapping[str, Change], notes: Iterable[str]) -> str:
    """Return the changes as a table, one in each line, with notes below it."""
    rows = [("option", "before", "now"), *((name, *map(str, change)) for name, change in differences.items())]
    return "\n".join(f"  {line}" for line in (*aligned(rows, 2), *notes))


def obstacles(differences: Mapping[str, Change]) -> dict[str, str]:
    """Return the changes with which a run cannot resume under any circumstances, each with the reason."""
    reasons = {name: "the weights in the checkpoint have other shapes" for name in differences if name in SHAPES}
    strategies = differences.get("strategy", ())
    if "zero1" in strategies:
        other = next(name for name in strategies if name != "zero1")
        reasons["strategy"] = f"zero1 keeps a shard of the optimizer's state on each rank, {other} all of it on all"
    return reasons


def consequences(differences: Mapping[str, Change], before: Mapping[str, Any], options: Options) -> Iterator[str]:
    """Yield the consequences of resuming with these changes: for data, optimizer state and reproducibility."""
    ranks = differences.get("ranks", Change(1, 1))
    old_batch = int(before.get("batch", 1)) * int(before.get("accumulation", 1)) * ranks.before
    new_batch = options.batch * options.accumulation * ranks.now
    if old_batch != new_batch:
        share = "the global batch" if "ranks" in differences else "each rank's share of the global batch"
        yield (
            f"{share} changes from {old_batch} to {new_batch} examples. The position in the data is counted in steps: "
            f"it is that of a run with {new_batch} from the start, so some examples are skipped or repeated"
        )
    elif BATCH_SETTINGS & differences.keys():
        yield "the size of the global batch and the position in the data stay the same"
    if "seed" in differences:
        yield "the weights are resumed from the checkpoint; the order of the data changes from there on"
    if "ranks" in differences and options.strategy == "zero1":
        yield "the moments of the sharded optimizer begin at zero: their shards fit only the same number of ranks"
    elif "strategy" in differences:
        yield "every rank keeps the optimizer's whole state, which is resumed; sums in another order have other bits"


def refuse_to_mix(options: Options, ranks: int, *, changed: bool) -> None:
    """Raise `DpbookError` if the folder of ``options`` has a run that these options would not continue.

    With ``changed`` the user accepts the changes that are possible.
    """
    folder, step = options.folder, max(steps(options.folder), default=None)
    if step is None:
        return
    if options.steps < step:
        raise DpbookError(
            f"refused: {folder} already has {step:,} steps, more than --steps {options.steps:,}; "
            "--name another begins a new run"
        )
    try:
        about = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        before, ranks_before = dict(about["options"]), int(about["world"])
    except (OSError, ValueError, TypeError, KeyError):
        if changed:
            return
        raise DpbookError(
            f"refused: {folder} holds a run whose options cannot be read (run.json); "
            f"--name another begins a new run, {CONTINUE_FLAG} resumes this one nevertheless"
        ) from None
    differences = changes(before, ranks_before, options, ranks)
    way, fatal = "--name another begins a new run", obstacles(differences)
    if fatal:
        notes = [f"it cannot resume with another {name}: {reason}" for name, reason in fatal.items()]
    elif changed or not differences:
        return
    else:
        notes = list(consequences(differences, before, options))
        way = f"{way}; {CONTINUE_FLAG} resumes this one"
    head = f"refused: {folder} contains a run with other options, at step {step:,}"
    raise DpbookError("\n".join([head, table(differences, notes), way]))


def is_finished(options: Options) -> bool:
    """Return True if the run in the folder of ``options`` has finished all its steps."""
    return steps(options.folder)[-1:] == [options.steps]
