"""A schedule moves the gradients: an all-reduce that is data, as the all-reduce of a DDP.

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
"""Seconds that an all-reduce which is under way at the end of the process has to finish."""

Call = tuple[Callable[[], object], torch.Tensor, torch.futures.Future[torch.Tensor]]


def over(
    all_reduce: Schedule | Program | Callable[[int], Schedule], group: dist.ProcessGroup | None = None
) -> "BackgroundAllReduce":
    """An ``all_reduce`` for our wrappers, and a hook for torch's, that a schedule or a rank program carries out.

    Args:
        all_reduce: a schedule; a function of one argument, the world, that makes one, such as `collectives.ring`; or a
            rank program, ``f(comm, x)``, which is trusted to sum.
        group: of gloo, which carries these messages and no others; its time-out is theirs. None makes one of all
            ranks, as `dist.new_group` does: then every rank calls `over`, in the same order as whatever else makes
            groups.

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
    return BackgroundAllReduce(chosen, group or dist.new_group(backend="gloo"))


class BackgroundAllReduce:
    """Sums tensors on a thread of its own, one after another in the order of the calls; made by `over`.

    ``group`` is its own, so that no other messages come between. After a call that failed the ranks may be out of step:
    all later calls fail too.
    """

    def __init__(self, all_reduce: Schedule | Program, group: dist.ProcessGroup) -> None:
        self.all_reduce, self.group = all_reduce, group
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        thread = threading.Thread(target=_carry_out, args=(self._calls,), name=repr(self), daemon=True)
        thread.start()
        weakref.finalize(self, _end, self._calls, thread)  # also at the end of the process

    def __call__(self, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Begin to sum a contiguous 1-D tensor on the CPU over the ranks, in place; what our wrappers call.

        ``wait()`` of what is returned waits for the sum, and raises what carrying it out has raised.
        """
        if tensor.device.type != "cpu":
            raise InvalidArgument("tensor", f"one on {tensor.device}", "on the CPU: a thread adds what arrives there")
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self._calls.put((prepare(self.all_reduce, tensor, self.group), tensor, done))
        return done

    def hook(self, state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Average a bucket of torch's DistributedDataParallel: ``ddp.register_comm_hook(None, over(ring).hook)``."""
        summed = self(bucket.buffer().mul_(1 / dist.get_world_size(self.group)))
        return summed.then(lambda done: done.value())  # so that torch's C++ sees an error as one

    def __repr__(self) -> str:
        return f"all-reduce over {getattr(self.all_reduce, '__name__', self.all_reduce)}"


def _needs_one_argument(function: object) -> bool:
    """Return True for a function from the world to a schedule, which needs one argument; a rank program needs two."""
    try:
        parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):  # no function, or one that does not say
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is p.empty for p in parameters) == 1


def _carry_out(calls: SimpleQueue[Call | None]) -> None:
    """Carry out one call after another in the thread, until None comes. It holds nothing while it waits."""
    failure = None
    while (call := calls.get()) is not None:
        run, tensor, done = call
        try:
            if failure is not None:
                raise RankFailed(f"not begun, because an all-reduce before it failed: {failure}")
            run()
            done.set_result(tensor)
        except BaseException as error:  # raised again by whoever waits; sys.exit in a rank program too
            failure = failure or f"{type(error).__name__}: {error}"
            done.set_exception(error if isinstance(error, Exception) else RankFailed(failure))
        del call, run, tensor, done


def _end(calls: SimpleQueue[Call | None], thread: threading.Thread) -> None:
    """End the thread. One that waits for ranks which do not come is left behind: gloo cannot be called off."""
    calls.put(None)
    if thread is not threading.current_thread():
        thread.join(GRACE)
