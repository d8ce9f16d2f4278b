"""Steps on the clock: how long one takes, and what ran when in a step over an emulated link."""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from dpbook.collectives import Link
from dpbook.ddp.emulated_link import SlowCall, SlowLink
from dpbook.overlap import Span

Loss = Callable[[nn.Module], torch.Tensor]
"""Runs forward of a model and returns its loss, a scalar."""


def step_time(model: nn.Module, loss: Loss) -> float:
    """Return the seconds of forward and backward, with whatever they wait for; all ranks begin together."""
    _begin_together(model)
    begun = time.perf_counter()
    loss(model).backward()
    return time.perf_counter() - begun


class ObservedLink(SlowLink):
    """A `SlowLink` that keeps its calls, which know when the link began to carry them and when they had arrived."""

    def __init__(self, link: Link, group: dist.ProcessGroup | None = None) -> None:
        super().__init__(link, group)
        self.calls: list[SlowCall] = []

    def all_reduce(self, tensor: torch.Tensor) -> SlowCall:
        """As `SlowLink.all_reduce`."""
        call = super().all_reduce(tensor)
        self.calls.append(call)
        return call


def observe_step(model: nn.Module, loss: Loss, link: ObservedLink) -> tuple[Span, ...]:
    """Run a step of a wrapped ``model`` whose calls go over ``link``, and return what ran when on this rank.

    One span for forward, one for backward until its last gradient is ready, and one for each call. Times are those
    of `time.monotonic`, one clock for all processes of a machine; the spans of its ranks make up one `Timeline`.
    """
    rank, ready = dist.get_rank(), [0.0]
    hooks = [
        p.register_post_accumulate_grad_hook(lambda _: ready.append(time.monotonic()))
        for p in model.parameters()
        if p.requires_grad
    ]
    _begin_together(model)
    link.calls.clear()
    begun = time.monotonic()
    value = loss(model)
    forward = time.monotonic()
    value.backward()
    for hook in hooks:
        hook.remove()
    return (
        Span("forward", rank, "compute", "computation", begun, forward),
        Span("backward", rank, "compute", "computation", forward, ready[-1]),
        *(
            Span(f"all-reduce {k + 1}", rank, "communication", "communication", call.begin, call.end)
            for k, call in enumerate(link.calls)
        ),
    )


def _begin_together(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = None
    dist.barrier()
