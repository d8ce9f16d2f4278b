"""Rank programs: functions that see only their own rank, run in threads of one process, or recorded as a schedule."""

from dpbook.collectives.programs.comm import Op, check_message, copy_buffers, deliver
from dpbook.collectives.programs.source_line import line_of_caller, told_line
