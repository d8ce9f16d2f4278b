"""Start to watch a rank; the guard of a launch calls `install` before the script begins."""

import atexit
import functools
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist

from dpbook.core import InvalidArgument, rebind_names
from dpbook.runs.watching.hooks import TrainingHooks
from dpbook.runs.watching.journal import REQUEST_VARIABLE, MomentOptions, Recorder, RecordingOptions, read_journal


def install(rank: int, world: int, *, anew: bool = True) -> None:
    """Watch this process until it ends, as the request in the environment variable says.

    Unless ``anew`` this is a process of the script, which has imported names already; it is not watched if an earlier
    process of its rank has recorded an update, which would be lost.
    """
    rebind_names((after, before) for each in _installed for before, after in each.replaced)
    stop_watching()  # what watches the process from which this one was forked
    request = json.loads(os.environ[REQUEST_VARIABLE])
    folder = Path(request["folder"])
    if not anew and any(event["kind"] in ("step", "update") for event in read_journal(folder, rank)):
        return
    start = record_moments if request["moments"] else functools.partial(record_contents, existing=not anew)
    _installed.append(start(folder, rank, world, request["options"]))
    if not anew:
        rebind_names(_installed[-1].replaced)
    atexit.register(stop_watching)


_installed: list[Recorder] = []
_RANK_AND_WORLD = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("PMI_RANK", "PMI_SIZE"),  # MPICH and Intel MPI
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
)


def stop_watching() -> None:
    """Stop what `install` has begun, at the end of the process or before; nothing happens if nothing is watched."""
    while _installed:
        _installed.pop().close()


def record_contents(
    folder: Path, rank: int, world: int, options: Mapping[str, Any], *, existing: bool = False
) -> Recorder:
    """Record what an audit compares: hashes, losses, calls. ``options`` are those of `RecordingOptions`.

    ``existing``: the script has begun, and may have created optimizers.
    """
    from dpbook.runs.watching.calls import Calls, GatheredCopies
    from dpbook.runs.watching.local_gradients import LocalGradients
    from dpbook.runs.watching.passes import PassRecorder
    from dpbook.runs.watching.updates import Updates

    recorder = Recorder(folder, rank, RecordingOptions(**options))
    hooks, copies, gradients = TrainingHooks(recorder), GatheredCopies(recorder), LocalGradients(recorder)
    PassRecorder(recorder, hooks, gradients, copies)
    Calls(recorder, copies)
    Updates(recorder, hooks, gradients, world)
    if existing:
        hooks.watch_existing()
    return recorder


def record_moments(folder: Path, rank: int, world: int, options: Mapping[str, Any]) -> Recorder:
    """Record what a forecast and a report need: the moments of each update. ``options``: see `MomentOptions`."""
    from dpbook.runs.watching.update_marks import UpdateMarks

    chosen = MomentOptions(**options)
    recorder = Recorder(folder, rank, RecordingOptions(chosen.updates))
    UpdateMarks(recorder, world, chosen)
    return recorder


@contextmanager
def recording(folder: Path | str, *, audit: bool = False, **options: Any) -> Iterator[Recorder]:
    """Record what the block does in this rank, whoever has started it: for a report, or for an ``audit``.

    Rank and number of ranks are those of the process group, or of the environment where there is none yet. ``options``
    are fields of `MomentOptions`, for an audit of `RecordingOptions`. Afterwards ``dpbook report FOLDER`` writes a
    report, and ``dpbook audit --read FOLDER`` judges an audit's recording. Raises `InvalidArgument` where the ranks are
    not known.
    """
    known = [(os.environ[rank], os.environ[world]) for rank, world in _RANK_AND_WORLD if {rank, world} <= {*os.environ}]
    if dist.is_initialized():
        rank, world = dist.get_rank(), dist.get_world_size()
    elif known:
        rank, world = map(int, known[0])
    else:
        expected = "set by what starts the ranks, such as torchrun or srun"
        raise InvalidArgument("RANK and WORLD_SIZE", "not set", expected)
    start = functools.partial(record_contents, existing=True) if audit else record_moments
    recorder = start(Path(folder), rank, world, options)
    try:
        yield recorder
    finally:
        recorder.close()
