"""Real processes: rank programs and schedules over torch.distributed.

Importing this loads no torch; the processes that are started do.
"""

from dpbook.distributed.processes import run, start
from dpbook.distributed.sweep import Sweep, sweep

__all__ = ["Sweep", "run", "start", "sweep"]
