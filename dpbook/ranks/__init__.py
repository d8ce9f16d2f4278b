"""Real processes: rank programs and schedules on ranks that are started here, or by torchrun.

Importing this loads no torch; the processes that are started do.
"""

from typing import TYPE_CHECKING

from dpbook.core import lazy_exports
from dpbook.ranks import failure_files, stacks
from dpbook.ranks.descendants import Table, all_processes, family, process_of, seconds_of
from dpbook.ranks.failure_files import ASKED_FILE
from dpbook.ranks.messages.written import sent
from dpbook.ranks.ports import held_port
from dpbook.ranks.starting import begin, run, shared, start
from dpbook.ranks.sweeps import Sweep, measure, measure_accelerators, published_sweep, sweep, sweep_accelerators

if TYPE_CHECKING:
    from dpbook.ranks.messages.accelerators import own_device, regroup
    from dpbook.ranks.messages.device_clock import Moment, moment, now
    from dpbook.ranks.messages.execution import execute, prepare
    from dpbook.ranks.messages.process_comm import ProcessComm

__getattr__ = lazy_exports(
    __name__, Moment="messages.device_clock", ProcessComm="messages.process_comm", execute="messages.execution",
    moment="messages.device_clock", now="messages.device_clock", own_device="messages.accelerators",
    prepare="messages.execution", regroup="messages.accelerators",
)  # fmt: skip
