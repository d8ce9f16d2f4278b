"""Average gradients during backward: fill flat buckets, send each when it is full, wait at the end.

A bucket is filled when its last gradient is ready and sent after the buckets before it, so that all ranks send the same
buckets in the same order, whatever the order in which their gradients become ready.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.hooks import RemovableHandle

from dpbook.core import DpbookError, InvalidArgument, UnusedParameters
from dpbook.overlap import Plan


class Handle(Protocol):
    """A collective under way."""

    def wait(self) -> object:
        """Wait until the result is available."""


AllReduce = Callable[[torch.Tensor], Handle]
"""Function that begins to sum a 1-D tensor over all ranks, in place."""


def call_when_ready(parameter: torch.Tensor, owner: Any, method: Callable[..., None], *args: Any) -> RemovableHandle:
    """Call ``method(owner, *args)`` whenever the gradient of ``parameter`` is complete, as long as ``owner`` lives.

    Python's garbage collector does not see what a tensor's hook refers to. A strong reference to an object that refers
    to the tensor would keep both until the process ends. (A `weakref.WeakMethod` takes twice as long to call.)
    """
    reference = weakref.ref(owner)

    def ready(parameter: torch.Tensor) -> None:
        if (alive := reference()) is not None:
            method(alive, *args)

    return parameter.register_post_accumulate_grad_hook(ready)


LARGE = 2**15
"""Number of elements from which a gradient is copied into its bucket at once, while cached; smaller ones wait."""


@dataclass
class Tally:
    """Counts of what a wrapper has sent so far: syncs, collectives of gradients, and the bytes of their buffers."""

    syncs: int = 0
    calls: int = 0
    nbytes: int = 0


@dataclass
class _Bucket:
    """A flat buffer and the parameters whose gradients it holds.

    ``missing`` have no gradient yet; ``small`` have one that is not in the buffer yet.
    """

    buffer: torch.Tensor
    members: tuple[int, ...]
    missing: set[int] = field(default_factory=set)
    small: list[int] = field(default_factory=list)
    handle: Handle | None = None


class Reducer:
    """Hooks on ``parameters`` that average their gradients over all ranks by the buckets of ``plan``.

    ``overlap``: send a bucket as soon as it is full, or all at the end of backward. ``enabled`` False lets gradients
    accumulate on this rank alone. After a synced backward the gradients are views of the buckets.
    """

    def __init__(
        self,
        named: Sequence[tuple[str, nn.Parameter]],
        plan: Plan,
        all_reduce: AllReduce,
        world: int,
        *,
        overlap: bool,
        find_unused: bool,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        self.large = {index for index, parameter in enumerate(self.parameters) if parameter.numel() >= LARGE}
        self.all_reduce, self.scale, self.group = all_reduce, 1 / world, group
        self.overlap, self.find_unused = overlap, find_unused
        self.enabled = True
        self.sent = Tally()
        self.order: list[int] = []
        self._running = self._awaited = False
        self.rebuild(plan)
        self.hooks = [call_when_ready(p, self, Reducer._gradient_ready, i) for i, p in enumerate(self.parameters)]

    def forget(self) -> None:
        """Wait for the messages of a backward that raised, because they still write into the buckets."""
        self._running = self._awaited = False
        for bucket in self.buckets:
            self._receive(bucket)

    def rebuild(self, plan: Plan) -> None:
        """Use other buckets from the next backward on. Gradients keep their values."""
        self.plan = plan
        self.bucket_of = [bucket for bucket, _ in plan.places]
        self.views: dict[int, torch.Tensor] = {}
        self.buckets = [self._allocate(bucket.tensors, bucket.offsets, bucket.elements) for bucket in plan.buckets]

    def _allocate(self, members: tuple[int, ...], offsets: Sequence[int], elements: int) -> _Bucket:
        first = self.parameters[members[0]]
        buffer = torch.zeros(elements, dtype=first.dtype, device=first.device)
        for index, offset in zip(members, offsets, strict=True):
            like = torch.empty_like(self.parameters[index], device="meta")  # dense, in the parameter's own layout
            self.views[index] = buffer.as_strided(like.shape, like.stride(), offset)
        return _Bucket(buffer, members)

    def watch(self, output: object) -> None:
        """Watch a forward's ``output`` to detect the end of the backward through it, also with nested backwards.

        A re-entrant checkpoint runs a backward of its own inside; the first gradient may come from there.
        """
        for tensor in tensors_in(output):
            if tensor.grad_fn is not None:
                tensor.register_hook(self._reached)

    def _reached(self, gradient: torch.Tensor) -> None:
        if self.enabled and not self._awaited:
            self._await_end()

    def _await_end(self) -> None:
        """Ask the autograd engine to call `_end` when the backward that runs now is over."""
        self._awaited = True
        torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def _end(self) -> None:
        self._awaited = False
        if self._running:
            self._finish()

    def _gradient_ready(self, index: int) -> None:
        """Handle a gradient that is complete on this rank. Runs once per parameter and backward, so it must be fast."""
        if not self.enabled:
            return
        if not self._running:
            self._begin()
        bucket = self.buckets[self.bucket_of[index]]
        if index not in bucket.missing:
            raise DpbookError(
                f"{self.names[index]} got a second gradient in one backward: it is used in more than one re-entrant "
                "checkpoint. Recompute with use_reentrant=False"
            )
        bucket.missing.remove(index)
        self.order.append(index)
        if index in self.large:
            self._fill(bucket, [index])
        else:
            bucket.small.append(index)
        if self.overlap and not bucket.missing:
            self._send_full()

    def _begin(self) -> None:
        """Handle the first gradient of a backward: the buckets are empty, and `_finish` will run at its end."""
        self._running, self._next, self.order = True, 0, []
        for bucket in self.buckets:
            bucket.missing, bucket.small = set(bucket.members), []
        if not self._awaited:
            self._await_end()

    def _send_full(self) -> None:
        while self._next < len(self.buckets) and not self.buckets[self._next].missing:
            self._send(self.buckets[self._next])
            self._next += 1

    def _send(self, bucket: _Bucket) -> None:
        """Copy the remaining gradients into the bucket, and begin to sum it."""
        self._fill(bucket, [*bucket.small, *bucket.missing])
        bucket.handle = self.all_reduce(bucket.buffer)
        self.sent.calls += 1
        self.sent.nbytes += bucket.buffer.numel() * bucket.buffer.element_size()

    def _fill(self, bucket: _Bucket, indices: Sequence[int]) -> None:
        """Copy gradients into their bucket, times 1/world, and make them views of it. None counts as 0.

        They are scaled before the sum, as torch does it: the other order has other bits.
        """
        views, fresh, gradients = [], [], []
        for index in indices:
            parameter, view = self.parameters[index], self.views[index]
            gradient = parameter.grad
            if gradient is None:
                view.zero_()
            elif gradient is not view:
                if gradient.layout != torch.strided:
                    name = f"the gradient of {self.names[index]}"
                    raise InvalidArgument(name, gradient.layout, "dense, as of nn.Embedding(sparse=False)")
                fresh.append(view)
                gradients.append(gradient)
            parameter.grad = view
            views.append(view)
        with torch.no_grad():
            if len(views) == len(fresh) == 1:
                torch.mul(gradients[0], self.scale, out=views[0])
            elif views:
                if fresh:
                    torch._foreach_copy_(fresh, gradients)
                whole = len(views) == len(bucket.members)  # then one multiplication is enough
                torch._foreach_mul_([bucket.buffer] if whole else views, self.scale)

    def _finish(self) -> None:
        """Handle the end of backward: send the remaining buckets, wait for all, and report unused parameters."""
        unused = sorted(index for bucket in self.buckets for index in bucket.missing)
        gradients = {index: self.parameters[index].grad for index in unused} if self.find_unused else {}
        kept = {index: None if gradient is None else gradient.clone() for index, gradient in gradients.items()}
        for bucket in self.buckets[self._next :]:  # complete or not: the other ranks wait for these buckets
            self._send(bucket)
            if not self.overlap:
                self._receive(bucket)
        for bucket in self.buckets:
            self._receive(bucket)
        self._running = False
        self.sent.syncs += 1
        if self.find_unused:
            for index in self._unused_everywhere(unused):
                self.parameters[index].grad = kept[index]
        elif unused:
            raise UnusedParameters([self.names[index] for index in unused])

    def _receive(self, bucket: _Bucket) -> None:
        if bucket.handle is not None:
            bucket.handle.wait()
            bucket.handle = None

    def _unused_everywhere(self, unused: Sequence[int]) -> set[int]:
        """Return the parameters that got no gradient on any rank: their gradient stays as it was.

        All ranks add up which parameters they have used. Only a rank with unused ones waits for the sum and reads it.
        """
        device = self.parameters[0].device
        used = torch.ones(len(self.parameters), dtype=torch.int32, device=device)
        if unused:
            used[torch.tensor(unused, device=device)] = 0
        work = dist.all_reduce(used, group=self.group, async_op=True)
        if not unused:
            return set()
        work.wait()
        return set(torch.nonzero(used == 0).flatten().tolist())


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """Yield the tensors in the arguments or the result of a forward: one, or nested containers and dataclasses."""
    if isinstance(value, torch.Tensor):
        yield value
        return
    inner: Any = ()
    if isinstance(value, Mapping):
        inner = value.values()
    elif isinstance(value, list | tuple):
        inner = value
    elif is_dataclass(value):
        inner = [getattr(value, each.name) for each in fields(value)]
    for each in inner:
        yield from tensors_in(each)
