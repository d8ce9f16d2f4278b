"""Limits on the time of an answer's calls. The system enforces them: it ends the process when a timer expires.

A loop in C, a bare ``except``, threads and blocking calls end alike, since none of them is asked. The check that was
running then goes on in a new process, which knows of the call that did not end and does not make it again.
"""

import faulthandler
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

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


class Unfinished(NamedTuple):
    """Reason why a call did not return: what was expected, what came, and whether its time was over."""

    expected: str
    got: str
    timed_out: bool

    def as_wrong(self) -> tuple[str, str, str, str]:
        """Return the arguments of the `answer.Wrong` that a check fails with."""
        return self.expected, self.got, "", "a call that does not end" if self.timed_out else self.got


class DidNotReturn(Exception):
    """Raised in place of a call that ended an earlier process."""

    def __init__(self, reason: Unfinished) -> None:
        super().__init__(reason.got)
        self.reason = reason


class Limit:
    """Limit on the time of an answer's calls. This one limits nothing."""

    def begin_check(self, seconds: float) -> None:
        """Begin a check whose calls may use ``seconds`` of CPU time in all."""

    def count_request(self) -> None:
        """Count one request of the check for a call, which is made at once or was made for another check."""

    @contextmanager
    def call(self, seconds: float) -> Iterator[None]:
        """Context of a call that may use ``seconds`` of CPU time. Raises `DidNotReturn`."""
        yield


@dataclass
class History:
    """Facts about the calls of an answer that its next process has to know.

    ``unfinished``: why a call did not return, by check and number of the request for it; ``longest``: the most CPU time
    of a call that returned, in seconds.
    """

    unfinished: dict[tuple[str, int], Unfinished] = field(default_factory=dict)
    longest: float = 0.0

    @property
    def timed_out(self) -> bool:
        """Whether a call has used all its time."""
        return any(reason.timed_out for reason in self.unfinished.values())


class ProcessLimit(Limit):
    """Limit that ends this process when a call has used its CPU time, or `PATIENCE` times as much on the clock.

    ``folder`` receives `CALL` at the beginning of every call, and `STACK` when a timer expires. ``check`` is the name
    of the check that is running.
    """

    def __init__(self, folder: Path, history: History) -> None:
        self.check = ""
        self._history = history
        self._call = os.open(folder / CALL, os.O_WRONLY | os.O_CREAT, 0o600)
        self._stack = open(folder / STACK, "w")  # noqa: SIM115  # open until the process ends
        faulthandler.enable(self._stack)  # for a crash in C
        for expired in (signal.SIGPROF, signal.SIGALRM):
            signal.signal(expired, signal.SIG_DFL)  # which ends the process, after the stack has been written
            faulthandler.register(expired, file=self._stack, all_threads=True, chain=True)
        self.begin_check(0.0)

    def begin_check(self, seconds: float) -> None:
        self._request = 0
        self._whole = self._cpu_left = seconds
        self._clock_left = PATIENCE * seconds

    def count_request(self) -> None:
        self._request += 1

    @contextmanager
    def call(self, seconds: float) -> Iterator[None]:
        reason = self._history.unfinished.get((self.check, self._request))
        if reason is not None:
            raise DidNotReturn(reason)
        seconds = self._shortened(min(seconds, self._whole))
        os.pwrite(self._call, json.dumps(self._describe(seconds)).encode().ljust(300), 0)
        cpu, clock = time.process_time(), time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, max(min(PATIENCE * seconds, self._clock_left), LEAST))
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

    def _shortened(self, seconds: float) -> float:
        if not self._history.timed_out:
            return seconds
        return min(seconds, max(AFTER_TIMEOUT * seconds, SLOWER * self._history.longest))

    def _describe(self, seconds: float) -> dict[str, object]:
        """Return the check, the number of the request, and its limits in words by the signal of the timer."""
        cpu = f"{seconds:g} s" if seconds <= self._cpu_left else f"{self._whole:g} s in this check"
        clock = PATIENCE * seconds
        waiting = f"{clock:g} s" if clock <= self._clock_left else f"{PATIENCE * self._whole:g} s in this check"
        limits = {str(int(signal.SIGPROF)): cpu, str(int(signal.SIGALRM)): waiting}
        return {"check": self.check, "request": self._request, **limits}
