"""Operations as kernels: what comes back is a tensor at once, what computes its values is queued on the current stream.

An operation of torch that has no implementation for the device arrives in `launch`. The kernel is torch's own for the
CPU, on the same bytes.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from dpbook.book.sim.memory import DEVICE, Outcome, allocate, is_on_device, layout_of, on_cpu, outcome, resize
from dpbook.book.sim.streams import Stream, current_stream, synchronize

INDICES_OF_CPU = frozenset({"aten::index", "aten::index_put_", "aten::_index_put_impl_"})
"""Where CUDA too takes indices of the CPU."""

generator = torch.Generator()
"""What the device draws from, in the order in which kernels run; that of the CPU is another."""


def launch(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Queue ``op``, and return its results without values."""
    flat, spec = tree_flatten((args, kwargs))
    _check_devices(op, args, kwargs, flat)
    foreseen = outcome(op, flat, spec) if _returns_tensors(op) else None
    if foreseen is None:
        return _run_now(op, flat, spec)
    for position, layout in foreseen.resized:
        resize(flat[position], layout.size, layout.stride)
    results = [_result(wanted, flat) for wanted in foreseen.results]
    _queue(op, flat, spec, results, foreseen, current_stream())
    return tree_unflatten(results, foreseen.spec)


def _queue(op: Any, flat: Sequence[Any], spec: Any, results: list[Any], foreseen: Outcome, stream: Stream) -> None:
    """``results`` that are no arguments get their values from what the CPU's operation returns."""
    twins = _twins(flat)
    targets = [on_cpu(x) if isinstance(w, tuple) else None for x, w in zip(results, foreseen.results, strict=True)]

    def kernel() -> None:
        computed = tree_flatten(_call(op, twins, spec))[0]
        for target, value in zip(targets, computed, strict=True):
            if target is not None and value is not None:  # a gradient that the CPU's operation leaves out
                target.copy_(value)

    stream.launch(str(op), kernel)


def _run_now(op: Any, flat: Sequence[Any], spec: Any) -> Any:
    """An operation whose result's value or shape the host has to know: it waits for all that was queued before."""
    current_stream().synchronize()
    twins = _twins(flat)
    known = {id(twin): value for twin, value in zip(twins, flat, strict=True) if is_on_device(value)}
    with torch.no_grad():
        returned, shape = tree_flatten(_call(op, twins, spec))
        results = [known[id(x)] if id(x) in known else to_device(x) for x in returned]
    return tree_unflatten(results, shape)


def to_device(value: Any) -> Any:
    """A copy of what the CPU has computed, if it is a tensor."""
    if not isinstance(value, torch.Tensor):
        return value
    new = allocate(*layout_of(value))
    on_cpu(new).copy_(value)
    return new


def _call(op: Any, twins: Sequence[Any], spec: Any) -> Any:
    args, kwargs = tree_unflatten(twins, spec)
    if _draws(op) and kwargs.get("generator") is None:
        kwargs["generator"] = generator
    return op(*args, **kwargs)


def _twins(flat: Sequence[Any]) -> list[Any]:
    """The arguments as the CPU's kernel takes them. What the host may change meanwhile is copied now."""
    twins: dict[int, torch.Tensor] = {}

    def twin(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in twins:
                twins[id(value)] = on_cpu(value) if is_on_device(value) else value.clone()
            return twins[id(value)]
        return torch.device("cpu") if isinstance(value, torch.device) and value.type == DEVICE.type else value

    return [twin(value) for value in flat]


def _result(wanted: Any, flat: Sequence[Any]) -> Any:
    if wanted is None:
        return None
    return flat[wanted] if isinstance(wanted, int) else allocate(*wanted)


def _check_devices(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], flat: Sequence[Any]) -> None:
    """Raise as CUDA does for tensors of the CPU among those of the device; a number, of no dimension, may be read."""
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
    """Place and name of the arguments that an operation writes to."""
    arguments = enumerate(op._schema.arguments)
    return [(place, x.name) for place, x in arguments if x.alias_info is not None and x.alias_info.is_write]


@cache
def _returns_tensors(op: Any) -> bool:
    return all("Tensor" in str(returned.type) for returned in op._schema.returns)


@cache
def _draws(op: Any) -> bool:
    return any(argument.name == "generator" for argument in op._schema.arguments)


def copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """What `copy_` does between devices. To the CPU the host waits; from there its values are those of this moment."""
    if not is_on_device(target):
        current_stream().synchronize()
        with torch.no_grad():
            return target.copy_(on_cpu(source))
    values = on_cpu(source) if is_on_device(source) else source.detach().clone()
    memory = on_cpu(target)
    current_stream().launch("copy", lambda: memory.copy_(values))
    return target


def get_rng_state(device: Any = None) -> torch.Tensor:
    """What random numbers come next, once what was queued has drawn its own."""
    synchronize()
    return generator.get_state()


def set_rng_state(state: torch.Tensor, device: Any = None) -> None:
    synchronize()
    generator.set_state(state)


def manual_seed(seed: int) -> None:
    synchronize()
    generator.manual_seed(int(seed))
