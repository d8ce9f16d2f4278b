"""Evidence that a rank writes while it runs and when it is ended, although its main thread may wait in C++ for ever.

A thread writes a heartbeat into FOLDER whenever collectives were called or completed, so that a hang can be seen from
outside. It writes the rank's stack and its last collectives when a file asks for them, when the rank is to end
(SIGTERM), and when it aborts (SIGABRT is gloo's answer to a message of another size, and NCCL's to a timeout).

Python runs no signal handler while the main thread is in C++. Therefore SIGTERM wakes the thread, through Python's
wakeup file descriptor. That works beside handlers of the program. A program that sets the descriptor itself, as asyncio
does for its signal handlers, shares it with the thread. SIGABRT is answered in the thread that aborts.
"""

import ctypes
import faulthandler
import json
import multiprocessing.process
import multiprocessing.spawn
import os
import runpy
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

from dpbook.core import PACKAGE
from dpbook.ranks import failure_files
from dpbook.runs.postmortem import flight_recorder

POLL_SECONDS = 1.0
"""Interval at which the thread looks at the collectives."""
WAITING_SECONDS = 3.0
"""Seconds without progress after which the thread looks up the collective that the rank waits in."""
_C_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)
_handlers_in_use: list[object] = []
"""Handlers that C code points to, which must not be collected."""
_STARTERS = (
    *(str(PACKAGE / "runs" / "launch" / name) for name in ("guard.py", "spawned_ranks.py")),
    runpy.__file__, "<frozen runpy>", multiprocessing.spawn.__file__, multiprocessing.process.__file__,
    os.path.join("torch", "multiprocessing", "spawn.py"),
)  # fmt: skip
"""Ends of the names of files whose functions start a script, or a function of it in another process."""


class RankEvidence:
    """Evidence of a process, which goes to ``folder`` once it is a rank; its stack goes to ``stack``, an open file.

    ``parent``: a descriptor that becomes readable when the process ends that has started this one, which then ends too.
    """

    def __init__(self, folder: Path, stack: TextIO, parent: int | None = None) -> None:
        self._folder, self._stack, self._parent = folder, stack, [] if parent is None else [parent]
        self._rank: int | None = None
        self._lock = threading.RLock()  # reentrant: a signal may interrupt the main thread while it holds the lock
        self._set_wakeup_fd, self._program_fd = signal.set_wakeup_fd, -1

    def watch(self) -> None:
        """Begin to watch; to be called from the main thread, before the program sets handlers of its own."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._end)
        self._share_wakeup_fd(writer)
        _c_signal(signal.SIGABRT, _C_HANDLER(self._answer_abort))
        faulthandler.enable(file=self._stack)  # on a crash it writes the stack, then calls the earlier handlers
        faulthandler.register(signal.SIGTERM, file=self._stack, chain=True)
        os.register_at_fork(after_in_child=self._reset_after_fork)
        threading.Thread(target=self._run, args=(reader,), daemon=True, name="dpbook evidence").start()

    def begin_rank(self, rank: int) -> None:
        """Write as this rank from now on. The name of the open file of stacks changes to the rank's."""
        Path(self._stack.name).rename(self._folder / failure_files.STACK_FILE.format(rank))
        self._rank = rank

    def write(self) -> None:
        """Write the last collectives, the error being handled, and then all stacks unless they are written already.

        The stacks are last: when the launcher finds them it ends the rank.
        """
        if self._rank is None:
            return
        with self._lock:
            flight_recorder.write_calls(self._folder, self._rank)
            if error := _handled_error():
                folder, trace = self._folder / failure_files.HANDLED_ERRORS_FOLDER, error.__traceback__
                # It begins in the function that handles the error: torch does so before the script, whose line would
                # be missing.
                whole = traceback_to(trace.tb_frame.f_back, trace) if trace else None
                failure_files.write_error(folder, self._rank, error, drop_starter_frames(whole))
            if not self._stack.closed and not os.fstat(self._stack.fileno()).st_size:
                faulthandler.dump_traceback(self._stack)

    def _share_wakeup_fd(self, wakeup: int) -> None:
        """Let signals wake the thread; it passes them on to a descriptor that the program sets."""

        def set_wakeup_fd(fd: int, /, *, warn_on_full_buffer: bool = True) -> int:
            self._set_wakeup_fd(fd, warn_on_full_buffer=warn_on_full_buffer)  # checks the arguments
            self._set_wakeup_fd(wakeup, warn_on_full_buffer=False)
            before, self._program_fd = self._program_fd, fd
            return before

        self._set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.set_wakeup_fd = set_wakeup_fd

    def _end(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGTERM in a program without a handler: write the evidence, and end by the signal."""
        self.write()
        _c_signal(signal.SIGTERM, None)
        os.kill(os.getpid(), signal.SIGTERM)

    def _run(self, wakeup: int) -> None:
        before, since, is_waiting, dumped = object(), time.time(), False, False
        while True:
            ready, _, _ = select.select([wakeup, *self._parent], [], [], POLL_SECONDS)
            if wakeup in ready:
                self._receive(os.read(wakeup, 64))
            elif ready:
                os.kill(os.getpid(), signal.SIGKILL)
            if self._rank is None:
                continue
            if not dumped and (self._folder / failure_files.DUMP_REQUEST_FILE).exists():
                dumped = True
                self.write()
            now = flight_recorder.progress()
            if now != before:
                before, since, is_waiting = now, time.time(), False
                self._write_heartbeat(since, None)
            elif not is_waiting and time.time() - since > WAITING_SECONDS:
                is_waiting = True
                self._write_heartbeat(since, flight_recorder.time_limit())

    def _receive(self, signals: bytes) -> None:
        if self._program_fd >= 0:
            with suppress(OSError):  # the pipe is full, or closed
                os.write(self._program_fd, signals)
        if signal.SIGTERM in signals:
            self.write()
            if signal.getsignal(signal.SIGTERM) == self._end:
                self._end(signal.SIGTERM, None)

    def _write_heartbeat(self, since: float, limit: float | None) -> None:
        """Write the time of the last progress, and torch's timeout of the collective that the rank waits in."""
        path = self._folder / failure_files.HEARTBEAT_FILE.format(self._rank)
        with suppress(OSError):  # the folder is gone, or its disk is full: no reason to end a run
            path.write_text(json.dumps({"since": since, "limit": limit}))

    def _answer_abort(self, number: int) -> None:
        self.write()
        _c_signal(signal.SIGABRT, None)

    def _reset_after_fork(self) -> None:
        """Restore all handlers in a process that the rank forks: it is not the rank."""
        faulthandler.disable()
        faulthandler.unregister(signal.SIGTERM)
        signal.set_wakeup_fd = self._set_wakeup_fd
        with suppress(OSError, ValueError):  # the program has closed its descriptor
            self._set_wakeup_fd(self._program_fd)
        _c_signal(signal.SIGABRT, None)
        if signal.getsignal(signal.SIGTERM) == self._end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _handled_error() -> BaseException | None:
    """Return the error that the main thread is handling, perhaps in a `finally` that waits for the other ranks."""
    handled: Any = sys._current_exceptions().get(threading.main_thread().ident or 0)
    error: BaseException | None = handled[1] if isinstance(handled, tuple) else handled  # a tuple before Python 3.12
    return error


def traceback_to(frame: FrameType | None, onward: TracebackType | None = None) -> TracebackType | None:
    """Return the traceback of an error raised in ``frame``, or with ``onward`` in a function that ``frame`` called."""
    trace = onward
    while frame:
        trace = TracebackType(trace, frame, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return trace


def drop_starter_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the frames that started the script."""
    while trace and trace.tb_frame.f_code.co_filename.endswith(_STARTERS):
        trace = trace.tb_next
    return trace


def _c_signal(number: int, handler: Callable[[int], None] | None) -> None:
    """Call C's `signal`, which any thread may do; None restores the default."""
    call = ctypes.CDLL(None).signal
    call.argtypes, call.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    _handlers_in_use.append(handler)
    call(number, ctypes.cast(handler, ctypes.c_void_p) if handler else None)  # type: ignore[arg-type]
