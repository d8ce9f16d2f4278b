"""Moments of each update: forward and backward begin, each gradient is ready, the optimizer steps.

The communication is the script's own, or goes over an emulated link.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from dpbook.collectives import Link
from dpbook.ddp import SlowLink, specification
from dpbook.ranks import DeviceMoment, moment
from dpbook.runs.watching import Recorder, owners, syncs


def units(root: nn.Module) -> list[str]:
    """Return the names of the modules that sharding would gather as one, such as a transformer's blocks.

    They are the members of the outermost `ModuleList` and `Sequential` modules, or else the children of ``root``.
    Modules without parameters are left out.
    """
    return list(_members(root, "")) or [name for name, child in root.named_children() if _has_parameters(child)]


def _members(module: nn.Module, prefix: str) -> Iterator[str]:
    for name, child in module.named_children():
        if not _has_parameters(child):
            continue
        if isinstance(module, nn.ModuleList | nn.Sequential):
            yield prefix + name
        else:
            yield from _members(child, f"{prefix}{name}.")


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def frozen(root: nn.Module) -> dict[str, int]:
    """Return the number of elements of each parameter that is not trained, by name."""
    return {name: parameter.numel() for name, parameter in root.named_parameters() if not parameter.requires_grad}


# The annotations must not be deferred: torch compares those of a communication hook with its own types.
Future: TypeAlias = torch.futures.Future[torch.Tensor]


class BucketHooks:
    """Communication hooks on the wrappers of a script.

    Attributes:
        wrappers: wrappers that the script created.
        emulating: whether the link is emulated in the current update; without a link it has no effect.
        arrived: called when the sum of a bucket has arrived, on the CPU only; on a device the host does not know.
    """

    def __init__(self, recorder: Recorder, link: Link | None) -> None:
        self.wrappers: list[DistributedDataParallel] = []
        self.emulating = False
        self.arrived: Callable[[], None] = lambda: None
        self._link = link
        self._hooked: set[int] = set()
        recorder.replace(DistributedDataParallel, "__init__", self._wrap_init)

    @property
    def own_hook(self) -> bool:
        """Whether the script registered a communication hook of its own."""
        return any(wrapper._comm_hooks and id(wrapper) not in self._hooked for wrapper in self.wrappers)

    def prepare(self) -> None:
        """Register hooks before a backward, when a script has already registered its own."""
        for wrapper in self.wrappers:
            several = dist.get_world_size(wrapper.process_group) > 1
            if several and id(wrapper) not in self._hooked and not wrapper._comm_hooks:
                wrapper.register_comm_hook(None, self._hook(wrapper.process_group))
                self._hooked.add(id(wrapper))

    def _wrap_init(self, init: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(init)
        def __init__(wrapper: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
            init(wrapper, *args, **kwargs)
            self.wrappers.append(wrapper)

        return __init__

    def _hook(self, group: dist.ProcessGroup) -> Callable[[Any, dist.GradBucket], Future]:
        slow = SlowLink(self._link, group) if self._link else None

        def carry(state: Any, bucket: dist.GradBucket) -> Future:
            if slow and self.emulating:
                return slow.hook(state, bucket)
            summed: Future = allreduce_hook(group, bucket)
            return summed.then(self._note_arrival) if bucket.buffer().device.type == "cpu" else summed

        return carry

    def _note_arrival(self, summed: Future) -> torch.Tensor:
        self.arrived()
        return summed.value()


class UpdateMarks:
    """Records the moments of the updates of a rank.

    An update ends with the last step before the next forward or backward. Its moments are written when the next update
    has ended, because by then a device has reached them too. With ``check``, ``buckets`` emulates the link in every
    second update.
    """

    def __init__(self, recorder: Recorder, buckets: BucketHooks, world: int, *, check: bool) -> None:
        self._recorder, self._buckets, self._world, self._check = recorder, buckets, world, check
        buckets.arrived = lambda: self._mark("arrived")
        self._device = torch.device("cpu")
        self._numbers: dict[int, int] = {}
        self._tensors: list[dict[str, Any]] = []
        self._roots: list[nn.Module] = []
        self._compiled = self._inside = False
        self._updates = 0
        self._marks: list[tuple[str | int, DeviceMoment]] = []
        self._synced: list[bool] = []
        self._ended: dict[str, Any] | None = None
        recorder.on_close(self._finish)
        recorder.replace(Optimizer, "__init__", self._wrap_init)
        recorder.replace(torch.autograd, "backward", self._wrap_backward)
        recorder.on_close(register_optimizer_step_post_hook(lambda *_: self._mark("stepped")).remove)

    def _wrap_init(self, init: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(init)
        def __init__(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            init(optimizer, *args, **kwargs)
            with self._recorder.watching():
                self._register(optimizer)

        return __init__

    def _register(self, optimizer: Optimizer) -> None:
        parameters = list(itertools.chain.from_iterable(group["params"] for group in optimizer.param_groups))
        modules = owners(parameters)
        self._compiled |= any(type(wrapper).__name__ == "OptimizedModule" for wrapper in modules.wrappers)
        for root in modules.roots:
            if not any(root is known for known in self._roots):
                self._roots.append(root)
                self._recorder.on_close(root.register_forward_pre_hook(self._forward).remove)
        for parameter in parameters:
            if parameter.requires_grad and id(parameter) not in self._numbers:
                number = self._numbers[id(parameter)] = len(self._tensors)
                self._tensors.append(asdict(specification(modules.names[id(parameter)], parameter)))
                ready = functools.partial(self._ready, number)
                self._recorder.on_close(parameter.register_post_accumulate_grad_hook(ready).remove)
        if not self._marks and parameters:
            self._device = parameters[0].device
            self._mark("begun")

    def _mark(self, kind: str | int) -> None:
        self._marks.append((kind, moment(self._device)))

    def _ready(self, number: int, parameter: torch.Tensor) -> None:
        self._mark(number)

    def _forward(self, module: nn.Module, args: Any) -> None:
        if torch.is_grad_enabled() and not self._inside and not torch.compiler.is_compiling():
            self._begin("forward")

    def _wrap_backward(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(backward)
        def watch_backward(*args: Any, **kwargs: Any) -> Any:
            if self._inside or not self._tensors:
                return backward(*args, **kwargs)
            self._buckets.prepare()
            self._begin("backward")
            self._synced.append(bool(self._buckets.wrappers) and all(map(syncs, self._buckets.wrappers)))
            self._inside = True
            try:
                return backward(*args, **kwargs)
            finally:
                self._inside = False
                self._mark("returned")

        return watch_backward

    def _begin(self, kind: str) -> None:
        if self._marks[-1][0] == "stepped":
            self._end()
            if self._updates >= self._recorder.options.updates:
                self._recorder.finish(self._world)
        self._mark(kind)

    def _end(self) -> None:
        self._write()
        self._ended = {"emulated": self._buckets.emulating, "synced": self._synced, "marks": self._marks}
        self._marks, self._synced = self._marks[-1:], []
        self._updates += 1
        self._buckets.emulating = self._check and self._updates % 2 == 1

    def _write(self) -> None:
        """Write the moments of the previous update."""
        if self._ended is None:
            return
        marks = self._ended["marks"]
        first, last = marks[0][1], marks[-1][1]
        if last.event is not None:
            last.event.synchronize()
        self._recorder.note("update", **self._ended | {"marks": [(kind, first.until(at)) for kind, at in marks]})

    def _model(self) -> dict[str, Any]:
        wrapper = next(iter(self._buckets.wrappers), None)
        return {
            "device": self._device.type,
            "world": self._world,
            "tensors": self._tensors,
            "units": [name for root in self._roots for name in units(root)],
            "frozen": {name: elements for root in self._roots for name, elements in frozen(root).items()},
            "compiled": self._compiled,
            "sharded": any(hasattr(p, "to_local") for root in self._roots for p in root.parameters()),
            "wrapped": wrapper is not None,
            "own_hook": self._buckets.own_hook,
            "buffers": sum(1 for root in self._roots for _ in root.buffers()),
            "cap": None if wrapper is None or wrapper.bucket_bytes_cap_default else wrapper.bucket_bytes_cap,
        }

    def _finish(self) -> None:
        if len(self._marks) > 1 and self._marks[-1][0] == "stepped":
            self._end()
        self._write()
        if self._updates:
            self._recorder.note("model", **self._model())
