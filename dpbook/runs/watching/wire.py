"""What carries the gradients of torch's DDP while it is watched: the same as before, or an emulated link."""
# No deferred annotations here: torch compares those of a communication hook with its own types.

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from dpbook.collectives import Link
from dpbook.ddp import SlowLink
from dpbook.runs.watching import Recorder

Future: TypeAlias = torch.futures.Future[torch.Tensor]


class Wire:
    """Knows the wrappers, and from their first backward on when the sum of a bucket has arrived.

    ``link``: the emulated one, in the updates in which ``held`` is set; None to emulate none. ``arrived`` is called
    when a sum has arrived, on the CPU; elsewhere the host does not know.
    """

    def __init__(self, recorder: Recorder, link: Link | None) -> None:
        self.wrappers: list[DistributedDataParallel] = []
        self.held = False
        self.arrived: Callable[[], None] = lambda: None
        self._link = link
        self._hooked: set[int] = set()
        recorder.replace(DistributedDataParallel, "__init__", self._wraps)

    @property
    def own_hook(self) -> bool:
        """Whether a wrapper has a communication hook of the script's."""
        return any(wrapper._comm_hooks and id(wrapper) not in self._hooked for wrapper in self.wrappers)

    def prepare(self) -> None:
        """Before a backward: a script that has a hook of its own has registered it by now."""
        for wrapper in self.wrappers:
            several = dist.get_world_size(wrapper.process_group) > 1
            if several and id(wrapper) not in self._hooked and not wrapper._comm_hooks:
                wrapper.register_comm_hook(None, self._hook(wrapper.process_group))
                self._hooked.add(id(wrapper))

    def _wraps(self, init: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(init)
        def __init__(wrapper: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
            init(wrapper, *args, **kwargs)
            self.wrappers.append(wrapper)

        return __init__

    def _hook(self, group: dist.ProcessGroup) -> Callable[[Any, dist.GradBucket], Future]:
        slow = SlowLink(self._link, group) if self._link else None

        def carry(state: Any, bucket: dist.GradBucket) -> Future:
            if slow and self.held:
                return slow.hook(state, bucket)
            summed: Future = allreduce_hook(group, bucket)
            return summed.then(self._note) if bucket.buffer().device.type == "cpu" else summed

        return carry

    def _note(self, summed: Future) -> torch.Tensor:
        self.arrived()
        return summed.value()
