"""How much of this machine's memory its ranks held when they were last seen, with their loader workers.

A rank that the system ends for want of memory leaves no error, and afterwards nothing shows what it had held.
"""

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dpbook.core import gibibytes, machine
from dpbook.ranks import Table, all_processes, failure_files, family, process_of

HELD = "memory when last seen: "
"""How the line begins."""
SHARE = 0.02
"""Of a core may be spent on looking, which takes longer with large processes."""


@dataclass(frozen=True)
class Held:
    """What a rank held: bytes in its own process, and in the ``others`` that it had started."""

    own: int
    rest: int
    others: int

    def __str__(self) -> str:
        rest = f" and {gibibytes(self.rest)} in {self.others} that it had started" if self.others else ""
        return f"{gibibytes(self.own)}{rest}"


class MemoryWatch:
    """Looks at the ``ranks`` of this machine, which leave word in ``folder``; to be asked every second or so."""

    def __init__(self, folder: Path, ranks: Iterable[int]) -> None:
        self._launch, self._ranks, self._kills = folder, list(ranks), _kills()
        self._held: dict[int, Held] = {}
        self._next = 0.0

    def look(self) -> None:
        """Note what each rank holds that is still there."""
        if time.monotonic() < self._next:
            return
        begun = time.thread_time()
        folder, table = failure_files.last_attempt(self._launch), all_processes()
        processes = {rank: process for rank in self._ranks if (process := process_of(folder, rank))}
        self._held |= {rank: held for rank, process in processes.items() if (held := _held(process, table))}
        self._next = time.monotonic() + (time.thread_time() - begun) / SHARE

    def told(self) -> str:
        """ "memory: rank 0 held 3.0 GiB and 6.1 GiB in 4 that it had started; together 9.1 of 24.0 GiB", or ""."""
        if not self._held:
            return ""
        ranks = "; ".join(f"rank {rank} held {held}" for rank, held in sorted(self._held.items()))
        together = gibibytes(sum(held.own + held.rest for held in self._held.values()))
        told = f"{HELD}{ranks}; together {together} of {gibibytes(machine.memory())}"
        kills = _kills()
        if kills is None or self._kills is None:
            return told
        return f"{told}; processes ended by the kernel for want of memory meanwhile: {kills - self._kills}"


def _held(process: int, table: Table) -> Held | None:
    """A page that several processes share is counted once: each of them holds a part of it."""
    sizes = {one: size for one in family(process, table) if (size := _size(one)) is not None}
    own = sizes.pop(process, None)
    return None if own is None else Held(own, sum(sizes.values()), len(sizes))


def _size(process: int) -> int | None:
    try:
        found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{process}/smaps_rollup").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def _kills() -> int | None:
    """How many processes the kernel has ended for want of memory since the start; None where it does not say."""
    try:
        found = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None
