"""Statistics of processes that Linux keeps: computation and families of processes, and the bytes that a rank sends."""

import os
from collections.abc import Callable
from math import nan
from pathlib import Path

from dpbook.ranks.failure_files import PROCESS_ID_FILE, read_or_empty

IO_COUNTERS = Path("/proc/self/io")
"""Linux's count of the bytes that a process has written, to its sockets too."""
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100

ProcessTable = dict[int, tuple[int, int, float]]
"""For each process of this machine its parent, its session, and its seconds of computation."""


def process_of(folder: Path, rank: int) -> int | None:
    """Return the process id that a rank wrote into ``folder``; None if it has not begun, or runs on another machine."""
    return int(read_or_empty(folder / PROCESS_ID_FILE.format(rank)) or 0) or None


def all_processes() -> ProcessTable:
    """Return the processes of this machine; an empty table if the system does not list them."""
    try:
        stats = [_stat(int(entry)) for entry in os.listdir("/proc") if entry.isdigit()]
    except OSError:
        return {}
    return {stat[0]: stat[1:] for stat in stats if stat}


def family(process: int, table: ProcessTable) -> dict[int, float]:
    """Return the seconds of computation of ``process``, of the session that it may lead, and of their descendants.

    A descendant may have left for a session of its own. Returns an empty dictionary if ``process`` is not in the table.
    """
    if process not in table:
        return {}
    rest = dict(table)
    members: dict[int, float] = {}
    while more := {p: stat[2] for p, stat in rest.items() if process in (p, stat[1]) or stat[0] in members}:
        members |= more
        rest = {p: stat for p, stat in rest.items() if p not in members}
    return members


def seconds_of(process: int) -> float:
    """Return the seconds for which a process has computed; 0 if it is gone."""
    stat = _stat(process)
    return stat[3] if stat else 0.0


def _stat(process: int) -> tuple[int, int, int, float] | None:
    """Return id, parent, session and seconds of computation of a process, from proc_pid_stat(5); None if it is gone."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:  # opening a Path would cost more than the reading
            fields = file.read().rpartition(b")")[2].split()  # from the state of the process on
    except OSError:
        return None
    return process, int(fields[1]), int(fields[3]), (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def sent(step: Callable[[], object]) -> float:
    """Return the number of bytes that this process writes while ``step`` runs; nan if the system does not count them.

    In a rank that prints nothing, these are the bytes that it sends.
    """
    before = _written()
    step()
    return _written() - before


def _written() -> float:
    if not IO_COUNTERS.exists():
        return nan
    lines = (line.split(": ") for line in IO_COUNTERS.read_text().splitlines())
    return next(float(count) for name, count in lines if name == "wchar")
