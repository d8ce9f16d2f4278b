"""How long threads were ready to run while others had the machine, and the time that a process had without it.

Linux counts it (sched-stats in its documentation); elsewhere it is 0.
"""

import os
import threading
import time

from dpbook.core import machine

LEAST = 0.1
"""Of the time on the clock this share counts in any case: however busy the machine is, an end comes."""


def delays_of(process: int) -> dict[int, float]:
    """Seconds for each thread of a process; 0 where the kernel does not count."""
    return {thread: delay_of_thread(process, thread) for thread in _threads_of(process)}


def delay_of_thread(process: int, thread: int) -> float:
    try:
        with open(f"/proc/{process}/task/{thread}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _threads_of(process: int) -> list[int]:
    try:
        return list(map(int, os.listdir(f"/proc/{process}/task")))
    except OSError:  # it has just ended
        return []


class OwnTime:
    """Seconds on the clock from when this was made, without those in which threads of this process were ready to run.

    Of the thread that works and those that it starts; of other threads, from when they were first looked at. As threads
    may keep one another from running, at least what this process computes counts, as if all cores had shared that.
    """

    def __init__(self) -> None:
        self._worker = threading.get_native_id()
        self._begun = self._then = time.monotonic()
        self._own, self._computed = 0.0, time.process_time()
        self._there = set(_threads_of(os.getpid()))
        self._delays = {self._worker: delay_of_thread(os.getpid(), self._worker)}

    def look(self) -> float:
        """The seconds until now, told by a thread that does nothing else."""
        delays = delays_of(os.getpid())
        delays.pop(threading.get_native_id(), None)
        return self._add(delays)

    def end(self) -> float:
        """The seconds until now, told by the thread that works, when no other looks any more."""
        return self._add({self._worker: delay_of_thread(os.getpid(), self._worker)})

    def _add(self, delays: dict[int, float]) -> float:
        now, computed = time.monotonic(), time.process_time()
        # A thread that has ended since it was listed has no delay any more.
        hindered = sum(max(0.0, each - self._before(thread, each)) for thread, each in delays.items())
        self._own += max(now - self._then - hindered, (computed - self._computed) / machine.cores(), 0.0)
        self._delays |= delays
        self._then, self._computed = now, computed
        return max(self._own, LEAST * (now - self._begun))

    def _before(self, thread: int, now: float) -> float:
        return self._delays.get(thread, now if thread in self._there else 0.0)
