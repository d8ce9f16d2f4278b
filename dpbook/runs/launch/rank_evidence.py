"""What a rank writes down while it runs and when it is ended, although its main thread may wait in C++ for ever.

A thread writes into FOLDER whenever collectives were called or have come to their end, so that a hang can be seen from
outside. When the rank is asked to tell where it is (a file) or to end (SIGTERM), or aborts (SIGABRT: gloo's answer to a
message of another size, NCCL's to a time-out), it leaves its stack and its last collectives there.

No Python signal handler runs while the main thread is in C++. So SIGTERM wakes the thread, through Python's wakeup file
descriptor, which works with handlers of the program's own too, and is shared with a program that wants one itself, as
asyncio does for its signal handlers; SIGABRT is answered in the thread that aborts.
"""

import ctypes
import faulthandler
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TextIO

from dpbook.ranks import failure_files
from dpbook.runs.launch.tracebacks import of_the_script, way_to
from dpbook.runs.postmortem import flight_recorder

LOOK = 1.0
"""Seconds between two looks at the collectives."""
STILL = 3.0
"""Seconds after which it is looked up in what collective a rank waits."""
_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)
_kept: list[object] = []
"""What C code still points to."""


class Evidence:
    """The evidence of one rank, which goes to ``folder``; its stack goes to ``stack``, an open file."""

    def __init__(self, folder: Path, rank: int, stack: TextIO) -> None:
        self._folder, self._rank, self._stack = folder, rank, stack
        self._once = threading.RLock()  # a signal may interrupt the main thread in it
        self._set_wakeup_fd, self._programs = signal.set_wakeup_fd, -1

    def watch(self) -> None:
        """Begin; to be called from the main thread."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.signal(signal.SIGTERM, self._end)
        self._share(writer)
        self._answer_abort()
        faulthandler.enable(file=self._stack)  # this first, then what was there before
        faulthandler.register(signal.SIGTERM, file=self._stack, chain=True)
        os.register_at_fork(after_in_child=self._forget)
        threading.Thread(target=self._look, args=(reader,), daemon=True, name="dpbook evidence").start()

    def write(self) -> None:
        """Leave the last collectives, the error being handled, and last all threads' stacks if they are not there."""
        with self._once:
            flight_recorder.write_calls(self._folder, self._rank)
            if error := _handled():
                failure_files.write_error(
                    self._folder / failure_files.HANDLED, self._rank, error, _whole(error.__traceback__)
                )
            if not self._stack.closed and not os.fstat(self._stack.fileno()).st_size:
                faulthandler.dump_traceback(self._stack)

    def _share(self, wakeup: int) -> None:
        """Have signals told to the thread; one that the program asks for is told by the thread then."""

        def set_wakeup_fd(fd: int, /, *, warn_on_full_buffer: bool = True) -> int:
            self._set_wakeup_fd(fd, warn_on_full_buffer=warn_on_full_buffer)  # which looks at what was given
            self._set_wakeup_fd(wakeup, warn_on_full_buffer=False)
            before, self._programs = self._programs, fd
            return before

        self._set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.set_wakeup_fd = set_wakeup_fd

    def _end(self, number: int, frame: FrameType | None) -> None:
        """What SIGTERM does where the program has no handler of its own: as without us, the process ends."""
        self.write()
        _c_signal(signal.SIGTERM, None)
        os.kill(os.getpid(), signal.SIGTERM)

    def _look(self, wakeup: int) -> None:
        before, since, known, told = None, time.time(), False, False
        self._beat(since, None)
        while True:
            if select.select([wakeup], [], [], LOOK)[0]:
                self._hear(os.read(wakeup, 64))
            if not told and (self._folder / failure_files.TELL).exists():
                told = True
                self.write()
            now = flight_recorder.progress()
            if now != before:
                before, since, known = now, time.time(), False
                self._beat(since, None)
            elif not known and time.time() - since > STILL:
                known = True
                self._beat(since, flight_recorder.time_limit())

    def _hear(self, signals: bytes) -> None:
        if self._programs >= 0:
            with suppress(OSError):  # it is full, or closed
                os.write(self._programs, signals)
        if signal.SIGTERM in signals:
            self.write()
            if signal.getsignal(signal.SIGTERM) == self._end:
                self._end(signal.SIGTERM, None)

    def _beat(self, since: float, limit: float | None) -> None:
        """Say since when nothing has changed, and, of a rank that waits in a collective, for how long torch lets it."""
        try:
            path = self._folder / failure_files.BEAT.format(self._rank)
            path.write_text(json.dumps({"since": since, "limit": limit}))
        except OSError:  # the folder is gone, or its disk is full: no reason to end a run
            return

    def _answer_abort(self) -> None:
        def answer(number: int) -> None:
            self.write()
            _c_signal(signal.SIGABRT, None)

        _c_signal(signal.SIGABRT, _HANDLER(answer))

    def _forget(self) -> None:
        """A process that this one forks is not the rank."""
        faulthandler.disable()
        faulthandler.unregister(signal.SIGTERM)
        signal.set_wakeup_fd = self._set_wakeup_fd
        with suppress(OSError, ValueError):  # the program has closed its own
            self._set_wakeup_fd(self._programs)
        _c_signal(signal.SIGABRT, None)
        if signal.getsignal(signal.SIGTERM) == self._end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _handled() -> BaseException | None:
    """The error that the main thread is handling, perhaps in a `finally` that waits for the other ranks."""
    handled: Any = sys._current_exceptions().get(threading.main_thread().ident or 0)
    error: BaseException | None = handled[1] if isinstance(handled, tuple) else handled  # a tuple before Python 3.12
    return error


def _whole(trace: TracebackType | None) -> TracebackType | None:
    """With the callers of where the error is handled: torch handles each before the script sees it."""
    return of_the_script(way_to(trace.tb_frame.f_back, trace)) if trace else None


def _c_signal(number: int, handler: Callable[[int], None] | None) -> None:
    """C's `signal`, which any thread may call; None is the default."""
    call = ctypes.CDLL(None).signal
    call.argtypes, call.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    _kept.append(handler)
    call(number, ctypes.cast(handler, ctypes.c_void_p) if handler else None)  # type: ignore[arg-type]
