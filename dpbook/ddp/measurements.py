"""Measurements of a model in the form that the simulated step reads: the time of backward to each gradient."""

from collections.abc import Callable
from statistics import median

import torch
from torch import nn

from dpbook.core import InvalidArgument, check_int
from dpbook.overlap import Layer, Tensor
from dpbook.ranks import DeviceMoment, moment, now


def measure_layers(module: nn.Module, loss: Callable[[], torch.Tensor], repeats: int = 7) -> tuple[Layer, ...]:
    """Time forward and backward of ``module`` on this rank alone, and return one layer per trained tensor.

    The layers are in the reverse of the order in which gradients became ready, each with the time from the gradient
    before it to its own; forward is shared out as backward is. Without communication ``overlap.simulate_step`` of them
    takes the median time that was measured. Times are those of the parameters' device. Gradients are left as they were.

    ``module`` is not wrapped, or wrapped and inside ``no_sync``; ``loss`` runs forward and returns the loss, a scalar.
    ``repeats`` backward passes count, after one that does not. Raises `InvalidArgument` if a trained parameter gets no
    gradient.
    """
    check_int("repeats", repeats, 1)
    named = {p: name for name, p in module.named_parameters() if p.requires_grad}
    kept = [p.grad for p in named]
    ready: list[tuple[nn.Parameter, DeviceMoment]] = []
    hooks = [p.register_post_accumulate_grad_hook(lambda q: ready.append((q, moment(q.device)))) for p in named]
    device = next((p.device for p in named), torch.device("cpu"))
    forwards, gaps = [], []
    try:
        for repeat in range(repeats + 1):
            for p in named:
                p.grad = None
            ready.clear()
            begun = moment(device)
            value = loss()
            backward = moment(device)
            value.backward()
            now(device)  # when all moments have come
            if len(ready) != len(named):
                missing = next(name for p, name in named.items() if p.grad is None)
                raise InvalidArgument("loss", missing, "one that depends on every trained parameter")
            if repeat:
                forwards.append(begun.until(backward))
                times = [backward, *(came for _, came in ready)]
                gaps.append({q: a.until(b) for (q, b), a in zip(ready, times, strict=False)})
    finally:
        for hook in hooks:
            hook.remove()
        for p, gradient in zip(named, kept, strict=True):
            p.grad = gradient
    backwards = {q: median(gap[q] for gap in gaps) for q, _ in reversed(ready)}
    forward, whole = median(forwards), sum(backwards.values())
    shares = {q: seconds / whole if whole else 1 / len(named) for q, seconds in backwards.items()}
    return tuple(
        Layer(named[q], forward * shares[q], seconds, (specification(named[q], q),)) for q, seconds in backwards.items()
    )


def specification(name: str, parameter: torch.Tensor) -> Tensor:
    """Return the specification of a parameter's gradient, the input of a bucket plan."""
    return Tensor(name, tuple(parameter.shape), str(parameter.dtype).removeprefix("torch."), str(parameter.device))
