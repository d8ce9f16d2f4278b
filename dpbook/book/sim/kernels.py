"""Operations as kernels: an operation returns its tensors at once, and the current stream computes their values later.

torch calls `launch` for every operation that has no implementation for the device. The kernel is torch's own for the
CPU, on the same bytes. A few operations are implemented here: creation, views, copies and convolution.

Under `torch.autocast`, operations run in the low dtype or in float32 after torch's own lists for CUDA ("Autocast Op
Reference" of its documentation), as far as the book's models need them.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from dpbook.book.sim import memory
from dpbook.book.sim.memory import CPU_KERNEL, DEVICE, Layout, allocate, is_on_device, layout_of, lend, on_cpu
from dpbook.book.sim.streams import Stream, current_stream, synchronize

INDICES_OF_CPU = frozenset({"aten::index", "aten::index_put_", "aten::_index_put_impl_"})
"""Operations for which CUDA accepts indices on the CPU as well."""

generator = torch.Generator()
"""Random generator of the device, used in the order in which kernels run; the CPU has another."""


def launch(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Queue ``op`` on the current stream, and return its results, whose values come later."""
    flat, spec = tree_flatten((args, kwargs))
    _check_devices(op, args, kwargs, flat)
    inferred = memory.outcome(op, flat, spec) if _returns_tensors(op) else None
    if inferred is None:
        return _run_now(op, flat, spec)
    for position, layout in inferred.resized:
        memory.resize(flat[position], layout.size, layout.stride)
    new = [allocate(*result) if isinstance(result, Layout) else None for result in inferred.results]
    results = [flat[r] if isinstance(r, int) else tensor for r, tensor in zip(inferred.results, new, strict=True)]
    twins, targets = _twins(flat), [None if tensor is None else on_cpu(tensor) for tensor in new]

    def kernel() -> None:
        computed = tree_flatten(_call(op, twins, spec))[0]
        for target, value in zip(targets, computed, strict=True):
            if target is not None and value is not None:  # the CPU's operation may leave a gradient out
                target.copy_(value)

    current_stream().launch(str(op), kernel)
    return tree_unflatten(results, inferred.spec)


def _run_now(op: Any, flat: Sequence[Any], spec: Any) -> Any:
    """Run an operation whose result's value or shape the host needs, after all queued work."""
    current_stream().synchronize()
    twins = _twins(flat)
    known = {id(twin): value for twin, value in zip(twins, flat, strict=True) if is_on_device(value)}
    with torch.no_grad():
        returned, shape = tree_flatten(_call(op, twins, spec))
        results = [known.get(id(x), x) for x in returned]
        for place, value in enumerate(results):
            if isinstance(value, torch.Tensor) and not is_on_device(value):
                results[place] = allocate(*layout_of(value))
                on_cpu(results[place]).copy_(value)
    return tree_unflatten(results, shape)


def _call(op: Any, twins: Sequence[Any], spec: Any) -> Any:
    args, kwargs = tree_unflatten(twins, spec)
    if _draws(op) and kwargs.get("generator") is None:
        kwargs["generator"] = generator
    return op(*args, **kwargs)


def _twins(flat: Sequence[Any]) -> list[Any]:
    """Return the arguments for the CPU's kernel. Tensors of the CPU, which the host may change later, are copied."""
    twins: dict[int, torch.Tensor] = {}

    def twin(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in twins:
                twins[id(value)] = on_cpu(value) if is_on_device(value) else value.clone()
            return twins[id(value)]
        return torch.device("cpu") if isinstance(value, torch.device) and value.type == DEVICE.type else value

    return [twin(value) for value in flat]


def _check_devices(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], flat: Sequence[Any]) -> None:
    """Raise as CUDA does for tensors of the CPU among those of the device; a 0-dimensional one may be read."""
    written = [args[place] if place < len(args) else kwargs.get(name) for place, name in _written(op)]
    read = [] if op._schema.name in INDICES_OF_CPU else [x for x in flat if isinstance(x, torch.Tensor) and x.dim()]
    for value in (*tree_leaves(written), *read):
        if isinstance(value, torch.Tensor) and not is_on_device(value):
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, {DEVICE} and "
                f"{value.device}! (in {op})"
            )


@cache
def _written(op: Any) -> list[tuple[int, str]]:
    """Return place and name of the arguments that an operation writes to."""
    arguments = enumerate(op._schema.arguments)
    return [(place, x.name) for place, x in arguments if x.alias_info is not None and x.alias_info.is_write]


@cache
def _returns_tensors(op: Any) -> bool:
    return all("Tensor" in str(returned.type) for returned in op._schema.returns)


@cache
def _draws(op: Any) -> bool:
    return any(argument.name == "generator" for argument in op._schema.arguments)


def copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Copy between devices, for `copy_`. To the CPU the host waits; from the CPU the values are read now."""
    if not is_on_device(target):
        current_stream().synchronize()
        with torch.no_grad():
            return target.copy_(on_cpu(source))
    values = on_cpu(source) if is_on_device(source) else source.detach().clone()
    written = on_cpu(target)
    current_stream().launch("copy", lambda: written.copy_(values))
    return target


def get_rng_state(device: Any = None) -> torch.Tensor:
    """Return the state of the device's generator after all queued work."""
    synchronize()
    return generator.get_state()


def set_rng_state(state: torch.Tensor, device: Any = None) -> None:
    synchronize()
    generator.set_state(state)


def manual_seed(seed: int) -> None:
    synchronize()
    generator.manual_seed(int(seed))


aten = torch.ops.aten
VIEWS = (
    "as_strided", "view", "_reshape_alias", "unfold", "set_.source_Storage_storage_offset", "set_.source_Tensor",
    "set_.source_Storage",
)  # fmt: skip
"""Operations that move no bytes: the CPU's implementation works for any device."""


def register_operations(library: Any) -> None:
    """Register the operations that are implemented here."""
    for name in VIEWS:
        library.impl(name, partial(overload(name).redispatch, CPU_KERNEL))
    library.impl("empty.memory_format", _empty)
    library.impl("empty_strided", _empty_strided)
    library.impl("resize_", _resize)
    library.impl("_copy_from", copy_from)
    library.impl("_to_copy", _to_copy)
    library.impl("record_stream", lambda tensor, stream: lend(tensor, Stream.all[stream.stream_id]))
    library.impl("native_dropout", _dropout)
    library.impl("native_layer_norm_backward", _layer_norm_backward)
    library.impl("convolution_overrideable", partial(launch, aten.convolution.default))
    library.impl("convolution_backward_overrideable", _convolution_backward)


def overload(name: str) -> Any:
    """Return the overload of a name: ``torch.ops.aten.add.out`` for "add.out"."""
    base, _, variant = name.partition(".")
    return getattr(getattr(aten, base), variant or "default")


def _empty(size: Any, *, dtype: Any = None, memory_format: Any = None, **_: Any) -> torch.Tensor:
    like = torch.empty(size, dtype=dtype, device="meta", memory_format=memory_format)
    return allocate(like.size(), like.stride(), like.dtype)


def _empty_strided(size: Any, stride: Any, *, dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
    return allocate(size, stride, dtype or torch.get_default_dtype())


def _resize(tensor: torch.Tensor, size: Any, *, memory_format: Any = None) -> torch.Tensor:
    like = torch.empty(size, dtype=tensor.dtype, device="meta", memory_format=memory_format)
    memory.resize(tensor, like.size(), like.stride())
    return tensor


def _to_copy(tensor: torch.Tensor, *, device: Any = None, non_blocking: bool = False, **options: Any) -> torch.Tensor:
    """Implement ``tensor.to(...)``. A non-blocking copy to the CPU gets its values later, as on CUDA."""
    if device is None or device.type != "cpu" or not non_blocking:
        return overload("_to_copy").redispatch(CPU_KERNEL, tensor, device=device, non_blocking=non_blocking, **options)
    like = {name: value for name, value in options.items() if name in ("dtype", "memory_format")}
    host, values = torch.empty_like(tensor, device="cpu", **like), on_cpu(tensor)
    current_stream().launch("copy to the CPU", lambda: host.copy_(values))
    return host


def _dropout(tensor: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Implement dropout with the device's generator; the CPU's operation would use the host's."""
    dropping = p > 0 and train is not False
    mask = torch.empty_like(tensor, dtype=torch.bool).bernoulli_(1 - p if dropping else 1)
    return tensor * mask * (1 / (1 - p) if dropping and p < 1 else 1), mask


def _layer_norm_backward(gradient: Any, inputs: Any, shape: Any, mean: Any, rstd: Any, weight: Any, *more: Any) -> Any:
    """Implement it with means in the dtype of the weights, as the CPU has them; a GPU keeps them in float32."""
    means = [x.to(inputs.dtype if weight is None else weight.dtype) for x in (mean, rstd)]
    return launch(aten.native_layer_norm_backward.default, gradient, inputs, shape, *means, weight, *more)


def _convolution_backward(gradient: Any, inputs: Any, weight: Any, *settings: Any) -> Any:
    *_, transposed, _, groups, _ = settings
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    return launch(aten.convolution_backward.default, gradient, inputs, weight, [channels], *settings)


LOW_PRECISION = (
    "addmm", "addmv", "baddbmm", "bmm", "conv1d", "conv2d", "linear", "matmul", "mm", "mv",
    "scaled_dot_product_attention",
)  # fmt: skip
FULL_PRECISION = (
    "cross_entropy_loss", "exp", "layer_norm", "log", "log_softmax.int", "mse_loss", "nll_loss", "norm.Scalar",
    "pow.Tensor_Scalar", "softmax.int", "sum", "sum.dim_IntList",
)  # fmt: skip
AUTOCAST_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)


def register_autocast(library: Any) -> None:
    """Register the dtypes of operations under `torch.autocast`."""
    for name in LOW_PRECISION:
        library.impl(name, _with_casts(overload(name), lambda: torch.get_autocast_dtype(DEVICE.type)))
    for name in FULL_PRECISION:
        library.impl(name, _with_casts(overload(name), lambda: torch.float32))


def _with_casts(op: Any, dtype: Callable[[], torch.dtype]) -> Callable[..., Any]:
    def cast(value: Any) -> Any:
        castable = is_on_device(value) and value.is_floating_point() and value.dtype != torch.float64
        return value.to(dtype()) if castable else value

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(AUTOCAST_KEYS):
            return op(*tree_map(cast, args), **tree_map(cast, kwargs))

    return run
