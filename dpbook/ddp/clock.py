"""Steps on the clock: how long one takes, and what ran when in a step over an emulated link."""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from dpbook.collectives import Link
from dpbook.ddp.emulated_link import SlowCall, SlowLink
from dpbook.ddp.reducer import Handle
from dpbook.overlap import Span
from dpbook.ranks import moment, now

Loss = Callable[[nn.Module], torch.Tensor]
"""Runs forward of a model and returns its loss, a scalar."""


def step_time(model: nn.Module, loss: Loss) -> float:
    """Return the seconds of forward and backward, with whatever they wait for; all ranks begin together."""
    device = _begin_together(model)
    begun = now(device)
    loss(model).backward()
    return now(device) - begun


class ObservedLink(SlowLink):
    """A `SlowLink` that keeps its calls, which know when the link began to carry them and when they had arrived."""

    def __init__(self, link: Link, group: dist.ProcessGroup | None = None) -> None:
        super().__init__(link, group)
        self.calls: list[SlowCall] = []

    def _carry(self, tensor: torch.Tensor, begin: Callable[[torch.Tensor], Handle], share: float) -> SlowCall:
        call = super()._carry(tensor, begin, share)
        self.calls.append(call)
        return call


def observe_step(model: nn.Module, loss: Loss, link: ObservedLink) -> tuple[Span, ...]:
    """Run a step of a wrapped ``model`` whose calls go over ``link``, and return what ran when on this rank.

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
    return (
        Span("forward", rank, "compute", "computation", begun, forward),
        Span("backward", rank, "compute", "computation", forward, backward),
        *(
            Span(f"all-reduce {k + 1}", rank, "communication", "communication", call.begin, call.end)
            for k, call in enumerate(link.calls)
        ),
    )


def _begin_together(model: nn.Module) -> torch.device:
    """Wait until all ranks are here, with nothing left to do; the device of the ``model``."""
    for parameter in model.parameters():
        parameter.grad = None
    device: torch.device = next(model.parameters()).device
    now(device)
    dist.barrier()
    return device
