"""What a rank does with many scripts, one after another, in one process group: run each watched, and go on."""

import contextlib
import io
import os
import random
import runpy
import traceback
from pathlib import Path


def run_scripts(rank, folder, names, updates, replay):
    """Run ``folder``/name/train.py of each name, watched into that folder; returns what they raised."""
    import torch
    import torch.distributed as dist

    from dpbook.audit.recording.installation import watched
    from dpbook.audit.recording.recorder import Wanted

    init, raised = dist.init_process_group, {}
    dist.init_process_group = lambda *args, **kwargs: None  # there is one
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(dist.get_world_size()), "LOCAL_RANK": str(rank)}
    try:
        for name in names:
            home = Path(folder) / name
            torch.manual_seed(99)
            random.seed(99)
            with watched(home, Wanted(updates=updates, replay=replay)), contextlib.redirect_stdout(io.StringIO()):
                try:
                    runpy.run_path(str(home / "train.py"), run_name="__main__")
                except SystemExit:
                    pass
                except Exception:
                    raised[name] = traceback.format_exc()
            dist.barrier()
    finally:
        dist.init_process_group = init
    return raised
