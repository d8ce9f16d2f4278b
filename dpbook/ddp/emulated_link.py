"""An emulated slow link: a collective is not complete before a link of given speed would have carried its bytes.

The bytes really travel over gloo or NCCL, as fast as they can; their *completion* is held back until a timer says so.
Waiting costs no core, so computation that goes on meanwhile is really hidden, in wall time, on any laptop. Wherever a
number comes from such a link, it must be said.
"""
# No deferred annotations here: torch compares those of a communication hook with its own types.

import threading
import time
from typing import Any

import torch
import torch.distributed as dist

from dpbook.collectives import Link, closed_forms
from dpbook.core import check_type
from dpbook.ddp.reducer import AllReduce, Handle


class SlowLink:
    """This rank's end of an emulated ``link``: one serial queue, in which a message waits for those before it.

    An all-reduce is charged as the ring that it is: 2(N − 1) latencies and 2(N − 1)/N of its bytes, N the size of
    ``group``. ``queued_until`` is the moment, of `time.monotonic`, at which what was sent so far has gone out.
    """

    def __init__(self, link: Link, group: dist.ProcessGroup | None = None) -> None:
        check_type("link", link, Link, "a Link, such as Link.gigabits(1, latency=50e-6)")
        self.link, self.group = link, group
        self.price = closed_forms.ring(dist.get_world_size(group), link)
        self.queued_until = 0.0

    def charge(self, nbytes: int) -> float:
        """Queue an all-reduce of ``nbytes`` now, and return the moment at which it will have gone out."""
        self.queued_until = max(time.monotonic(), self.queued_until) + self.price(nbytes)
        return self.queued_until

    def all_reduce(self, tensor: torch.Tensor) -> Handle:
        """Begin to sum a tensor over the ranks: what our wrappers take as ``all_reduce``."""
        work = dist.all_reduce(tensor, group=self.group, async_op=True)
        return _Delayed(work, self.charge(_nbytes(tensor)))

    def hook(self, state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The same for torch's DistributedDataParallel: ``ddp.register_comm_hook(None, slow.hook)``."""
        buffer = bucket.buffer().mul_(1 / dist.get_world_size(self.group))
        done = dist.all_reduce(buffer, group=self.group, async_op=True).get_future()
        due = self.charge(_nbytes(buffer))
        late: torch.futures.Future[torch.Tensor] = torch.futures.Future()

        def finish(future: torch.futures.Future[list[torch.Tensor]]) -> None:
            def hand_over() -> None:
                try:
                    late.set_result(future.value()[0])
                except Exception as error:  # whatever the collective raised is raised by its waiter
                    late.set_exception(error)

            timer = threading.Timer(max(0.0, due - time.monotonic()), hand_over)
            timer.daemon = True
            timer.start()

        done.add_done_callback(finish)
        return late

    def __repr__(self) -> str:
        return f"SlowLink({self.link!r}), emulated"


class _Delayed:
    """A collective whose wait lasts at least until ``due``."""

    def __init__(self, work: Handle, due: float) -> None:
        self.work, self.due = work, due

    def wait(self) -> None:
        self.work.wait()
        time.sleep(max(0.0, self.due - time.monotonic()))


def slow(link: Link, group: dist.ProcessGroup | None = None) -> AllReduce:
    """An ``all_reduce`` for our wrappers over an emulated ``link``."""
    return SlowLink(link, group).all_reduce


def _nbytes(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())
