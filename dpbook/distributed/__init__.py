"""Real processes: rank programs and schedules over torch.distributed.

Importing this loads no torch; the processes that are started do.
"""

from dpbook.distributed.processes import run, start

__all__ = ["run", "start"]
