"""What each process started by `processes.start` runs: one function, in a process group, with its fate written down."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist

from dpbook.distributed.lifetime import end_with_parent, leave
from dpbook.distributed.traces import RESULT, STACK, TASK, write_error


def main(folder: Path) -> int:
    """Run the task in ``folder``; return the exit status."""
    end_with_parent()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // world))
    try:
        task = cloudpickle.loads((folder / TASK).read_bytes())
        sys.path[:] = task["path"]
        # The watchdog below speaks before gloo's own time-out: it names the line of every rank, not only who waited.
        dist.init_process_group("gloo", timeout=timedelta(seconds=task["timeout"] + 30))
        # Stays open until the process ends: a rank that is stuck, or ended because another is, writes where it was.
        stack = open(folder / STACK.format(rank), "w")  # noqa: SIM115
        faulthandler.register(signal.SIGTERM, file=stack, chain=True)
        faulthandler.dump_traceback_later(task["timeout"], exit=True, file=stack)
        _run(folder, rank, task)
        faulthandler.cancel_dump_traceback_later()
    except BaseException as error:  # sys.exit in a program is a failure too
        write_error(folder, rank, error, error.__traceback__)  # first: what the others then see is a consequence
        return 1
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return 0


def _run(folder: Path, rank: int, task: dict[str, Any]) -> None:
    function, args = cloudpickle.loads(task["call"])
    result = function(*args[rank])
    partial = folder / f"{RESULT.format(rank)}.partial"
    partial.write_bytes(cloudpickle.dumps(result))
    partial.rename(folder / RESULT.format(rank))


if __name__ == "__main__":
    leave(main(Path(sys.argv[1])))
