"""Begin to watch a rank: what the guard of a launch calls before the script begins."""

import atexit
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

from dpbook.runs.watching.calls import Calls
from dpbook.runs.watching.journal import AUDIT_VARIABLE, Recorder, Wanted
from dpbook.runs.watching.loaders import Loaders
from dpbook.runs.watching.local_gradients import LocalGradients, ShardedGradients
from dpbook.runs.watching.passes import Backwards, Forwards
from dpbook.runs.watching.updates import Updates


def install() -> None:
    """Watch this process until it ends, as the variable asks."""
    asked = json.loads(os.environ[AUDIT_VARIABLE])
    folder = Path(asked.pop("folder"))
    recorder = watch(folder, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), Wanted(**asked))
    atexit.register(recorder.close, "ended")


def watch(folder: Path, rank: int, world: int, wanted: Wanted) -> Recorder:
    """Begin, and return what ends it."""
    recorder = Recorder(folder, rank, wanted)
    gradients = LocalGradients(wanted.replay > 0)
    recorder.later(gradients.forget_hooks)
    ShardedGradients(recorder, gradients)
    loaders = Loaders(recorder)
    forwards = Forwards(recorder, loaders)
    Backwards(recorder, forwards, gradients)
    Calls(recorder)
    Updates(recorder, forwards, gradients, world)
    return recorder


@contextmanager
def watched(folder: Path, wanted: Wanted) -> Iterator[Recorder]:
    """Watch what is done inside, in a process group that there is."""
    recorder = watch(folder, dist.get_rank(), dist.get_world_size(), wanted)
    try:
        yield recorder
    finally:
        recorder.close("ended")
