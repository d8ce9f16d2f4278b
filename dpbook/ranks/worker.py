"""What each process started by `processes.start` runs: one function, in a process group, with its fate written down."""

import faulthandler
import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist

from dpbook.ranks.failure_files import MEETING, RESULT, STACK, TASK, write_error


def main(folder: Path) -> int:
    """Run the task in ``folder``; return the exit status."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // world))
    try:
        task = cloudpickle.loads((folder / TASK).read_bytes())
        # The watchdog below speaks before gloo's own time-out: it names the line of every rank, not only who waited.
        patience = timedelta(seconds=task["timeout"] + 30)
        store = dist.FileStore(str(folder / MEETING), world)  # a file of the run's own: no port that others may take
        store.set_timeout(patience)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=patience)
        # gloo lets a rank go on as soon as its own connections stand. One that ends at once closes them, and a rank
        # that still connects fails because of it.
        dist.barrier()
        # Stays open until the process ends: a rank that is stuck, or ended because another is, writes where it was.
        stack = open(folder / STACK.format(rank), "w")  # noqa: SIM115
        faulthandler.register(signal.SIGTERM, file=stack, chain=True)
        faulthandler.dump_traceback_later(task["timeout"], exit=True, file=stack)
        _run(folder, rank, task)
        faulthandler.cancel_dump_traceback_later()
        if dist.is_initialized():
            dist.destroy_process_group()
    except BaseException as error:  # sys.exit in a program is a failure too
        write_error(folder, rank, error, error.__traceback__)  # first: what the others then see is a consequence
        return 1  # without destroying the group: that may wait for the others
    return 0


def _run(folder: Path, rank: int, task: dict[str, Any]) -> None:
    function, args = cloudpickle.loads(task["call"])
    result = function(*args[rank])
    partial = folder / f"{RESULT.format(rank)}.partial"
    partial.write_bytes(cloudpickle.dumps(result))
    partial.rename(folder / RESULT.format(rank))
