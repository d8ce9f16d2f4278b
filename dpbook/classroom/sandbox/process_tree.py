"""The processes that one process has started, seen from outside."""

import os
import signal
from collections.abc import Collection
from contextlib import suppress

from dpbook.ranks import all_processes, family


def end_family(process: int) -> None:
    """Kill what a process has started, and what these have, until nothing is left."""
    for _ in range(100):
        rest = [each for each in family(process, all_processes()) if each != process]
        if not rest:
            return
        for each in rest:
            with suppress(OSError):
                os.kill(each, signal.SIGKILL)


def held_and_computed(process: int, known: Collection[int]) -> tuple[int, float]:
    """Of all that ``process`` has started: bytes of memory beyond what each has had from it, and seconds of computation
    but for those ``known``."""
    found = family(process, all_processes())
    had = _own(process)
    seconds = sum(seconds for each, seconds in found.items() if each != process and each not in known)
    return sum(max(0, _own(each) - had) for each in found), seconds


def _own(process: int) -> int:
    """Bytes that a process has mapped to no file."""
    try:
        with open(f"/proc/{process}/statm", "rb") as file:
            resident, shared = map(int, file.read().split()[1:3])
    except (OSError, ValueError):  # it has just ended
        return 0
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
