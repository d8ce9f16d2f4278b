"""What torch's DistributedDataParallel hands to its all-reduce, seen from a communication hook."""
# No deferred annotations here: torch compares those of a communication hook with its own types.

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Sent(NamedTuple):
    """A bucket that went out: its flat ``buffer``, the averaged gradients once backward is over, and whether it was
    the ``last`` one of its backward."""

    buffer: torch.Tensor
    last: bool


def watch(ddp: DistributedDataParallel) -> list[Sent]:
    """Put a hook on ``ddp`` that averages as DDP does itself; the list returned grows by an item for every bucket.

    DDP takes one hook: this must be the only one, and comes before the first forward.
    """
    found: list[Sent] = []

    def average(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        found.append(Sent(bucket.buffer(), bucket.is_last()))
        scaled = bucket.buffer().mul_(1 / dist.get_world_size())
        return dist.all_reduce(scaled, async_op=True).get_future().then(lambda done: done.value()[0])

    ddp.register_comm_hook(None, average)
    return found
