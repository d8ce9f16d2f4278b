"""Run a module or a script in a rank, as `python` would:

    in_rank.py [--sim] [--on-device] [--stop-after N] [-m] NAME ARGUMENTS

With --sim the rank has a stand-in accelerator of its own. With --on-device it fails if a script that has ended well put
nothing on its accelerator. With --stop-after it gets a SIGTERM after so many updates of its first optimizer.
"""

import os
import runpy
import signal
import sys

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook


def fail_without_accelerator():
    """Let `destroy_process_group`, at the end of a script, raise if nothing was on the accelerator."""
    destroy = dist.destroy_process_group

    def call():
        if not torch.accelerator.max_memory_allocated():
            raise RuntimeError("the script has put nothing on the accelerator")
        destroy()

    dist.destroy_process_group = call


def stop_after(updates):
    done = []

    def count(optimizer, args, kwargs):
        done.append(optimizer)
        if len(done) == updates:
            os.kill(os.getpid(), signal.SIGTERM)

    register_optimizer_step_post_hook(count)


if __name__ == "__main__":
    del sys.argv[0]
    if sys.argv[0] == "--sim":
        from dpbook.book import sim

        del sys.argv[0]
        sim.install()
    on_device = sys.argv[0] == "--on-device"
    if on_device:
        fail_without_accelerator()
        del sys.argv[0]
    if sys.argv[0] == "--stop-after":
        stop_after(int(sys.argv[1]))
        del sys.argv[:2]
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
