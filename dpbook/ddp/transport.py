"""Schedules as the all-reduce of a DDP: an all-reduce that is data moves the gradients.

model = BucketedDDP(module, all_reduce=over(collectives.ring))
ddp.register_comm_hook(None, over(collectives.ring).hook)  # torch's DistributedDataParallel
"""
# No deferred annotations here: torch compares those of a communication hook with its own types.

import inspect
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist

from dpbook.collectives import Program, Schedule, verify_all_reduce
from dpbook.core import InvalidArgument, RankFailed
from dpbook.ranks import prepare

GRACE = 1.0
"""Seconds that an all-reduce in progress at the end of the process may take to finish."""

Call = tuple[Callable[[], object], torch.Tensor, torch.futures.Future[torch.Tensor]]


def over(
    all_reduce: Schedule | Program | Callable[[int], Schedule], group: dist.ProcessGroup | None = None
) -> "BackgroundAllReduce":
    """Return an ``all_reduce`` for our wrappers, with a hook for torch's, that executes a schedule or a rank program.

    Args:
        all_reduce: a schedule; a function of one argument, the world, that makes one, such as `collectives.ring`; or a
            rank program, ``f(comm, x)``, which is trusted to sum.
        group: carries these messages and no others; its timeout is theirs. It needs a backend for the tensors that are
            to be summed: gloo for the CPU, such as NCCL for an accelerator. None makes one of all ranks with both, as
            `dist.new_group` does: then every rank calls `over`, in the same order as whatever else makes groups.

    Whether the replicas then stay equal to the last bit is what `collectives.agreement` says of a schedule. Raises
    `InvalidArgument` for a schedule of another world or one that promises no all-reduce, `ScheduleError` for one that
    breaks its promise.
    """
    world = dist.get_world_size(group)
    if world < 1:
        raise InvalidArgument("group", group, "one that this rank belongs to")
    chosen: Any = all_reduce(world) if _needs_one_argument(all_reduce) else all_reduce  # type: ignore
    if isinstance(chosen, Schedule):
        verify_all_reduce(chosen, world)
    elif chosen is not all_reduce or not callable(chosen):
        raise InvalidArgument("all_reduce", chosen, "a Schedule, a function that makes one, or a rank program")
    if group is None:  # one with gloo for the CPU, and what the default group has for an accelerator
        served = str(dist.get_backend_config()).split(",")
        others = [pair for pair in served if not pair.endswith(f":{dist.Backend.GLOO}")]
        group = dist.new_group(backend=",".join([f"cpu:{dist.Backend.GLOO}", *others]) if others else dist.Backend.GLOO)
    return BackgroundAllReduce(chosen, group)


class BackgroundAllReduce:
    """Sums tensors in the background, one after another in the order of the calls; made by `over`.

    Tensors on the CPU are summed by a thread. Those on an accelerator are summed on a stream of their own, in the order
    of the schedule, by the backend's send and receive; the host only queues them. A rank program needs the CPU.

    ``group`` is its own, so that no other messages come between. After a call that failed the ranks may be out of step:
    all later calls fail too.
    """

    def __init__(self, all_reduce: Schedule | Program, group: dist.ProcessGroup) -> None:
        self.all_reduce, self.group = all_reduce, group
        self._stream: torch.Stream | None = None
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        thread = threading.Thread(target=_carry_out, args=(self._calls,), name=repr(self), daemon=True)
        thread.start()
        weakref.finalize(self, _end, self._calls, thread)  # also at the end of the process

    def __call__(self, tensor: torch.Tensor) -> "torch.futures.Future[torch.Tensor] | QueuedSum":
        """Begin to sum a contiguous 1-D tensor over the ranks, in place; what our wrappers call.

        ``wait()`` of the result waits for the sum, and raises the error of its execution. On an accelerator
        the current stream waits, and not the host.
        """
        run = prepare(self.all_reduce, tensor, self.group)
        if tensor.device.type != "cpu":
            return self._queue(run, tensor)
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self._calls.put((run, tensor, done))
        return done

    def _queue(self, run: Callable[[], object], tensor: torch.Tensor) -> "QueuedSum":
        kind = torch.accelerator.current_accelerator()
        if kind is None or tensor.device.type != kind.type:
            expected = "on the CPU or on the accelerator of this rank"
            raise InvalidArgument("tensor", f"one on {tensor.device}", expected)
        stream = self._stream = self._stream or torch.Stream(tensor.device)
        stream.wait_stream(torch.accelerator.current_stream(tensor.device))
        with stream:
            run()
        tensor.record_stream(stream)
        return QueuedSum(tensor, stream)

    def hook(self, state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Average a bucket of torch's DistributedDataParallel: ``ddp.register_comm_hook(None, over(ring).hook)``."""
        summed = self(bucket.buffer().mul_(1 / dist.get_world_size(self.group)))
        if isinstance(summed, QueuedSum):
            return summed.future()
        return summed.then(lambda done: done.value())  # so that torch's C++ sees an error as one

    def __repr__(self) -> str:
        return f"all-reduce over {getattr(self.all_reduce, '__name__', self.all_reduce)}"


class QueuedSum:
    """An all-reduce that has been queued on ``stream``."""

    def __init__(self, tensor: torch.Tensor, stream: torch.Stream) -> None:
        self._tensor, self._stream, self._end = tensor, stream, stream.record_event()

    def wait(self) -> None:
        """Let the current stream wait for the sum; the host goes on."""
        self._end.wait()

    def future(self) -> torch.futures.Future[torch.Tensor]:
        """Return a future of the sum; waiting for it makes the current stream wait, not the host."""
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=[self._tensor.device])
        with self._stream:
            done.set_result(self._tensor)
        return done


def _needs_one_argument(function: object) -> bool:
    """Return True for a function from the world to a schedule, which needs one argument; a rank program needs two."""
    try:
        parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):  # no function, or one that does not say
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is p.empty for p in parameters) == 1


def _carry_out(calls: SimpleQueue[Call | None]) -> None:
    """Execute one call after another in the thread, until it gets None. It keeps no references while it waits."""
    failure = None
    while (call := calls.get()) is not None:
        run, tensor, done = call
        try:
            if failure is not None:
                raise RankFailed(f"not started, because an earlier all-reduce failed: {failure}")
            run()
            done.set_result(tensor)
        except BaseException as error:  # raised again by whoever waits; sys.exit in a rank program too
            failure = failure or f"{type(error).__name__}: {error}"
            done.set_exception(error if isinstance(error, Exception) else RankFailed(failure))
        del call, run, tensor, done


def _end(calls: SimpleQueue[Call | None], thread: threading.Thread) -> None:
    """End the thread. A thread that waits for ranks that never join is abandoned: gloo calls cannot be cancelled."""
    calls.put(None)
    if thread is not threading.current_thread():
        thread.join(GRACE)
