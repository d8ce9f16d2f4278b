"""Limits on the time and the memory of an answer's processes, as the judge enforces them from outside.

A call may use so many seconds of CPU time, and several times as many on the clock: it may wait, and the machine may be
busy. Processes that exceed a limit are killed.
"""

import math
import time

from dpbook.classroom.sandbox.servers import HELD, held_and_computed
from dpbook.classroom.tasks.answer import CHECK_SECONDS
from dpbook.classroom.tasks.call_limit import Limit
from dpbook.ranks import seconds_of

PATIENCE = 10.0
"""Seconds on the clock for each second of CPU time that a call may use. The judge works for the answer in them, too."""
HURRIED_PATIENCE = 5.0
"""The same for an answer that is judged again, with all its time, if it is late."""
LOOK = 0.02
"""Seconds between checks of the time; with many ranks a check costs as much as a message."""
LEAST = 0.001
"""Time limit in seconds of a call in a check that has used up its time."""
LOOK_AROUND = 0.25
"""Seconds between checks of all started processes and their memory."""


class TimeLimitExceeded(Exception):
    """A call exceeded its time limit."""


class MemoryLimitExceeded(Exception):
    """The processes of an answer exceed their memory limit."""


class Clock(Limit):
    """The time of one answer, call by call. ``stop``: what has ended the call, if anything; ``spent``: its limit.

    A call may take ``patience`` seconds on the clock for each of CPU time. ``keepers`` have started the ``known``
    processes, and whatever they start.
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self.known: list[int] = []
        self.keepers: list[int] = []
        self.begin_check(CHECK_SECONDS)

    def begin_check(self, seconds: float) -> None:
        """Begin a check, all of whose calls may use ``seconds`` of CPU time."""
        self.whole = self._left = seconds
        self._left_on_clock = self._patience * seconds

    def begin_call(self, seconds: float, loading: bool = False) -> None:
        """Begin a call, which may use ``seconds`` on each rank, and in all no more than the check has left.

        ``loading`` takes nothing of that.
        """
        on_clock = self._patience * seconds
        self._left_now, left_on_clock = (math.inf, on_clock) if loading else (self._left, self._left_on_clock)
        self.spent = f"{seconds:g} s" if seconds <= self._left_now else f"{self.whole:g} s in this check"
        self.stop: Exception | None = None
        self._allowed, self._begun = max(min(seconds, self._left_now), LEAST), time.monotonic()
        self._until = self._begun + max(min(on_clock, left_on_clock), LEAST)
        self._next_look = self._looked_around = self._begun
        self._before = {process: seconds_of(process) for process in self.known}

    def has_begun(self, process: int) -> None:
        """Exclude the CPU time that a process has used so far from the current call."""
        self._before[process] = seconds_of(process)

    def give_more(self) -> None:
        """Let the call under way take `PATIENCE` seconds more on the clock."""
        self._until = time.monotonic() + PATIENCE

    def end_call(self) -> None:
        """End the call; the check has less time left."""
        self._left -= max(0.0, sum(self._computed()))
        self._left_on_clock -= time.monotonic() - self._begun

    def forget(self) -> None:
        """Forget all processes, after they have been ended."""
        self.known, self.keepers = [], []

    def look(self) -> None:
        """Raise `TimeLimitExceeded` or `MemoryLimitExceeded` where the call has exceeded a limit."""
        now = time.monotonic()
        if now >= self._next_look and self.stop is None:
            self._next_look = now + LOOK
            self.stop = self._exceeded(now)
        if self.stop is not None:
            raise self.stop

    def _exceeded(self, now: float) -> Exception | None:
        computed = self._computed() if now > self._begun + self._allowed else []
        if now > self._until or max(computed, default=0.0) > self._allowed or sum(computed) > self._left_now:
            return TimeLimitExceeded()
        if now > self._looked_around + LOOK_AROUND:
            self._looked_around = now
            found = [held_and_computed(keeper, self.known) for keeper in self.keepers]
            if sum(held for held, _ in found) > HELD:
                return MemoryLimitExceeded("more memory than the limit for an answer")
            if sum(seconds for _, seconds in found) > self._allowed:  # of processes that the answer has started
                return TimeLimitExceeded()
        return None

    def _computed(self) -> list[float]:
        """Return the CPU seconds in this call, of each process."""
        return [seconds_of(process) - self._before.get(process, 0.0) for process in self.known]
