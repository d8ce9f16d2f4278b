"""A limit on the time that code may take, whatever it does.

A loop in Python is stopped, and so is a blocking wait in the main thread. A loop in C (``sum(iter(int, 1))``) cannot
be, nor one that catches every exception at several levels: only ending the process is sure, which is what an isolated
run is for. Memory is not limited at all.
"""

import ctypes
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, TypeVar

from dpbook.classroom.tasks.answer_errors import is_learners
from dpbook.classroom.tasks.cpu_wait import OwnTime

T = TypeVar("T")

LOOK_SECONDS = 0.1  # from one look at the time to the next
AGAIN_SECONDS = 0.02  # code that catches the first interruption gets another one, until it lets go
BEGIN_SECONDS = 1.0  # in which a thread that is being started begins to run, on a busy machine too
STRAY_SECONDS = 1.0  # so long threads are interrupted that outlive the code that started them
_SIGNAL: Any = getattr(signal, "SIGURG", None)  # ignored by default, so that a late one does no harm
_Threads = dict[threading.Thread, threading.Thread]
# Threads that are being started: until they run, Python before 3.12 takes them for the one that starts them.
_beginners: _Threads = threading._limbo if sys.version_info < (3, 12) else {}  # type: ignore[attr-defined]
_never_begun: _Threads = {}  # those of them that stay there, as their start was interrupted


class TimeUp(Exception):
    """The code had not ended when its time was over.

    ``frames`` are those of the learner's threads at that moment, with a line number each; the way of the calling thread
    is the traceback of ``__cause__``.
    """

    def __init__(self, frames: Sequence[tuple[FrameType, int]] = ()) -> None:
        self.frames = frames


class _Stop(BaseException):
    """Raised inside code whose time is over."""


def limited(work: Callable[[], T], seconds: float, own: OwnTime | None = None) -> T:
    """Return ``work()``. Raises `TimeUp` where it takes longer than ``seconds``, and whatever ``work`` raises.

    Those do not count in which it could have run and others had the machine. The caller may read ``own`` afterwards.
    """
    watch = _Watch(seconds, own or OwnTime())
    stopped: _Stop | None = None
    try:
        watch.start()
        return work()
    except _Stop as stop:
        stopped = stop
    finally:
        # Interruptions arrive where functions are called. An assignment calls none, and makes the signal harmless;
        # then at most one asynchronous exception is still on its way.
        watch.over = True
        try:
            watch.end()
        except _Stop:
            watch.end()
    raise TimeUp(watch.frames) from stopped


class _Watch:
    """Between start and end waits in a thread, and interrupts the thread that started it when its time is over.

    An asynchronous exception is raised in that thread and in those that the watched code has started and that run it
    still. The main thread gets a signal first: that ends a blocking wait as well, and the exception then follows
    at once, to end code that has caught the signal's.
    """

    def __init__(self, seconds: float, own: OwnTime) -> None:
        self.seconds, self.own = seconds, own
        self.over = False
        self.interrupted = False
        self.ended = threading.Event()
        self.lock = threading.Lock()
        self.caller = threading.current_thread()
        self.before = set(threading.enumerate())
        self.strays: set[threading.Thread] = set()
        self.frames: list[tuple[FrameType, int]] = []
        self.by_signal = _SIGNAL is not None and threading.current_thread() is threading.main_thread()
        self.handler = signal.getsignal(_SIGNAL) if self.by_signal else None
        self.tracing = (sys.gettrace(), sys.getprofile())

    def start(self) -> None:
        if self.by_signal:
            signal.signal(_SIGNAL, self._on_signal)
        threading.Thread(target=self._wait, daemon=True, name="dpbook time limit").start()

    def end(self) -> None:
        self.ended.set()
        try:
            with self.lock:  # after this nothing is sent to the caller
                if self.interrupted:
                    _settle()
                    self._trace_again()
        finally:
            if self.by_signal and signal.getsignal(_SIGNAL) == self._on_signal:
                signal.signal(_SIGNAL, self.handler)

    def _trace_again(self) -> None:
        """A debugger's function in which an interruption was raised is called no more: Python takes it for broken."""
        trace, profile = self.tracing
        if trace and not sys.gettrace():
            sys.settrace(trace)
        if profile and not sys.getprofile():
            sys.setprofile(profile)

    def _wait(self) -> None:
        left = self.seconds
        while left > 0 and not self.ended.wait(min(left, LOOK_SECONDS)):
            with self.lock:
                if not self.over:
                    left = self.seconds - self.own.look()
        while not self.ended.is_set():
            with self.lock:
                if not self.over:
                    self._interrupt()
            self.ended.wait(AGAIN_SECONDS)
        for _ in range(round(STRAY_SECONDS / AGAIN_SECONDS)):
            if not self._interrupt_strays():
                break
            time.sleep(AGAIN_SECONDS)
        if self.interrupted:
            _settle()  # one of the strays may have ended before it raised what was sent to it

    def _interrupt(self) -> None:
        self.interrupted = True
        self.strays = set(threading.enumerate()) - self.before - {threading.current_thread()}
        self._interrupt_strays()
        _wait_for_beginners()
        _raise_in(self.caller, _Stop)
        if self.by_signal:
            signal.pthread_kill(self.caller.ident or 0, _SIGNAL)

    def _interrupt_strays(self) -> bool:
        """End what runs the learner's code in other threads. Returns whether any of them are there still."""
        _wait_for_beginners()
        there = self.strays.intersection(threading.enumerate())  # is_alive() is wrong after an interrupted join()
        frames = sys._current_frames()
        for thread in there:
            frame = frames.get(thread.ident or 0)
            own = (
                [one for one in traceback.walk_stack(frame) if is_learners(one[0].f_code.co_filename)] if frame else []
            )
            self.frames = self.frames or own[::-1]
            if own:
                _raise_in(thread, SystemExit)  # which ends a thread without a word
        return bool(there)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self.over:
            raise _Stop


def _raise_in(thread: threading.Thread, exception: type[BaseException]) -> None:
    """Raise ``exception`` in a thread when it next runs Python code, in place of one not yet raised.

    Nothing is raised where another thread would be hit: this one has ended, or `threading` is starting one. From the
    looks at that to the sending nothing is called, so that no other thread runs in between.
    """
    send, number, raised = ctypes.pythonapi.PyThreadState_SetAsyncExc, thread.ident, ctypes.py_object(exception)
    ident, active = ctypes.c_ulong(number or 0), threading._active  # type: ignore[attr-defined]
    if number in active and active[number] is thread and _beginners == _never_begun:
        send(ident, raised)


def _wait_for_beginners() -> None:
    """Until no thread is being started; those that still are after a second count no longer.

    So code that starts threads without end is ended too, at the risk that one of its threads is hit.
    """
    until = time.monotonic() + BEGIN_SECONDS
    while _beginners != _never_begun:
        if time.monotonic() > until:
            _never_begun.clear()
            _never_begun.update(_beginners)
            return
        time.sleep(0.001)


class _Settled(BaseException):
    """Raised where it is caught at once."""


def _settle() -> None:
    """Take back what was sent to this thread and is not yet raised, and end the search for what nobody will raise.

    From one that is sent until any is raised, Python before 3.13 looks for it at every call, and 3.11 never gets past a
    call that a debugger traces. To send None would begin such a search, so one is raised here. Any other exception that
    comes meanwhile is raised in the end.
    """
    other: BaseException | None = None
    while True:
        try:
            while True:
                _wait_for_beginners()
                _raise_in(threading.current_thread(), _Settled)
        except _Settled:
            break
        except BaseException as error:
            other = error
    if other is not None:
        raise other
