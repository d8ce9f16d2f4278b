"""The processes that one process has started, seen from outside."""

import os
import signal
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


def held(process: int) -> int:
    """Bytes of memory of a process and of all that it started, what they share counted once for each."""
    held = 0
    for each in family(process, all_processes()):
        with suppress(OSError, ValueError, IndexError), open(f"/proc/{each}/statm", "rb") as file:
            _, resident, shared, *_ = map(int, file.read().split())
            held += (resident - shared) * 4096
    return held
