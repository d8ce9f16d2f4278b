"""Real processes: rank programs and schedules on ranks that are started here, or by torchrun.

Importing this loads no torch; the processes that are started do.
"""

from typing import TYPE_CHECKING

from dpbook.core import lazily
from dpbook.ranks.descendants import all_processes, family, seconds_of, waits
from dpbook.ranks.dumps import Dumps, read_dumps
from dpbook.ranks.findings import Finding, blind, preflight
from dpbook.ranks.held import HELD
from dpbook.ranks.launch_command import Launch, default_processes
from dpbook.ranks.launching import Ended, launch
from dpbook.ranks.lifetime import PARENT, end_with_parent, leave, tell_and_leave
from dpbook.ranks.peers import check_peers
from dpbook.ranks.ports import held_port
from dpbook.ranks.postmortem import ASKED_FILE
from dpbook.ranks.processes import run, shared, start
from dpbook.ranks.starter import Starter
from dpbook.ranks.sweeps import Sweep, measure, measure_accelerators, published_sweep, sweep, sweep_accelerators
from dpbook.ranks.written import sent

if TYPE_CHECKING:
    from dpbook.ranks.accelerators import own_device, regroup
    from dpbook.ranks.device_clock import Moment, moment, now
    from dpbook.ranks.execution import execute, prepare
    from dpbook.ranks.process_comm import ProcessComm

__getattr__ = lazily(
    __name__, Moment="device_clock", ProcessComm="process_comm", execute="execution", moment="device_clock",
    now="device_clock", own_device="accelerators", prepare="execution", regroup="accelerators",
)  # fmt: skip
