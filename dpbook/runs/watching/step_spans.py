"""Spans of a step: the loader, the optimizer, collectives and the waits for them, by the clock of the rank's device.

A span begins and ends at moments of the stream that trains. Whatever makes this stream wait, on the CPU this rank's
training thread, is therefore seen on an accelerator too, and nothing here makes the host wait for it.
"""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives, distributed_c10d
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from dpbook.ddp import BackgroundAllReduce, tensors_in
from dpbook.ranks import DeviceMoment, moment
from dpbook.runs.watching.calls import COLLECTIVES
from dpbook.runs.watching.hooks import FSDPParamGroup, TrainingHooks
from dpbook.runs.watching.journal import BUFFERS, READY, Recorder, place

FURTHER_COLLECTIVES = (
    "all_gather_single", "reduce_scatter_single", "_all_gather_base", "_reduce_scatter_base", "send", "recv", "isend",
    "irecv", "batch_isend_irecv",
)  # fmt: skip
"""Names of torch.distributed, beside `COLLECTIVES`, that may make a rank wait."""


@dataclass
class OpenSpan:
    """A span whose end may still be missing.

    Attributes:
        kind: "loader", "forward", "backward", "optimizer", "wait" (the stream that trains waits for communication) or
            "call" (a collective is under way, which a wait may follow).
        begun, ended: moments; ``ended`` is None until it is known.
        name, nbytes: of a collective; a loader's name is `READY` if a worker had the batch ready.
        place: the line of the script that called it; None if a wrapper calls it before or after a forward.
    """

    kind: str
    begun: DeviceMoment
    ended: DeviceMoment | None = None
    name: str = ""
    nbytes: int = 0
    place: Any = None


class StepSpans:
    """Collects the spans of one update on ``device``, while ``active``."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.active = False
        self.spans: list[OpenSpan] = []
        self.stream: Any = None

    def open(self, kind: str, **fields: Any) -> OpenSpan | None:
        """Begin a span now; None if this update is not recorded."""
        if not self.active:
            return None
        span = OpenSpan(kind, moment(self.device), **fields)
        self.spans.append(span)
        return span

    def close(self, span: OpenSpan | None) -> None:
        """End a span now."""
        if span is not None:
            span.ended = moment(self.device)

    @contextmanager
    def during(self, kind: str, **fields: Any) -> Iterator[None]:
        """Record a span of this kind that lasts as long as the ``with`` block; ``fields`` are stored with it."""
        span = self.open(kind, **fields)
        try:
            yield
        finally:
            self.close(span)

    def begin(self, device: torch.device) -> None:
        """Begin to collect spans; only what is called on the current stream, which trains, can make it wait."""
        self.device, self.active = device, True
        if device.type != "cpu":
            self.stream = torch.accelerator.current_stream(device)

    @property
    def on_training_stream(self) -> bool:
        """Whether the current stream is the one that trains."""
        return self.stream is None or torch.accelerator.current_stream(self.device) == self.stream


class LoaderSpans:
    """Records the time in which a script waits for the next batch of a `DataLoader`, and the size of the batch.

    Attributes:
        examples: examples that were drawn in this update.
        workers: number of workers of the loader that was used last; None if none was.
    """

    def __init__(self, recorder: Recorder, spans: StepSpans) -> None:
        self.examples = 0
        self.workers: int | None = None
        self._spans = spans
        recorder.replace(DataLoader, "__iter__", spans.during("loader"))
        recorder.replace(_BaseDataLoaderIter, "__next__", self._watch_next)

    def _watch_next(self, load: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(load)
        def watched(iterator: Any) -> Any:
            with self._spans.during("loader", name=READY if _is_ready(iterator) else ""):
                batch = load(iterator)
            self.workers = iterator._num_workers
            first = next(tensors_in(batch), None)
            if first is not None and first.dim():
                self.examples += len(first)
            return batch

        return watched


def _is_ready(iterator: Any) -> bool:
    """Whether a worker of a `DataLoader` has a batch ready."""
    queue = getattr(iterator, "_data_queue", None)
    if queue is None or getattr(iterator, "_shutdown", False):  # the queue of an iterator at its end is closed
        return False
    held = getattr(iterator, "_task_info", {}).get(getattr(iterator, "_rcvd_idx", None), ())
    return len(held) == 2 or not queue.empty()  # held: it came before one that the script was to have first


class CommunicationSpans:
    """Records collectives and messages of the training thread, and the waits for them.

    A collective inside another is part of it. What other threads call, such as one that saves a checkpoint, does not
    keep the training thread from going on, and is left out.
    """

    def __init__(self, recorder: Recorder, hooks: TrainingHooks, spans: StepSpans) -> None:
        self._recorder, self._hooks, self._spans = recorder, hooks, spans
        self._inside = False
        self._waitable: set[type] = set()
        self._under_way: dict[int, OpenSpan] = {}
        for name in (*COLLECTIVES, *FURTHER_COLLECTIVES):
            if hasattr(dist, name):
                recorder.replace_everywhere((dist, distributed_c10d), name, functools.partial(self._watch_call, name))
        recorder.replace(BackgroundAllReduce, "__call__", functools.partial(self._watch_call, "all_reduce"))
        recorder.replace(DistributedDataParallel, "_sync_buffers", functools.partial(self._watch_wait, BUFFERS))
        recorder.replace(_functional_collectives, "wait_tensor", functools.partial(self._watch_wait, "wait"))
        for name in ("wait_for_unshard", "finalize_backward"):  # of `fully_shard`, for its own streams
            if hasattr(FSDPParamGroup, name):
                recorder.replace(FSDPParamGroup, name, functools.partial(self._watch_wait, name, on_cpu=False))

    def forget(self) -> None:
        """Forget calls under way, for none of which a wait has been seen in their update."""
        self._under_way.clear()

    def _is_ignored(self) -> bool:
        if torch.compiler.is_compiling() or self._inside or not self._spans.active:
            return True
        thread = threading.current_thread()  # Python has not started the threads in which autograd runs backward
        return thread is not threading.main_thread() and not isinstance(thread, threading._DummyThread)

    def _watch_call(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if self._is_ignored():
                return call(*args, **kwargs)
            tensors = list(tensors_in((args, kwargs)))
            nbytes = max((tensor.numel() * tensor.element_size() for tensor in tensors), default=0)
            source = None if self._hooks.in_wrapper else place()
            span = self._spans.open("call", name=name, nbytes=nbytes, place=source)
            self._inside = True
            try:
                result = call(*args, **kwargs)
            finally:
                self._inside = False
                self._spans.close(span)
            assert span is not None
            self._follow(span, result)
            return result

        return watched

    def _follow(self, span: OpenSpan, result: Any) -> None:
        """Note what a call has returned: without something to wait for, the stream itself has waited."""
        handles = [each for each in (result if isinstance(result, list) else [result]) if hasattr(each, "wait")]
        if not handles:
            span.kind = "wait" if self._spans.on_training_stream else "call"
            return
        span.ended = None
        for handle in handles:
            owner = next(each for each in type(handle).__mro__ if "wait" in vars(each))
            if owner not in self._waitable:
                self._waitable.add(owner)
                self._recorder.replace(owner, "wait", functools.partial(self._watch_wait, "wait"))
            self._under_way[id(handle)] = span
        if self._spans.device.type == "cpu" and not isinstance(result, list):
            with suppress(RuntimeError):  # a message has no future, and has ended when it was waited for
                future = result if hasattr(result, "then") else result.get_future()
                future.then(lambda done: self._spans.close(span))

    def _watch_wait(self, name: str, wait: Callable[..., Any], *, on_cpu: bool = True) -> Callable[..., Any]:
        @functools.wraps(wait)
        def watched(*args: Any, **kwargs: Any) -> Any:
            without_stream = self._spans.device.type == "cpu" and not on_cpu
            if self._is_ignored() or without_stream or not self._spans.on_training_stream:
                return wait(*args, **kwargs)
            self._inside = True
            try:
                with self._spans.during("wait", name=name):
                    return wait(*args, **kwargs)
            finally:
                self._inside = False
                call = self._under_way.pop(id(args[0]), None) if args else None
                if call is not None and call.ended is None:
                    self._spans.close(call)

        return watched

    def sum_bucket(self, bucket: torch.Tensor, group: dist.ProcessGroup) -> Any:
        """Begin to sum a buffer that stays, and return the work; on an accelerator a stream of its own sees the end.

        Waiting for a sum frees its tensors, so this must not be done with those of a script.
        """
        work = dist.all_reduce(bucket, group=group, async_op=True)
        span = self._under_way.pop(id(work), None)
        if span is not None and self._spans.device.type != "cpu":
            stream = torch.Stream(self._spans.device)
            self._inside = True
            with stream:
                work.wait()
                self._spans.close(span)
            self._inside = False
        return work
