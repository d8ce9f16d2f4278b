"""The few operations that are not simply launched: what makes tensors, views of them, copies and convolution."""

from collections.abc import Callable
from typing import Any

import torch

from dpbook.book.sim.kernels import copy_from, launch
from dpbook.book.sim.memory import CPU_KERNEL, allocate, lend, on_cpu, resize
from dpbook.book.sim.streams import Stream, current_stream

aten = torch.ops.aten
VIEWS = (
    "as_strided", "view", "_reshape_alias", "unfold", "set_.source_Storage_storage_offset", "set_.source_Tensor",
    "set_.source_Storage",
)  # fmt: skip
"""They move no byte, so the CPU's own do for any device."""


def register(library: Any) -> None:
    """Tell torch of all of them."""
    for name in VIEWS:
        library.impl(name, _view(name))
    library.impl("empty.memory_format", _empty)
    library.impl("empty_strided", _empty_strided)
    library.impl("resize_", _resize)
    library.impl("_copy_from", copy_from)
    library.impl("_to_copy", _to_copy)
    library.impl("record_stream", _record_stream)
    library.impl("native_dropout", _dropout)
    library.impl("convolution_overrideable", _convolution)
    library.impl("convolution_backward_overrideable", _convolution_backward)


def overload(name: str) -> Any:
    """``torch.ops.aten.add.out`` of "add.out"."""
    base, _, which = name.partition(".")
    return getattr(getattr(aten, base), which or "default")


def _view(name: str) -> Callable[..., Any]:
    return lambda *args, **kwargs: overload(name).redispatch(CPU_KERNEL, *args, **kwargs)


def _empty(size: Any, *, dtype: Any = None, memory_format: Any = None, **_: Any) -> torch.Tensor:
    like = torch.empty(size, dtype=dtype, device="meta", memory_format=memory_format)
    return allocate(like.size(), like.stride(), like.dtype)


def _empty_strided(size: Any, stride: Any, *, dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
    return allocate(size, stride, dtype or torch.get_default_dtype())


def _resize(tensor: torch.Tensor, size: Any, *, memory_format: Any = None) -> torch.Tensor:
    like = torch.empty(size, dtype=tensor.dtype, device="meta", memory_format=memory_format)
    resize(tensor, like.size(), like.stride())
    return tensor


def _to_copy(tensor: torch.Tensor, *, device: Any = None, non_blocking: bool = False, **options: Any) -> torch.Tensor:
    """``tensor.to(...)``. To the CPU without blocking, its values come later, whether the host has waited or not."""
    if device is None or device.type != "cpu" or not non_blocking:
        return overload("_to_copy").redispatch(CPU_KERNEL, tensor, device=device, non_blocking=non_blocking, **options)
    like = {name: value for name, value in options.items() if name in ("dtype", "memory_format")}
    host, values = torch.empty_like(tensor, device="cpu", **like), on_cpu(tensor)
    current_stream().launch("copy to the CPU", lambda: host.copy_(values))
    return host


def _record_stream(tensor: torch.Tensor, stream: Any) -> None:
    lend(tensor, Stream.all[stream.stream_id])


def _dropout(tensor: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The CPU's own would draw from the generator of the host."""
    dropping = p > 0 and train is not False
    mask = torch.empty_like(tensor, dtype=torch.bool).bernoulli_(1 - p if dropping else 1)
    return tensor * mask * (1 / (1 - p) if dropping and p < 1 else 1), mask


def _convolution(*args: Any) -> Any:
    return launch(aten.convolution.default, *args)


def _convolution_backward(
    gradient: Any, inputs: Any, weight: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int, mask: Any,
) -> Any:  # fmt: skip
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    return launch(
        aten.convolution_backward.default, gradient, inputs, weight, [channels], stride, padding, dilation, transposed,
        output_padding, groups, mask,
    )  # fmt: skip
