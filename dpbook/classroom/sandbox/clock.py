"""How long an answer may take: seconds in which its processes compute, and some times as many on the clock.

Those do not count in which it could have run, and others had the machine.
"""

import math
import time

from dpbook.classroom.sandbox.judge_work import Served
from dpbook.classroom.sandbox.process_tree import held_and_computed
from dpbook.classroom.sandbox.servers import HELD
from dpbook.classroom.tasks.answer import CHECK_SECONDS
from dpbook.classroom.tasks.cpu_wait import delays_of
from dpbook.ranks import seconds_of, waits

PATIENCE = 10.0
"""How many times as long as it may compute a call may take in all: it may wait, and the machine may be busy."""
LOOK = 0.02
"""Seconds between looks at the time: one costs as much as a message does, where ranks are many."""
LEAST = 0.001
"""Seconds of a call in a check that has none left."""
LOOK_AROUND = 0.25
"""Seconds between looks at all that was started, and at how much memory is held."""


class TimeUp(Exception):
    """A call has not ended in time."""


class TooMuch(Exception):
    """The processes of an answer hold more memory than they may."""


class Clock:
    """The time of one answer, call by call. ``stop``: what has ended the call, if anything; ``spent``: its limit.

    ``keeper`` has started the ``known`` processes, and whatever they start; ``starting`` are on their way.
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        """With ``patience`` times as long on the clock."""
        self._patience = patience
        self.known: list[int] = []
        self.keeper: int | None = None
        self.starting = 0
        self.begin_check(CHECK_SECONDS)

    def begin_check(self, seconds: float) -> None:
        """All calls from now on may compute for so long."""
        self.whole = self._left = seconds
        self._left_in_all = self._patience * seconds

    def begin_call(self, seconds: float, loading: bool = False) -> None:
        """A call may compute for so long on each rank, and no longer in all than the check has left.

        ``loading`` takes nothing of that.
        """
        on_the_clock = self._patience * seconds
        self._left_now, left_in_all = (math.inf, on_the_clock) if loading else (self._left, self._left_in_all)
        self.spent = f"{seconds:g} s" if seconds <= self._left_now else f"{self.whole:g} s in this check"
        self.stop: Exception | None = None
        self._allowed, self._begun = max(min(seconds, self._left_now), LEAST), time.monotonic()
        self._until = self._begun + max(min(on_the_clock, left_in_all), LEAST)
        self._next_look = self._looked_around = self._then = self._begun
        self._before = {process: seconds_of(process) for process in self.known}
        self._served = Served()
        self._computed_then, self._idle_for, self._delays = 0.0, 0.0, 0.0
        self._delays = self._delayed()
        self._hindered_then = self._hindered()

    def has_begun(self, process: int) -> None:
        """What a process has computed until now is no part of the call."""
        self._before[process] = seconds_of(process)

    def give_more(self) -> None:
        """What is under way may take `PATIENCE` seconds more on the clock."""
        self._until = time.monotonic() + PATIENCE

    def end_call(self) -> None:
        self._left -= max(0.0, sum(self._computed()))
        self._left_in_all -= time.monotonic() - self._begun

    def forget(self) -> None:
        """All processes have been ended."""
        self.known, self.keeper = [], None

    def look_waiting(self, again: bool) -> None:
        """The same as `look`, in a thread that waits; ``again`` where it has done nothing else since the last time."""
        self._served.look(again)
        self.look()

    def look(self) -> None:
        """Raises `TimeUp` and `TooMuch` when it is time to."""
        now = time.monotonic()
        if now >= self._next_look and self.stop is None:
            self._next_look = now + LOOK
            self.stop = self._over(now)
        if self.stop is not None:
            raise self.stop

    def _over(self, now: float) -> Exception | None:
        computed = self._computed() if now > self._begun + self._allowed else []
        late = max(computed, default=0.0) > self._allowed or sum(computed) > self._left_now
        if late or (now > self._until and now > self._until + self._delayed()):
            return TimeUp()
        if self.keeper is None or now <= self._looked_around + LOOK_AROUND:
            return None
        self._looked_around = now
        held, others = held_and_computed(self.keeper, self.known)
        if held > HELD:
            return TooMuch("more memory than an answer may hold")
        many = others > self._allowed  # what it has started takes the time
        return TimeUp() if many or self._idle(sum(self._computed()) + others) else None

    def _computed(self) -> list[float]:
        """Seconds in this call, of each process."""
        return [seconds_of(process) - self._before.get(process, 0.0) for process in self.known]

    def _delayed(self) -> float:
        """Seconds that this call's processes have wanted to run and could not, as others had the machine."""
        return sum(sum(delays_of(each).values()) for each in self.known) + self._served.delayed() - self._delays

    def _idle(self, computed: float) -> bool:
        """Whether nothing has computed for as long as a call may, or wanted to: this is no matter of a busy machine.

        Nor is it where the processes wait for this one, which computes.
        """
        now, hindered = time.monotonic(), self._hindered()
        passed, hindrance = now - self._then, hindered - self._hindered_then
        if self.starting or computed != self._computed_then or not all(map(waits, self.known)):
            self._idle_for = 0.0
        else:  # hindrances are told too early or too late, and less than none are told where a process has ended
            self._idle_for = max(0.0, self._idle_for + passed - max(0.0, hindrance))
        self._then, self._computed_then, self._hindered_then = now, computed, hindered
        return self._idle_for > max(self._allowed, 2 * LOOK_AROUND)

    def _hindered(self) -> float:
        """Seconds in which this process has computed for the call, or it or one of the call's was ready to."""
        return self._served.computed() + self._delayed()
