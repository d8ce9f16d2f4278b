"""What an operation will return, before it has run: torch works it out on "meta" tensors, which have no values."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from dpbook.book.sim.memory import is_on_device


class Layout(NamedTuple):
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def on_meta(self) -> torch.Tensor:
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device="meta")


class Outcome(NamedTuple):
    """``results`` of an operation, flat: a number is that of the argument which it is, a layout asks for a new tensor.

    ``resized`` are arguments, ``out=`` in particular, that take another layout; ``spec`` puts the results together.
    """

    results: tuple[Layout | int | None, ...]
    resized: tuple[tuple[int, Layout], ...]
    spec: Any


def layout_of(tensor: torch.Tensor) -> Layout:
    return Layout(tuple(tensor.size()), tuple(tensor.stride()), tensor.dtype)


def outcome(op: Any, flat: Sequence[Any], spec: Any) -> Outcome | None:
    """What ``op`` of the arguments ``flat``, put together by ``spec``, will return; None where values decide that.

    Raises what torch raises for arguments that do not fit, as a device does when a kernel is launched.
    """
    first: dict[int, int] = {}
    described: list[tuple[Any, Any]] = []
    for position, value in enumerate(flat):
        if is_on_device(value):
            described.append((first.setdefault(id(value), position), layout_of(value)))
        elif isinstance(value, torch.Tensor):
            described.append((None, layout_of(value)))
        elif isinstance(value, torch.device):
            described.append((torch.device, torch.device("meta")))
        elif isinstance(value, torch.Generator):
            described.append((torch.Generator, None))
        else:
            described.append((type(value), value))
    return _outcome(op, tuple(described), spec)


@lru_cache(maxsize=4096)
def _outcome(op: Any, described: tuple[tuple[Any, Any], ...], spec: Any) -> Outcome | None:
    metas: dict[int, torch.Tensor] = {}
    flat = []
    for kind, value in described:
        if not isinstance(value, Layout):
            flat.append(value)
        elif kind is None:  # of the CPU: a number, or indices
            flat.append(torch.ones(value.size, dtype=value.dtype, device="meta" if value.size else "cpu"))
        else:
            flat.append(metas.setdefault(kind, value.on_meta()))
    args, kwargs = tree_unflatten(flat, spec)
    try:
        returned, spec = tree_flatten(op(*args, **kwargs))
    except NotImplementedError:
        return None
    positions = {id(meta): position for position, meta in metas.items()}
    results = [_result(value, positions) for value in returned]
    resized = [(n, layout_of(meta)) for n, meta in metas.items() if layout_of(meta) != described[n][1]]
    return Outcome(tuple(results), tuple(resized), spec)


def _result(value: Any, positions: dict[int, int]) -> Layout | int | None:
    if not isinstance(value, torch.Tensor):
        return None
    return positions.get(id(value), layout_of(value))
