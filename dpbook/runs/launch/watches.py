"""Watches of the launcher over its ranks, from outside: whether the run hangs, and how much memory the ranks use.

Neither needs the main thread of a rank.
"""

import json
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from dpbook.core import gibibytes, machine
from dpbook.ranks import ProcessTable, all_processes, failure_files, family, process_of

TORCH_TIMEOUTS = (600.0, 1800.0)
"""torch's default timeouts, in seconds, of NCCL and of gloo."""
IDLE_CORE_SHARE = 0.01
"""A process that computes for a smaller share of the time is idle."""
IDLE_BYTES = 2**20
"""A process that reads and writes fewer bytes in the whole time is idle."""
Usage = tuple[float, int]
"""What processes have used so far: seconds of computation, and bytes read and written."""
MEMORY_PREFIX = "memory when last sampled: "
SAMPLING_SHARE = 0.02
"""Share of a core that may be spent on sampling, which takes longer with large processes."""


class HangWatch:
    """Watch for a hang among the ``ranks`` of this machine, which leave their files in ``folder``.

    A run hangs if a rank waits in a collective, and for ``timeout`` seconds two things hold: no rank has called or
    completed a collective, and the ranks that do not wait have neither computed nor read nor written, nor have the
    processes that they started. A rank that writes a large checkpoint while the others wait is therefore no hang,
    however long it takes. Nor is a rank that computes for ever; torch's own timeout ends that.

    A script may give its process group a longer timeout than torch's default, and thereby allow longer waits. A
    ``strict`` watch ignores that.
    """

    def __init__(self, folder: Path, ranks: Iterable[int], timeout: float, *, strict: bool) -> None:
        self._launch, self._ranks, self.timeout, self._strict = folder, list(ranks), timeout, strict
        self._last_busy: tuple[float, dict[int, Usage | None]] = (0.0, {})

    def hangs(self) -> bool:
        """Return True if the run hangs; to be called about once a second."""
        folder = failure_files.last_attempt(self._launch)
        beats = {r: beat for r in self._ranks if _is_present(folder, r) and (beat := _heartbeat(folder, r))}
        waiting = {rank: beat["limit"] for rank, beat in beats.items() if beat["limit"] is not None}
        now = time.time()
        if not waiting or not (self._strict or all(limit in TORCH_TIMEOUTS for limit in waiting.values())):
            return False
        since = float(max(beat["since"] for beat in beats.values()))
        usage = {rank: _usage(folder, rank, beats) for rank in beats.keys() - waiting.keys()}
        begun, before = self._last_busy
        same = begun >= since and before.keys() == usage.keys()
        if not same or any(_is_busy(before[rank], usage[rank], now - begun) for rank in usage):
            self._last_busy = (now, usage)
        return now - max(since, self._last_busy[0]) > self.timeout


def _is_present(folder: Path, rank: int) -> bool:
    """Return False if a rank has finished or its process has ended; one that has not begun is present."""
    try:
        os.kill(process_of(folder, rank) or os.getpid(), 0)
    except ProcessLookupError:
        return False
    return not (folder / failure_files.RESULT_FILE.format(rank)).exists()


def _heartbeat(folder: Path, rank: int) -> dict[str, Any]:
    """Return what a rank reports: the time ``since`` which it makes no progress, and the ``limit`` of its wait.

    ``limit`` is torch's timeout, in seconds, of the collective that it waits in; None if it waits in none, or has done
    so for a few seconds only.
    """
    try:
        return dict(json.loads(failure_files.read_or_empty(folder / failure_files.HEARTBEAT_FILE.format(rank))))
    except ValueError:  # the rank is just writing it
        return {}


def _usage(folder: Path, rank: int, ranks: Iterable[int]) -> Usage | None:
    """Return the usage of a rank and of all processes that it started but other ``ranks``; None if it is unknown."""
    table, process = all_processes(), process_of(folder, rank) or os.getpid()
    for other in ranks:
        started = family(process_of(folder, other) or 0, table)
        if process not in started:
            table = {each: stat for each, stat in table.items() if each not in started}
    seconds = family(process, table)
    return (sum(seconds.values()), sum(map(_bytes, seconds))) if seconds else None


def _bytes(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/io").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("rchar", "wchar")))


def _is_busy(before: Usage | None, after: Usage | None, seconds: float) -> bool:
    if before is None or after is None:
        return True
    return after[0] - before[0] > max(0.05, IDLE_CORE_SHARE * seconds) or after[1] - before[1] > IDLE_BYTES


class RankMemory(NamedTuple):
    """Memory of a rank, in bytes: of its ``main`` process, and of the ``n_others`` processes that it started."""

    main: int
    others: int
    n_others: int

    def __str__(self) -> str:
        others = f" and {gibibytes(self.others)} in {self.n_others} that it started" if self.n_others else ""
        return f"{gibibytes(self.main)}{others}"


class MemoryWatch:
    """Watch over the memory of the ``ranks`` of this machine, which leave their files in ``folder``.

    A rank that the kernel kills for want of memory leaves no error, and afterwards nothing shows how much it used.
    """

    def __init__(self, folder: Path, ranks: Iterable[int]) -> None:
        self._launch, self._ranks, self._oom_kills = folder, list(ranks), _oom_kills()
        self._last_seen: dict[int, RankMemory] = {}
        self._next_sample = 0.0

    def sample(self) -> None:
        """Record the memory of each running rank. Call it about once a second."""
        if time.monotonic() < self._next_sample:
            return
        begun = time.thread_time()
        folder, table = failure_files.last_attempt(self._launch), all_processes()
        processes = {rank: process for rank in self._ranks if (process := process_of(folder, rank))}
        self._last_seen |= {rank: memory for rank, p in processes.items() if (memory := _memory(p, table))}
        self._next_sample = time.monotonic() + (time.thread_time() - begun) / SAMPLING_SHARE

    def summary(self) -> str:
        """Return "memory when last sampled: rank 0 used 3.0 GiB and …; in total 9.1 of 24.0 GiB", or ""."""
        if not self._last_seen:
            return ""
        ranks = "; ".join(f"rank {rank} used {memory}" for rank, memory in sorted(self._last_seen.items()))
        total = gibibytes(sum(memory.main + memory.others for memory in self._last_seen.values()))
        line = f"{MEMORY_PREFIX}{ranks}; in total {total} of {gibibytes(machine.memory())}"
        kills = _oom_kills()
        if kills is None or self._oom_kills is None:
            return line
        killed = kills - self._oom_kills
        return f"{line}; the kernel's OOM killer killed {killed or 'none'} of the machine's processes"


def _memory(process: int, table: ProcessTable) -> RankMemory | None:
    """Return the memory of a rank. A page that several processes share counts once, since each counts a part of it."""
    pattern = r"^Pss:\s+(\d+) kB"  # the proportional set size
    counts = {member: _count(f"/proc/{member}/smaps_rollup", pattern) for member in family(process, table)}
    sizes = {member: 1024 * kibibytes for member, kibibytes in counts.items() if kibibytes is not None}
    main = sizes.pop(process, None)
    return None if main is None else RankMemory(main, sum(sizes.values()), len(sizes))


def _oom_kills() -> int | None:
    """Return how many processes the kernel has killed for want of memory since it started; None if it is unknown."""
    return _count("/proc/vmstat", r"^oom_kill (\d+)$")


def _count(path: str, pattern: str) -> int | None:
    """Return the number in the line of a kernel's file that has the ``pattern``; None if there is none."""
    try:
        match = re.search(pattern, Path(path).read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(match[1]) if match else None
