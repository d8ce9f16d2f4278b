"""Start to record a rank; the guard of a launch calls this before the script begins."""

import atexit
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

from dpbook.runs.watching.calls import Calls
from dpbook.runs.watching.journal import AUDIT_VARIABLE, Recorder, RecordingOptions
from dpbook.runs.watching.loaders import Loaders
from dpbook.runs.watching.local_gradients import LocalGradients, ShardedGradients
from dpbook.runs.watching.passes import Backwards, Forwards
from dpbook.runs.watching.updates import Updates


def install() -> None:
    """Record this process until it ends, with the options in the environment variable."""
    request = json.loads(os.environ[AUDIT_VARIABLE])
    folder = Path(request.pop("folder"))
    recorder = watch(folder, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), RecordingOptions(**request))
    atexit.register(recorder.close, "ended")


def watch(folder: Path, rank: int, world: int, options: RecordingOptions) -> Recorder:
    """Start to record; `Recorder.close` ends it."""
    recorder = Recorder(folder, rank, options)
    gradients = LocalGradients(options.replay > 0)
    recorder.on_close(gradients.forget_hooks)
    ShardedGradients(recorder, gradients)
    loaders = Loaders(recorder)
    forwards = Forwards(recorder, loaders)
    Backwards(recorder, forwards, gradients)
    Calls(recorder)
    Updates(recorder, forwards, gradients, world)
    return recorder


@contextmanager
def watched(folder: Path, options: RecordingOptions) -> Iterator[Recorder]:
    """Record what the block does, in the existing process group."""
    recorder = watch(folder, dist.get_rank(), dist.get_world_size(), options)
    try:
        yield recorder
    finally:
        recorder.close("ended")
