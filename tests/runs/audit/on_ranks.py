"""Run many recorded scripts on a rank, one after another, in one process group."""

import contextlib
import gc
import io
import os
import random
import runpy
import sys
import time


def run_jobs(rank, jobs):
    """Run jobs of (script, arguments, folder of the journals, fields of `RecordingOptions`); return their CPU seconds.

    An exception of a script is raised.
    """
    import torch
    import torch.distributed as dist

    from dpbook.runs.watching.installation import recording

    init, destroy, arguments = dist.init_process_group, dist.destroy_process_group, sys.argv
    dist.init_process_group = dist.destroy_process_group = lambda *args, **kwargs: None  # the group exists already
    variables = {"RANK": str(rank), "WORLD_SIZE": str(dist.get_world_size()), "LOCAL_RANK": str(rank)}
    begun = time.process_time()
    try:
        for script, argv, folder, wanted in jobs:
            os.environ |= variables  # Lightning takes them away when it has trained
            torch.manual_seed(99)
            random.seed(99)
            sys.argv = [script, *argv]
            gc.freeze()  # a recording searches the process's objects: those from before this script are left out
            quietly = contextlib.redirect_stdout(io.StringIO())
            with recording(folder, audit=True, **wanted), quietly, contextlib.suppress(SystemExit):
                runpy.run_path(script, run_name="__main__")
            _forget_frameworks()
            dist.barrier()
    finally:
        dist.init_process_group, dist.destroy_process_group, sys.argv = init, destroy, arguments
    return time.process_time() - begun


def _forget_frameworks():
    """Drop what Accelerate keeps for the process, so that the next script begins as in a new one."""
    state = sys.modules.get("accelerate.state")
    if state:
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()
