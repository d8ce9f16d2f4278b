"""Real processes: rank programs and schedules on ranks that are started here, or by torchrun.

Importing this loads no torch; the processes that are started do.
"""

from typing import TYPE_CHECKING

from dpbook.core import lazy_exports
from dpbook.ranks import failure_files, stacks
from dpbook.ranks.failure_files import PREEMPTION_VARIABLE
from dpbook.ranks.process_stats import ProcessTable, all_processes, family, process_of, seconds_of, sent
from dpbook.ranks.starting import begin, held_port, run, shared, start
from dpbook.ranks.sweeps import Sweep, measure, measure_accelerators, published_sweep, sweep, sweep_accelerators

if TYPE_CHECKING:
    from dpbook.ranks.devices import (
        DeviceMoment,
        device_name,
        join_accelerator,
        join_group,
        moment,
        now,
        own_device,
        peak_memory,
        regroup,
    )
    from dpbook.ranks.messages import ProcessComm, execute, prepare

__getattr__ = lazy_exports(
    __name__, DeviceMoment="devices", ProcessComm="messages", device_name="devices", execute="messages",
    join_accelerator="devices", join_group="devices", moment="devices", now="devices", own_device="devices",
    peak_memory="devices", prepare="messages", regroup="devices",
)  # fmt: skip
