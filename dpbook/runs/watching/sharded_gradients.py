"""A rank's own gradients under `fully_shard`: whole, at the end of each group's backward, before they are scattered.

They are where no hook on a parameter is called, in an inner class of torch. A torch that has not that class leaves the
replay without them, and it says so.
"""

from collections.abc import Callable
from typing import Any

import torch

from dpbook.runs.watching.local_gradients import LocalGradients
from dpbook.runs.watching.recorder import Recorder


class ShardedGradients:
    """Tells ``gradients`` of each parameter's gradient; what waits for a later backward is told once."""

    def __init__(self, recorder: Recorder, gradients: LocalGradients) -> None:
        self._gradients = gradients
        self._waiting: dict[int, torch.Tensor] = {}
        try:
            from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
        except ImportError:
            return
        if gradients.wanted:
            recorder.replace(FSDPParamGroup, "post_backward", self._watched)

    def _watched(self, post_backward: Callable[..., Any]) -> Callable[..., Any]:
        def watch_group(group: Any, *args: Any) -> Any:
            if not self._gradients.wanted:
                return post_backward(group, *args)
            held = {id(each): each for each in group.fsdp_params if hasattr(each, "_unsharded_param")}
            for each in held.values():
                self._tell(each)
            result = post_backward(group, *args)
            for number, each in held.items():  # what was scattered, or put aside, is not there next time
                if each._unsharded_param.grad is None:
                    self._waiting.pop(number, None)
            return result

        return watch_group

    def _tell(self, sharded: Any) -> None:
        gradient = sharded._unsharded_param.grad
        if gradient is not None:
            total = gradient.detach().double()
            before = self._waiting.get(id(sharded))
            self._gradients.add(sharded.sharded_param, total if before is None else total - before, gradient.dtype)
            self._waiting[id(sharded)] = total
