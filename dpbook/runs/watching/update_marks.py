"""Moments of each update: forward and backward begin, each gradient is ready, the optimizer steps.

The communication is the script's own, or goes over an emulated link.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer

from dpbook.collectives import Link
from dpbook.ddp import SlowLink, specification
from dpbook.ranks import DeviceMoment, moment
from dpbook.runs.watching.hooks import Owners, TrainingHooks, TrainingListener, parameters_of
from dpbook.runs.watching.journal import Recorder


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
    """Communication hooks on the DDP wrappers of a script.

    Attributes:
        emulating: whether the link is emulated in the current update; without a link it has no effect.
        arrived: called when the sum of a bucket has arrived, on the CPU only; on a device the host does not know.
    """

    def __init__(self, hooks: TrainingHooks, link: Link | None) -> None:
        self.emulating = False
        self.arrived: Callable[[], None] = lambda: None
        self._hooks, self._link = hooks, link
        self._hooked: set[int] = set()

    @property
    def wrappers(self) -> list[DistributedDataParallel]:
        """Wrappers that the script created, of torch's own class."""
        return [each for each in self._hooks.wrappers.values() if isinstance(each, DistributedDataParallel)]

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


class UpdateMarks(TrainingListener):
    """Records the moments of the updates of a rank.

    An update ends with the last step before the next forward or backward. Its moments are written when the next update
    has ended, because by then a device has reached them too. With ``check``, ``buckets`` emulates the link in every
    second update.
    """

    def __init__(
        self, recorder: Recorder, hooks: TrainingHooks, buckets: BucketHooks, world: int, *, check: bool
    ) -> None:
        self._recorder, self._hooks, self._buckets = recorder, hooks, buckets
        self._world, self._check = world, check
        buckets.arrived = lambda: self._mark("arrived")
        self._device = torch.device("cpu")
        self._numbers: dict[int, int] = {}
        self._tensors: list[dict[str, Any]] = []
        self._roots: list[nn.Module] = []
        self._updates = 0
        self._marks: list[tuple[str | int, DeviceMoment]] = []
        self._synced: list[bool] = []
        self._ended: dict[str, Any] | None = None
        recorder.on_close(self._finish)
        hooks.add(self)

    def optimizer_created(self, optimizer: Optimizer, owners: Owners) -> None:
        """Mark the moment at which each of its gradients is ready, from now on."""
        parameters = parameters_of(optimizer)
        self._roots += [root for root in owners.roots if not any(root is known for known in self._roots)]
        for parameter in parameters:
            if parameter.requires_grad and id(parameter) not in self._numbers:
                number = self._numbers[id(parameter)] = len(self._tensors)
                self._tensors.append(asdict(specification(owners.names[id(parameter)], parameter)))
                ready = functools.partial(self._ready, number)
                self._recorder.on_close(parameter.register_post_accumulate_grad_hook(ready).remove)
        if not self._marks and parameters:
            self._device = parameters[0].device
            self._mark("begun")

    def _mark(self, kind: str | int) -> None:
        self._marks.append((kind, moment(self._device)))

    def _ready(self, number: int, parameter: torch.Tensor) -> None:
        self._mark(number)

    def forward_begins(self, module: nn.Module, arguments: list[Any]) -> None:
        """Mark it; it may be the first of an update."""
        self._begin("forward")

    def backward_begins(self, tensors: Any, grad_tensors: Any) -> None:
        """Mark it, and note whether it will be averaged."""
        if self._tensors:
            self._buckets.prepare()
            self._begin("backward")
            self._synced.append(bool(self._hooks.sync()))

    def backward_ends(self) -> None:
        """Mark it."""
        if self._tensors:
            self._mark("returned")

    def step_ends(self, optimizer: Optimizer) -> None:
        """Mark it."""
        self._mark("stepped")

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
