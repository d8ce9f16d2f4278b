"""What a rank does with many scripts, one after another, in one process group: run each watched, and go on."""

import contextlib
import io
import os
import random
import runpy
import sys
import time
import traceback
from pathlib import Path


def run_jobs(rank, jobs):
    """Run each (script, its arguments, folder of its journals, what is wanted); return what they raised, by folder,
    and the CPU seconds that all took.
    """
    import torch
    import torch.distributed as dist

    from dpbook.audit.recording.installation import watched
    from dpbook.audit.recording.recorder import Wanted

    init, arguments, raised = dist.init_process_group, sys.argv, {}
    dist.init_process_group = lambda *args, **kwargs: None  # there is one
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(dist.get_world_size()), "LOCAL_RANK": str(rank)}
    begun = time.process_time()
    try:
        for script, argv, folder, wanted in jobs:
            torch.manual_seed(99)
            random.seed(99)
            sys.argv = [script, *argv]
            with watched(Path(folder), Wanted(**wanted)), contextlib.redirect_stdout(io.StringIO()):
                try:
                    runpy.run_path(script, run_name="__main__")
                except SystemExit:
                    pass
                except Exception:
                    raised[folder] = traceback.format_exc()
            dist.barrier()
    finally:
        dist.init_process_group, sys.argv = init, arguments
    return raised, time.process_time() - begun
