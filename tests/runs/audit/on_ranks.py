"""What a rank does with many scripts, one after another, in one process group: run each watched, and go on."""

import contextlib
import io
import os
import random
import runpy
import sys
import time
from pathlib import Path


def run_jobs(rank, jobs):
    """Run each (script, its arguments, folder of its journals, what is wanted); return the CPU seconds that all took.

    Raises what a script raises.
    """
    import torch
    import torch.distributed as dist

    from dpbook.runs.watching.installation import watched
    from dpbook.runs.watching.journal import Wanted

    init, destroy, arguments = dist.init_process_group, dist.destroy_process_group, sys.argv
    dist.init_process_group = dist.destroy_process_group = lambda *args, **kwargs: None  # there is one
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(dist.get_world_size()), "LOCAL_RANK": str(rank)}
    begun = time.process_time()
    try:
        for script, argv, folder, wanted in jobs:
            torch.manual_seed(99)
            random.seed(99)
            sys.argv = [script, *argv]
            quietly = contextlib.redirect_stdout(io.StringIO())
            with watched(Path(folder), Wanted(**wanted)), quietly, contextlib.suppress(SystemExit):
                runpy.run_path(script, run_name="__main__")
            dist.barrier()
    finally:
        dist.init_process_group, dist.destroy_process_group, sys.argv = init, destroy, arguments
    return time.process_time() - begun
