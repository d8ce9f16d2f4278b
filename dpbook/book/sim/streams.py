"""Streams and events: a stream is a thread that runs its work in order, while the host continues.

`Stream` and `Event` have the names and the meaning of torch's, on Python threads.
"""

import atexit
import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple
from unittest.mock import patch

import torch


class KernelSpan(NamedTuple):
    """A kernel that ran, in seconds of `time.perf_counter`: ``launched`` by the host, begun and ended on its stream."""

    name: str
    stream: int
    launched: float
    begin: float
    end: float


@dataclass
class Settings:
    """State of the device: extra seconds of each kernel, the kernels that ran, and the first error of a kernel."""

    slowness: float = 0.0
    spans: list[KernelSpan] | None = None
    error: BaseException | None = None


SETTINGS = Settings()


def slower(seconds: float) -> AbstractContextManager[object]:
    """Let every kernel that is launched in the block take so many more seconds."""
    return patch.object(SETTINGS, "slowness", seconds)


def watch() -> AbstractContextManager[list[KernelSpan]]:
    """Return a context whose value lists the kernels launched in the block, in the order in which they end."""
    return patch.object(SETTINGS, "spans", [])


Task = Callable[[], object]
DEVICE_TYPE = int(torch._C._autograd.DeviceType.PrivateUse1)
SHUTDOWN_SECONDS = 2.0
"""Time limit of all streams to finish their work at the end of the process."""


class StreamMark(threading.Event):
    """A place in a stream's queue, which can be waited for, and the ``time`` at which the stream reached it."""

    time = 0.0

    def reach(self) -> None:
        self.time = time.perf_counter()
        self.set()


class Stream(torch.Stream):  # type: ignore[misc]  # torch has no types here
    """Queue of work in order, concurrent with other streams except where it waits for an event."""

    _numbers = itertools.count()
    all: ClassVar[dict[int, "Stream"]] = {}
    """All streams by number; a stream lives as long as the process."""

    def __new__(cls, device: Any = None, priority: int = 0) -> "Stream":
        number = next(cls._numbers)
        new: Stream = super().__new__(cls, stream_id=number, device_index=0, device_type=DEVICE_TYPE)
        new._tasks, new._before = queue.SimpleQueue(), []
        new._thread = threading.Thread(target=new._work, daemon=True, name=f"sim stream {number}")
        new._thread.start()
        cls.all[number] = new
        return new

    def submit(self, task: Task) -> None:
        """Queue a task that takes no time: an event, or a wait."""
        self._tasks.put(task)

    def launch(self, name: str, kernel: Task) -> None:
        """Queue a kernel."""
        launched, slowness, spans = time.perf_counter(), SETTINGS.slowness, SETTINGS.spans

        def run() -> None:
            begin = time.perf_counter()
            time.sleep(slowness)
            kernel()
            if spans is not None:
                spans.append(KernelSpan(name, self.stream_id, launched, begin, time.perf_counter()))

        self.submit(run)

    def record_event(self, event: "Event | None" = None) -> "Event":
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: "Event") -> None:
        """Let all work that is queued from now on wait for ``event``; the host does not wait."""
        if event.mark is not None:
            self.submit(event.mark.wait)

    def wait_stream(self, stream: "Stream") -> None:
        self.wait_event(stream.record_event())

    def synchronize(self) -> None:
        """Let the host wait for all queued work. Raises, once, the error of a kernel of any stream."""
        self.record_event().synchronize()
        _raise_late()

    def query(self) -> bool:
        """Return True if all queued work is done; the thread gets 1 ms to answer."""
        return self.record_event().synchronize(1e-3)

    def __enter__(self) -> "Stream":
        self._before.append(current_stream())
        set_stream(self)
        return self

    def __exit__(self, *_: object) -> None:
        set_stream(self._before.pop())

    def _work(self) -> None:
        torch.set_num_threads(torch.get_num_threads())  # a new thread would start with one per core
        with torch.no_grad():
            while (task := self._tasks.get()) is not None:
                try:
                    task()
                except BaseException as error:
                    SETTINGS.error = SETTINGS.error or error


class Event(torch.Event):  # type: ignore[misc]
    """A mark in a stream; recording it again moves it to the new place."""

    mark: StreamMark | None = None

    def __new__(cls, device: Any = None, *, enable_timing: bool = False, **options: Any) -> "Event":
        new: Event = super().__new__(cls, "sim", enable_timing=enable_timing)
        new.timed = enable_timing
        return new

    def record(self, stream: Stream | None = None) -> None:
        self.mark = StreamMark()
        (stream or current_stream()).submit(self.mark.reach)

    def wait(self, stream: Stream | None = None) -> None:
        """Let the *stream* wait, not the host."""
        (stream or current_stream()).wait_event(self)

    def synchronize(self, seconds: float | None = None) -> bool:
        """Let the host wait, for at most ``seconds``, and return True if the place was reached."""
        return self.mark is None or self.mark.wait(seconds)

    def query(self) -> bool:
        return self.mark is None or self.mark.is_set()

    def elapsed_time(self, end_event: "Event") -> float:
        """Return the milliseconds from this event to another."""
        if not (self.timed and end_event.timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self.mark is None or end_event.mark is None or not (self.query() and end_event.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return 1e3 * float(end_event.mark.time - self.mark.time)


def _raise_late() -> None:
    error, SETTINGS.error = SETTINGS.error, None
    if error is not None:
        message = f"sim error: {type(error).__name__}: {error}. It may have been launched long before this call"
        raise RuntimeError(message) from error


_default: list[Stream] = []
_here = threading.local()


def default_stream(device: Any = None) -> Stream:
    """Return the stream for work that names none; the first call makes it."""
    if not _default:
        _default.append(Stream())
    return _default[0]


def current_stream(device: Any = None) -> Stream:
    """Return the stream on which this thread queues its work."""
    return getattr(_here, "stream", None) or default_stream()


def set_stream(stream: Stream) -> None:
    _here.stream = stream


def synchronize(device: Any = None) -> None:
    """Let the host wait for all streams, and then raise the error of a kernel, if there was one."""
    for stream in list(Stream.all.values()):
        stream.record_event().synchronize()
    _raise_late()


@contextlib.contextmanager
def hold(stream: Stream | None = None) -> Iterator[None]:
    """Stop a stream (default: the current one) for the block: work that is queued in it runs only afterwards."""
    gate = threading.Event()
    (stream or current_stream()).submit(gate.wait)
    try:
        yield
    finally:
        gate.set()


@atexit.register
def _end() -> None:
    """End the threads: one that still runs when the interpreter ends would abort the process."""
    deadline = time.monotonic() + SHUTDOWN_SECONDS
    for stream in list(Stream.all.values()):
        stream._tasks.put(None)
        stream._thread.join(max(0.0, deadline - time.monotonic()))
