"""Limits on the time of an answer's calls. The system enforces them: it ends the process when a timer expires.

A loop in C, a bare ``except``, threads and blocking calls end alike, since none of them is asked. Before every call
the process notes which it is, so that whoever started it can report it; the next check runs in a new process.
"""

import faulthandler
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dpbook.classroom.tasks.report import LastCall

STACK, CALL, PRINTED = "stack.txt", "call.json", "printed.txt"
"""Files of a check's process: where it was when it ended, which call it had begun, and what the answer printed."""
PATIENCE = 5.0
"""Seconds on the clock for each second of CPU time that a call may use: it may wait, and the machine may be busy."""
AFTER_TIMEOUT = 0.25
"""Share of its limit that a later call gets once a call has timed out: an endless loop is thus waited for once."""
SLOWER = 3
"""Times the longest call that returned, which a later call gets at least: an answer may be slow."""
LEAST = 0.001
"""Seconds of a call for which the check has none left. A timer of 0 seconds would not expire."""


class Limit:
    """Limit on the time of an answer's calls. This one limits nothing."""

    def begin_check(self, seconds: float) -> None:
        """Begin a check whose calls may use ``seconds`` of CPU time in all."""

    def note_call(self, last_call: LastCall) -> None:
        """Note the call that comes next, for whoever learns that it did not return."""

    @contextmanager
    def call(self, seconds: float) -> Iterator[None]:
        """Context of a call that may use ``seconds`` of CPU time."""
        yield


@dataclass
class History:
    """Facts about the calls of an answer that its next process has to know.

    ``timed_out``: whether one has used all its time; ``longest``: the most CPU time of one that returned, in seconds.
    """

    timed_out: bool = False
    longest: float = 0.0


class ProcessLimit(Limit):
    """Limit that ends this process when a call has used its CPU time, or `PATIENCE` times as much on the clock.

    ``folder`` receives `CALL` at the beginning of every call, and `STACK` when a timer expires. ``name`` is that of the
    learner's function, and ``check`` that of the check that is running.
    """

    def __init__(self, folder: Path, name: str, history: History) -> None:
        self.check = ""
        self._name, self._history = name, history
        self._call = os.open(folder / CALL, os.O_WRONLY | os.O_CREAT, 0o600)
        self._stack = open(folder / STACK, "w")  # noqa: SIM115  # open until the process ends
        faulthandler.enable(self._stack)  # for a crash in C
        for expired in (signal.SIGPROF, signal.SIGALRM):
            signal.signal(expired, signal.SIG_DFL)  # which ends the process, after the stack has been written
            faulthandler.register(expired, file=self._stack, all_threads=True, chain=True)
        self.begin_check(0.0)

    def begin_check(self, seconds: float) -> None:
        self._noted = {"call": "", "where": ""}
        self._whole = self._cpu_left = seconds
        self._clock_left = PATIENCE * seconds

    def note_call(self, last_call: LastCall) -> None:
        self._noted = {"call": last_call.in_python(self._name), "where": last_call.where}

    @contextmanager
    def call(self, seconds: float) -> Iterator[None]:
        seconds = min(seconds, self._whole)
        if self._history.timed_out:
            seconds = min(seconds, max(AFTER_TIMEOUT * seconds, SLOWER * self._history.longest))
        on_clock = PATIENCE * seconds
        whole, whole_on_clock = (f"{limit:g} s in this check" for limit in (self._whole, PATIENCE * self._whole))
        limits = {
            str(int(signal.SIGPROF)): f"{seconds:g} s" if seconds <= self._cpu_left else whole,
            str(int(signal.SIGALRM)): f"{on_clock:g} s" if on_clock <= self._clock_left else whole_on_clock,
        }  # in words, by the signal of the timer
        noted = {"check": self.check, **self._noted, **limits}
        os.pwrite(self._call, json.dumps(noted).encode(), 0)  # over what may be longer
        cpu, clock = time.process_time(), time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, max(min(on_clock, self._clock_left), LEAST))
        signal.setitimer(signal.ITIMER_PROF, max(min(seconds, self._cpu_left), LEAST))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            used = time.process_time() - cpu
            self._cpu_left -= used
            self._clock_left -= time.monotonic() - clock
        self._history.longest = max(self._history.longest, used)
