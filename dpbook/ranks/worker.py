"""The main function of each rank of `start`: it joins a process group, calls one function, and writes down its end."""

import faulthandler
import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist

from dpbook.ranks.failure_files import RESULT_FILE, STACK_FILE, STORE_FILE, TASK_FILE, TIMEOUT_FILE, write_error


def main(folder: Path) -> int:
    """Run the task in ``folder``; return the exit status."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // world))
    try:
        task = cloudpickle.loads((folder / TASK_FILE).read_bytes())
        # The watchdog below acts before gloo's own timeout: it names the line of every rank, not only of waiting ones.
        gloo_timeout = timedelta(seconds=task["timeout"] + 30)
        store = dist.FileStore(str(folder / STORE_FILE), world)  # a file, not a port that another process may take
        store.set_timeout(gloo_timeout)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=gloo_timeout)
        # gloo lets a rank continue as soon as its own connections are established. A rank that then ends at once closes
        # them, and a rank that is still connecting fails: one start in a hundred did without this barrier.
        dist.barrier()
        # Open until the process ends. A rank that times out may be ended meanwhile, because another did: two files.
        ended = open(folder / STACK_FILE.format(rank), "w")  # noqa: SIM115
        late = open(folder / TIMEOUT_FILE.format(rank), "w")  # noqa: SIM115
        faulthandler.register(signal.SIGTERM, file=ended, chain=True)
        faulthandler.dump_traceback_later(task["timeout"], exit=True, file=late)
        _run(folder, rank, task)
        faulthandler.cancel_dump_traceback_later()
        if dist.is_initialized():
            dist.destroy_process_group()
    except BaseException as error:  # sys.exit in a program is a failure too
        write_error(folder, rank, error, error.__traceback__)  # first of all: errors of the others are consequences
        return 1  # without destroying the group: that may wait for the others
    return 0


def _run(folder: Path, rank: int, task: dict[str, Any]) -> None:
    function, args = cloudpickle.loads(task["call"])
    result = function(*args[rank])
    partial = folder / f"{RESULT_FILE.format(rank)}.partial"
    partial.write_bytes(cloudpickle.dumps(result))
    partial.rename(folder / RESULT_FILE.format(rank))
