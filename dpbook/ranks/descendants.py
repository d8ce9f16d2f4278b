"""The processes of a rank, its own and all that it started, seen from outside."""

import os
from pathlib import Path

from dpbook.ranks.failure_files import PROCESS, text_of

_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def process_of(folder: Path, rank: int) -> int | None:
    """The id of the process of a rank that leaves word in ``folder``; None where it has not begun, or not here."""
    return int(text_of(folder / PROCESS.format(rank)) or 0) or None


Table = dict[int, tuple[int, int, float]]
"""Of each process of this machine its parent, its session, and the seconds for which it has computed."""


def all_processes() -> Table:
    """Those of this machine; empty where it does not say."""
    try:
        stats = [_stat(int(entry)) for entry in os.listdir("/proc") if entry.isdigit()]
    except OSError:
        return {}
    return {stat[0]: stat[1:] for stat in stats if stat}


def family(process: int, table: Table) -> dict[int, float]:
    """Seconds of computation of a process's session, and of what left that for one of its own; empty where unknown."""
    if process not in table:
        return {}
    session, rest = table[process][1], dict(table)
    own: dict[int, float] = {}
    while found := {p: stat[2] for p, stat in rest.items() if stat[1] == session or stat[0] in own}:
        own |= found
        rest = {p: stat for p, stat in rest.items() if p not in own}
    return own


def seconds_of(process: int) -> float:
    """That a process has computed; 0 where it is gone."""
    stat = _stat(process)
    return stat[3] if stat else 0.0


def _stat(process: int) -> tuple[int, int, int, float] | None:
    """Id, parent, session and seconds of computation of a process."""
    fields = _fields(process)
    if not fields:
        return None
    return process, int(fields[1]), int(fields[3]), (int(fields[11]) + int(fields[12])) / _TICKS


def _fields(process: int) -> list[bytes]:
    """What the kernel says of a process, from its state on (proc_pid_stat(5)); empty where it is gone."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:  # a Path would cost more than the reading
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []
