"""Real processes: rank programs and schedules on ranks that are started here, or by torchrun.

Importing this loads no torch; the processes that are started do.
"""

from typing import TYPE_CHECKING

from dpbook.core import lazily
from dpbook.ranks.descendants import all_processes, family, seconds_of, waits
from dpbook.ranks.launches.held import HELD
from dpbook.ranks.launches.launch_command import Launch, default_processes
from dpbook.ranks.launches.launching import Ended, launch
from dpbook.ranks.lifetime import PARENT, end_with_parent, leave, tell_and_leave
from dpbook.ranks.messages.written import sent
from dpbook.ranks.ports import held_port
from dpbook.ranks.postmortem import ASKED_FILE
from dpbook.ranks.readiness.findings import Finding, blind, preflight
from dpbook.ranks.readiness.peers import check_peers
from dpbook.ranks.starting.processes import run, shared, start
from dpbook.ranks.starting.starter import Starter
from dpbook.ranks.sweeps import Sweep, measure, measure_accelerators, published_sweep, sweep, sweep_accelerators
from dpbook.ranks.verdicts.dumps import Dumps, read_dumps

if TYPE_CHECKING:
    from dpbook.ranks.messages.accelerators import own_device, regroup
    from dpbook.ranks.messages.device_clock import Moment, moment, now
    from dpbook.ranks.messages.execution import execute, prepare
    from dpbook.ranks.messages.process_comm import ProcessComm

__getattr__ = lazily(
    __name__, Moment="messages.device_clock", ProcessComm="messages.process_comm", execute="messages.execution",
    moment="messages.device_clock", now="messages.device_clock", own_device="messages.accelerators",
    prepare="messages.execution", regroup="messages.accelerators",
)  # fmt: skip
