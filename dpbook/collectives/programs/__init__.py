"""Rank programs: functions that see only their own rank. They run in threads, or are recorded as a schedule."""

from dpbook.collectives.programs.comm import (
    Op,
    attributed_to_line,
    check_message,
    copy_buffers,
    deliver,
    line_of_caller,
)
from dpbook.collectives.programs.spmd import call_on_ranks, exchange
