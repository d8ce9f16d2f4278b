"""An emulated slow link: a collective completes no earlier than a link of the given speed could carry its bytes.

The bytes really travel over gloo or NCCL, as fast as they can; their *completion* is delayed by a timer. The link
begins to carry them when the last rank has joined, because until then some bytes are missing. Waiting uses no core, so
computation during the wait is really hidden, in wall time, on any laptop. On an accelerator, where work is queued, the
host waits: before a call until its bytes are computed, and after it until they have arrived. There the link shows the
price of a call, but no overlap.
Every number that comes from such a link must say so. The ranks compare their clocks, so they are on one machine.
"""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dpbook.collectives import Link, closed_forms
from dpbook.core import check_type
from dpbook.ddp.reducer import AllReduce, Handle
from dpbook.ddp.sharded.row import all_gather, reduce_scatter
from dpbook.overlap import Span
from dpbook.ranks import moment, now

# No deferred annotations here: torch compares those of a communication hook with its own types.


class SlowCall:
    """A collective over a link, together with a second one that finds the time at which the last rank joined.

    ``begin`` begins it on ``tensor``; ``seconds`` is what the link takes for it, ``before`` the call that it carries
    first. Moments are those of `time.monotonic`; reading one waits until the last rank has joined.
    """

    def __init__(
        self, tensor: torch.Tensor, begin: Callable[[torch.Tensor], Handle], group: dist.ProcessGroup | None,
        seconds: float, before: "SlowCall | None",
    ):  # fmt: skip
        self.seconds, self._before, self._begin, self._lock = seconds, before, 0.0, threading.Lock()
        self._device = tensor.device
        if tensor.device.type != "cpu":
            torch.accelerator.current_stream(tensor.device).synchronize()  # a call comes long before what it is to send
        self._clock = torch.tensor([time.monotonic()], dtype=torch.float64, device=tensor.device)
        self._coming = dist.all_reduce(self._clock, dist.ReduceOp.MAX, group=group, async_op=True)
        self._work = begin(tensor)

    @property
    def begin(self) -> float:
        """Time at which the link began to carry the call: all ranks had joined, and the link was free."""
        with self._lock:
            if not self._begin:
                free = self._before.end if self._before else 0.0
                self._coming.wait()
                self._begin, self._before = max(float(self._clock), free), None
            return self._begin

    @property
    def end(self) -> float:
        """Time at which the sum has arrived, in seconds of `time.monotonic`."""
        return self.begin + self.seconds

    def wait(self) -> None:
        """Wait until the sum is available and the emulated link has carried it."""
        self._work.wait()
        now(self._device)  # on an accelerator only the stream has waited until here
        time.sleep(max(0.0, self.end - time.monotonic()))


class SlowLink:
    """This rank's end of an emulated ``link``: one serial queue, in which a call waits for those before it.

    An all-reduce takes as long as a ring: 2(N − 1) latencies and 2(N − 1)/N of its bytes, with N the size of ``group``.
    An all-gather and a reduce-scatter each take half of that.
    """

    def __init__(self, link: Link, group: dist.ProcessGroup | None = None) -> None:
        check_type("link", link, Link, "a Link, such as Link.gigabits(1, latency=50e-6)")
        self.link, self.group = link, group
        self.price = closed_forms.ring(dist.get_world_size(group), link)
        self.last: SlowCall | None = None

    def all_reduce(self, tensor: torch.Tensor) -> SlowCall:
        """Start to sum ``tensor`` over the ranks, in place. Our wrappers take this method as ``all_reduce``."""
        return self._carry(tensor, partial(dist.all_reduce, group=self.group, async_op=True), 1.0)

    def all_gather(self, row: torch.Tensor) -> SlowCall:
        """Start to gather ``row`` in place. `FullySharded` takes this method as ``all_gather``."""
        return self._carry(row, all_gather(self.group), 0.5)

    def reduce_scatter(self, row: torch.Tensor) -> SlowCall:
        """Start to reduce ``row`` in place. `FullySharded` takes this method as ``reduce_scatter``."""
        return self._carry(row, reduce_scatter(self.group), 0.5)

    def _carry(self, tensor: torch.Tensor, begin: Callable[[torch.Tensor], Handle], share: float) -> SlowCall:
        seconds = share * self.price(tensor.numel() * tensor.element_size())
        self.last = SlowCall(tensor, begin, self.group, seconds, self.last)
        return self.last

    def hook(self, state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Average a bucket of torch's DistributedDataParallel: ``ddp.register_comm_hook(None, slow.hook)``."""
        buffer = bucket.buffer().mul_(1 / dist.get_world_size(self.group))
        call, done = self.all_reduce(buffer), torch.futures.Future[torch.Tensor]()

        def hand_over() -> None:
            try:
                call.wait()
                done.set_result(buffer)
            except Exception as error:  # whatever the collective raised is raised by its waiter
                done.set_exception(error)

        threading.Thread(target=hand_over, daemon=True).start()
        return done

    def __repr__(self) -> str:
        return f"SlowLink({self.link!r}), emulated"


def slow(link: Link) -> AllReduce:
    """Return an ``all_reduce`` for our wrappers over an emulated ``link``."""
    return SlowLink(link).all_reduce


Loss = Callable[[nn.Module], torch.Tensor]
"""Function that runs the forward pass of a model and returns its loss, a scalar."""


def step_time(model: nn.Module, loss: Loss) -> float:
    """Return the seconds of forward and backward, including their waits; all ranks begin together."""
    device = _begin_together(model)
    begun = now(device)
    loss(model).backward()
    return now(device) - begun


class ObservedLink(SlowLink):
    """A `SlowLink` that keeps its calls, each with the times at which the link began and finished carrying it."""

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self.calls: list[SlowCall] = []

    def _carry(self, tensor: torch.Tensor, begin: Callable[[torch.Tensor], Handle], share: float) -> SlowCall:
        call = super()._carry(tensor, begin, share)
        self.calls.append(call)
        return call


def observe_step(model: nn.Module, loss: Loss, link: ObservedLink) -> tuple[Span, ...]:
    """Run a step of a wrapped ``model`` whose calls go over ``link``, and return the spans of this rank.

    One span for forward, one for backward until its last gradient is ready, and one for each call. Times are those
    of `time.monotonic`, one clock for all processes of a machine; the spans of its ranks make up one `Timeline`.
    """
    rank, ready = dist.get_rank(), []
    hooks = [
        p.register_post_accumulate_grad_hook(lambda q: ready.append(moment(q.device)))
        for p in model.parameters()
        if p.requires_grad
    ]
    device = _begin_together(model)
    link.calls.clear()
    begun, first = time.monotonic(), moment(device)
    value = loss(model)
    between = moment(device)
    value.backward()
    now(device)  # when all moments have come
    for hook in hooks:
        hook.remove()
    forward, backward = (begun + first.until(later) for later in (between, ready[-1]))
    calls = (
        Span(f"all-reduce {number}", rank, "communication", "communication", call.begin, call.end)
        for number, call in enumerate(link.calls, 1)
    )
    return (
        Span("forward", rank, "compute", "computation", begun, forward),
        Span("backward", rank, "compute", "computation", forward, backward),
        *calls,
    )


def _begin_together(model: nn.Module) -> torch.device:
    """Wait until all ranks have finished their queued work; return the device of the ``model``."""
    for parameter in model.parameters():
        parameter.grad = None
    device: torch.device = next(model.parameters()).device
    now(device)
    dist.barrier()
    return device
